"""What the start of a training costs, by the number of images.

    python -m benchmarks.start yolo 13000 41000 123287       # or coco
    python -m benchmarks.start table 1000000 9000000

Seconds are processor time of all processes until the keys of the first batch, memory is the peak
over that of the imports.
"""

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from PIL import Image

from boltbox.detector.commands.doctor.examine import brief
from boltbox.detector.data.datamodule import DetectionData
from boltbox.detector.data.dataset_file import DatasetFile
from boltbox.detector.data.datasets import DetectionDataset
from boltbox.detector.data.label_table import LabelTable, Texts
from boltbox.detector.data.read_split import SplitReader


def object_counts(images: int, rng: np.random.Generator) -> np.ndarray:
    """(images,) as in COCO: 7.3 on average, none in 0.9 %."""
    return np.where(rng.random(images) < 0.009, 0, rng.geometric(1 / 7.34, images))


def made_boxes(objects: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Classes (objects,) of 80, and boxes (objects, 4) cxcywh as fractions of the image."""
    sizes = np.clip(rng.lognormal(-2, 1, (objects, 2)), 0.01, 0.99)
    centres = sizes / 2 + rng.random((objects, 2)) * (1 - sizes)
    return rng.integers(0, 80, objects), np.concatenate((centres, sizes), 1)


def make_set(root: Path, images: int, format: str) -> Path:
    """A dataset of hard links to 400 small pictures; a 24th of it is for validation.

    Returns:
        What to give as --data.dataset.
    """
    rng = np.random.default_rng(0)
    pictures = []
    (root / "pictures").mkdir()
    for k in range(400):
        pictures.append(root / "pictures" / f"{k}.jpg")
        pixels = rng.integers(0, 255, (6, 8, 3), np.uint8)
        Image.fromarray(pixels).resize((64, 48)).save(pictures[k])
    for split, count in (("train2017", images - images // 24), ("val2017", images // 24)):
        counts = object_counts(count, rng)
        classes, boxes = made_boxes(counts.sum(), rng)
        for kind in ("images", "labels") if format == "yolo" else ("images",):
            (root / kind / split).mkdir(parents=True)
        entries = []
        annotations = []
        ends = np.cumsum(counts).tolist()
        for i, end in enumerate(ends):
            os.link(pictures[i % 400], root / f"images/{split}/{i:012d}.jpg")
            rows = range(end - counts[i], end)
            if format == "yolo":
                lines = [f"{classes[k]} {' '.join(f'{x:.6f}' for x in boxes[k])}\n" for k in rows]
                (root / f"labels/{split}/{i:012d}.txt").write_text("".join(lines))
                continue
            entries.append({"id": i, "file_name": f"{i:012d}.jpg", "height": 48, "width": 64})
            for k in rows:
                x, y, w, h = (boxes[k] * (64, 48, 64, 48)).round(2).tolist()
                polygon = (rng.random(44) * 48).round(2).tolist()
                row = {"id": k, "image_id": i, "category_id": int(classes[k]), "iscrowd": 0}
                box = [round(x - w / 2, 2), round(y - h / 2, 2), w, h]
                annotations.append(row | {"bbox": box, "area": w * h, "segmentation": [polygon]})
        if format == "coco":
            names = [{"id": k, "name": f"class {k}"} for k in range(80)]
            content = {"images": entries, "annotations": annotations, "categories": names}
            (root / "annotations").mkdir(exist_ok=True)
            (root / f"annotations/instances_{split}.json").write_text(json.dumps(content))
    if format == "yolo":
        names = [f"class {k}" for k in range(80)]
        splits = {"train": "images/train2017", "val": "images/val2017"}
        (root / "data.yaml").write_text(json.dumps(splits | {"names": names}))
    return root


def made_paths(folder: Path, images: int, suffix: str) -> Texts:
    """FOLDER/NUMBER.SUFFIX."""
    digits = np.arange(images)[:, None] // 10 ** np.arange(11, -1, -1) % 10 + ord("0")
    before, after = (np.frombuffer(os.fsencode(text), "u1") for text in (f"{folder}/", suffix))
    rows = [np.tile(before, (images, 1)), digits.astype("u1"), np.tile(after, (images, 1))]
    content = np.concatenate(rows, 1)
    starts = np.arange(images + 1) * content.shape[1]
    return Texts(np.arange(images, dtype="i4"), starts, content.ravel())


def make_table(root: Path, images: int) -> Path:
    """A dataset of a few images, and in the labels cache as many as these for training."""
    make_set(root, 480, "yolo")
    rng = np.random.default_rng(0)
    counts = object_counts(images, rng)
    classes, boxes = made_boxes(counts.sum(), rng)
    corners = np.concatenate((boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2), 1)
    none = np.zeros(len(boxes) + 1, np.int64)
    table = LabelTable(
        sizes=np.full((images, 2), 640),
        starts=np.concatenate(([0], np.cumsum(counts))),
        boxes=(corners * 640).astype("f4"),
        classes=classes,
        crowd=none[1:] > 0,
        area=(boxes[:, 2] * boxes[:, 3]).astype("f4"),
        part_starts=none,
        point_starts=none[:1],
        points=np.zeros((0, 2), "f4"),
    )
    lines = Texts.of(f"line {k}" for k in range(9))
    made = DetectionDataset(
        made_paths(root / "images", images, ".jpg"),
        table,
        [f"class {k}" for k in range(80)],
        made_paths(root / "labels", images, ".txt"),
        np.zeros((images, 2), np.int64),
        replace(lines, numbers=np.arange(len(boxes), dtype="i4") % 9),
    )
    with mock.patch.object(SplitReader, "_read", return_value=made):
        DatasetFile.read(str(root), needs_val=True).open("train")
    return root


def measure_start(dataset: str) -> None:
    """Print what it costs until the keys of the first batch, with the doctor's check."""
    before = peak()
    started = time.process_time()
    data = DetectionData(dataset, cache="none", workers=0)
    data.setup("fit")
    loader: Any = data.train_dataloader()
    next(iter(loader.batch_sampler))
    own = time.process_time()
    brief(data.file, data.datasets, 640)
    checked = time.process_time()
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = checked - started + children.ru_utime + children.ru_stime
    print(
        f"{seconds:.1f} s, of which the check {checked - own:.2f}; +{peak() - before:.2f} GB;"
        f" a process that reads {children.ru_maxrss * 1024 / 1e9:.2f} GB"
    )


def measure_starts(what: str, images: int) -> None:
    """Two starts, each in a process of its own."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR", ".")) as folder:
        root = Path(folder, "data")
        root.mkdir()
        os.environ["BOLTBOX_CACHE"] = f"{folder}/cache"
        make = make_table if what == "table" else make_set
        make(root, images, *([] if what == "table" else [what]))  # type: ignore[operator]
        for start in ("first", "second")[what == "table" :]:
            print(f"{what}, {images} images, {start} start: ", end="", flush=True)
            subprocess.run([sys.executable, "-m", __spec__.name, "start", str(root)], check=True)


def peak() -> float:
    """Of this program, in GB; getrusage would begin with the peak of the one that started it."""
    (kilobytes,) = re.findall(r"VmHWM:\s*(\d+)", Path("/proc/self/status").read_text())
    return int(kilobytes) * 1024 / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("yolo", "coco", "table", "start"))
    parser.add_argument("sizes", nargs="+", help="of `start`: a dataset")
    options = parser.parse_args()
    for size in options.sizes:
        if options.what == "start":
            measure_start(size)
        else:
            measure_starts(options.what, int(size))


if __name__ == "__main__":
    main()
