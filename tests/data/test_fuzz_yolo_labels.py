"""Damaged YOLO label files: never a traceback, never a silent wrong box; what a slow, strict reader
rejects is named."""

import re
from pathlib import Path

import pytest
from corruption import FUZZ, corrupted
from hypothesis import example, given
from label_verdict import HEIGHT, NAMES, WIDTH, Verdict, compare, number, opened, out, rewrite
from made_datasets import lay_out, picture, save

YOLO = [
    "0 0.5 0.5 0.25 0.25\n1 0.125 0.25 0.0625 0.5\n0 0.75 0.5 0.5 0.5\n",
    "1 0.1 0.1 0.9 0.1 0.5 0.8\r\n0 0.3 0.3 0.2 0.2\r\n",
    "0 0.31 0.42 0.11 0.08",
]


def strict_yolo(data: bytes) -> Verdict:
    verdict = Verdict({}, [])
    for k, line in enumerate(re.split(rb"\r\n|\r|\n", data.removeprefix(b"\xef\xbb\xbf")), 1):
        try:
            fields = re.split(r"\s+", line.decode().strip())
        except UnicodeDecodeError:
            verdict.rejected.append(k)
            continue
        if fields == [""]:
            continue
        numbers = [v for v in map(number, fields) if v is not None]
        xs = numbers[1::2]
        ys = numbers[2::2]
        shape = len(fields) == 5 or (len(fields) >= 7 and len(fields) % 2 == 1)
        sound = (
            len(numbers) == len(fields) and shape and all(0 <= v <= 1 + 6e-8 for v in numbers[1:])
        )
        if not sound or numbers[0] not in range(len(NAMES)):
            verdict.rejected.append(k)
            continue
        if len(fields) == 5:
            cx, cy, w, h = numbers[1:]
            box = [cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2]
        else:
            box = [min(xs), min(ys), max(xs), max(ys)]
        if box[2] <= box[0] or box[3] <= box[1]:
            verdict.rejected.append(k)
        else:
            verdict.boxes[k] = (
                int(numbers[0]),
                [v * side for v, side in zip(box, (WIDTH, HEIGHT) * 2, strict=True)],
            )
    return verdict


@pytest.fixture(scope="module")
def yolo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("yolo")
    save(root / "images/train/a.png", picture(HEIGHT, WIDTH))
    lay_out(root, {"labels/train/": "", "data.yaml": "train: images/train\nnames: [cat, dog]\n"})
    return root


@FUZZ
@given(data=corrupted(YOLO))
@example(data=b"\xef\xbb\xbf0 .5 .5 .5 .5\n\r\n")  # the mark of Windows editors
# only line feeds end lines
@example(data=b"0 .5 .5 .5 .5\x0c1 .5 .5 .5\n1 .2 .2 .1 .1 \n\n0 .6 .5 .5 .5")
@example(data=b"0 0.31 0.42 0.15e-11 0.08")  # no width is left of it in float32
@example(
    data="0 0.5 0.5 0.1 0.\u0665\n1_0 .5 .5 .5 .5\n16777217 .5 .5 .5 .5\n1e-60 .5 .5 .5 .5".encode()
)
def test_yolo(yolo: Path, data: bytes) -> None:
    rewrite(yolo / "labels/train/a.txt", data)
    dataset, _ = opened(yolo)
    assert dataset is not None, "a label file never costs the data set"
    places = {fault.where for fault in dataset.faults}
    compare(strict_yolo(data), out(dataset, "a"), lambda k: f"line {k}" in places)
