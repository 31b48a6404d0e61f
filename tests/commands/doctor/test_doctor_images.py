"""What the doctor says of image files."""

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from made_datasets import picture, save
from PIL import Image

from boltbox.detector.commands.doctor import image_file, images
from boltbox.detector.commands.doctor.finding import Finding
from boltbox.detector.commands.doctor.image_file import difference_hash
from boltbox.detector.commands.doctor.images import (
    FEW,
    MAX_DIFFERENCE,
    examine_images,
    near_duplicates,
)
from boltbox.detector.data.images import read_image
from boltbox.detector.system.errors import InputError


def smooth(height: int, width: int, seed: int = 0) -> np.ndarray:
    """(height, width, 3) uint8: soft blobs, which survive JPEG and a change of size."""
    return cv2.resize(picture(7, 7, seed), (width, height), interpolation=cv2.INTER_CUBIC)


def examine(*paths: Path, **splits: list[Path]) -> list[Finding]:
    given = {"train": list(paths)} if paths else splits
    return list(examine_images({split: [str(p) for p in files] for split, files in given.items()}))


def kinds(findings: list[Finding]) -> list[tuple[str, str]]:
    return [(f.severity, f.kind) for f in findings]


# Whole files have nothing said of them


def test_nothing_to_say(tmp_path: Path) -> None:
    kinds_of_files: list[tuple[str, dict[str, Any]]] = [
        ("jpg", {}),
        ("jpeg", {"progressive": True}),
        ("jpg", {"quality": 100, "subsampling": 0, "optimize": True}),
        ("png", {}),
        ("bmp", {}),
        ("tif", {"compression": "tiff_lzw"}),
        ("webp", {}),
        ("mpo", {}),
    ]
    files = []
    for size in ((10, 13), (150, 131), (128, 384)):
        for suffix, options in kinds_of_files:
            files.append(tmp_path / f"{len(files)}.{suffix}")
            Image.fromarray(smooth(*size, len(files))).save(files[-1], **options)
    assert examine(*files) == []


def test_no_images() -> None:
    assert examine(train=[], val=[]) == []


# Faults


def cut(share: float) -> Callable[[bytes], bytes]:
    return lambda data: data[: int(len(data) * share)]


def flip(where: float) -> Callable[[bytes], bytes]:
    """One byte of the compressed data changed."""
    return lambda data: (
        data[: (k := int(len(data) * where))] + bytes([data[k] ^ 0x55]) + data[k + 1 :]
    )


BROKEN: list[tuple[str, Callable[[bytes], bytes]]] = [
    ("jpg", cut(0.5)),
    ("jpg", cut(0.97)),
    ("jpg", flip(0.7)),
    ("jpg", cut(0.01)),
    ("png", cut(0.5)),
    ("png", flip(0.5)),
    ("webp", cut(0.5)),
    ("bmp", cut(0.5)),
    ("tif", cut(0.5)),  # its directory is at the end
    ("png", lambda data: b""),
    ("jpg", lambda data: b"<html>not found</html>"),
]


@pytest.mark.parametrize("size", [(40, 60), (200, 160)])
def test_broken_files(
    tmp_path: Path, size: tuple[int, int], capfd: pytest.CaptureFixture[str]
) -> None:
    paths = [
        save(tmp_path / f"{k}.{suffix}", picture(*size, k)) for k, (suffix, _) in enumerate(BROKEN)
    ]
    for path, (_, spoil) in zip(paths, BROKEN, strict=True):
        path.write_bytes(spoil(path.read_bytes()))
    findings = examine(*paths, save(tmp_path / "good.png", picture(*size, 99)))
    assert [(f.file, f.severity, f.kind) for f in findings] == [
        (str(path), "fault", "damaged_image") for path in paths
    ]
    bar = r"images: +\d+%\|[^|\r\n]*\| \d+/\d+ \[[^\]]*\]"
    rest = re.sub(bar, "", capfd.readouterr().err).strip()
    assert rest == "", "what decoders say is for the report, not for the terminal"


def test_damaged_tiff(tmp_path: Path) -> None:
    """libtiff gives OpenCV what it could read, without a word, in grey and turned."""
    exif = Image.Exif()
    exif[0x0112] = 6
    path = tmp_path / "x.tif"
    Image.fromarray(picture(40, 60)).save(path, compression="tiff_deflate", exif=exif)
    path.write_bytes(flip(0.5)(path.read_bytes()))
    assert ("fault", "damaged_image") in kinds(examine(path))


def test_padded_jpeg_is_what_training_would_see(tmp_path: Path) -> None:
    """Why decoding alone does not tell: OpenCV fills up a file that is cut off."""
    path = save(tmp_path / "x.jpg", picture(200, 160))
    whole = read_image(path)
    path.write_bytes(cut(0.5)(path.read_bytes()))
    assert read_image(path).shape == whole.shape
    assert not np.array_equal(read_image(path), whole)
    assert kinds(examine(path)) == [("fault", "damaged_image")]


def test_only_the_end_marker_is_missing(tmp_path: Path) -> None:
    path = save(tmp_path / "x.jpg", picture(200, 160))
    whole = read_image(path)
    path.write_bytes(path.read_bytes()[:-2])
    assert examine(path) == []
    assert np.array_equal(read_image(path), whole)


def test_workers_find_what_one_process_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [str(save(tmp_path / f"{k}.jpg", smooth(80, 90, k % 7))) for k in range(4 * FEW)]
    for k in (3, 40):
        Path(paths[k]).write_bytes(cut(0.5)(Path(paths[k]).read_bytes()))
    findings = list(examine_images({"train": paths}))
    monkeypatch.setattr(images, "FEW", 100 * FEW)
    assert list(examine_images({"train": paths})) == findings


def test_a_decoder_that_crashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence, and the image or one shortly before it."""
    paths = [str(save(tmp_path / f"{k:02}.png", smooth(40, 60, k))) for k in range(2 * FEW)]

    def crash(path: str) -> np.ndarray:
        if path == paths[20]:
            os.kill(os.getpid(), signal.SIGKILL)
        return read_image(path)

    monkeypatch.setattr(image_file, "read_image", crash)
    with pytest.raises(InputError, match="a decoder crashed on this image or on one") as raised:
        list(examine_images({"train": paths}))
    assert str(raised.value).partition(":")[0] in paths[:21]


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp"])
@pytest.mark.parametrize("block", [b"garbage!", b"II*\0\x08\0\0\0\0\0\0\0\0\0", bytes(20)])
def test_exif_data_that_says_nothing(tmp_path: Path, suffix: str, block: bytes) -> None:
    """Damaged, or what editors leave when they remove it."""
    path = tmp_path / f"x.{suffix}"
    Image.fromarray(smooth(40, 60)).save(path, exif=b"Exif\0\0" + block)
    assert examine(path) == []


# Duplicates


def test_duplicates(tmp_path: Path) -> None:
    a = save(tmp_path / "a.png", smooth(40, 60))
    b = save(tmp_path / "b.png", smooth(40, 60, 1))
    a2, a3, b2 = (tmp_path / name for name in ("a2.png", "a3.png", "b2.png"))
    for copy, of in ((a2, a), (a3, a), (b2, b)):
        copy.write_bytes(of.read_bytes())
    findings = examine(train=[a, b, a2], val=[a3], test=[b2])
    assert [(f.severity, f.kind, f.split, f.file) for f in findings] == [
        ("warning", "duplicate_image", "train", str(a2)),
        ("warning", "duplicate_across_splits", "val", str(a3)),
        ("warning", "duplicate_across_splits", "test", str(b2)),
    ]
    assert [f.problem.split("the same image as ")[1] for f in findings] == [
        str(a),
        f"{a} of train: metrics measured on it are too high",
        f"{b} of train: metrics measured on it are too high",
    ]


def test_the_same_file_in_two_splits(tmp_path: Path) -> None:
    files = [save(tmp_path / f"{k}.png", smooth(40, 60, k)) for k in range(4)]
    found = examine(train=files[:3], val=[*files[2:], files[3]])
    assert [(f.kind, f.split, f.file, f.other) for f in found] == [
        ("duplicate_across_splits", "val", str(files[2]), str(files[2]))
    ]


@pytest.mark.parametrize(
    "change",
    [
        lambda image: cv2.resize(image, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA),
        lambda image: cv2.convertScaleAbs(image, alpha=1.1, beta=8),
        lambda image: image[2:, 3:],
        lambda image: image,  # another file format
    ],
)
def test_copies_that_look_alike(tmp_path: Path, change: Callable[[np.ndarray], np.ndarray]) -> None:
    originals = [save(tmp_path / f"{k}.png", smooth(160, 240, k)) for k in range(6)]
    copy = save(tmp_path / "copy.jpg", change(smooth(160, 240, 3)))
    assert examine(train=[*originals, copy]) == [], "in one split it changes no metric"
    (finding,) = examine(train=originals, val=[copy])
    assert (finding.kind, finding.split, finding.file) == (
        "similar_across_splits",
        "val",
        str(copy),
    )
    assert f"looks like {originals[3]}" in finding.problem


def test_blank_images_are_not_alike(tmp_path: Path) -> None:
    assert (
        examine(
            *[save(tmp_path / f"{k}.png", np.full((40, 60, 3), 50 * k, np.uint8)) for k in range(5)]
        )
        == []
    )


def test_near_duplicates_are_those_of_a_slow_loop() -> None:
    """The oracle compares one pair at a time, bit by bit."""
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 256, (40, 16, 16))
    for copy, of in ((20, 3), (21, 20), (33, 3), (39, 38), (12, 11)):
        pictures[copy] = (pictures[of] * 0.8 + rng.normal(0, 6, (16, 16)) + 10).clip(0, 255)
    groups = rng.integers(0, 2, 40)

    def bits(image: np.ndarray) -> list[bool]:
        down = [image[y + 1, x] > image[y, x] for y in range(15) for x in range(16)]
        return down + [image[y, x + 1] > image[y, x] for y in range(16) for x in range(15)]

    def difference(a: int, b: int) -> float:
        pairs = zip(bits(pictures[a]), bits(pictures[b]), strict=True)
        return sum(x != y for x, y in pairs) / 480

    expected = []
    for i in range(40):
        near = [(groups[j] == groups[i], difference(i, j), j) for j in range(i)]
        near = [rival for rival in near if rival[1] <= MAX_DIFFERENCE]
        expected += [(i, min(near)[2])] if near else []
    assert len(expected) == 5
    content = b"".join(difference_hash(image.astype(np.uint8)) for image in pictures)
    hashes = np.frombuffer(content, np.uint64).reshape(40, 8)
    assert list(near_duplicates(hashes, groups)) == expected
