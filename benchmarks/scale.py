"""What grows with the number of images.

    python -m benchmarks.scale metrics 5000                 # of a validation
    python -m benchmarks.scale yolo 13000 41000 123287      # the start of a training; or coco
    python -m benchmarks.scale table 1000000 9000000        # the same, labels in the cache only

Seconds are processor time. Memory is the peak of the process, and what the measured work adds to it.
"""

import argparse
import contextlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from PIL import Image

from benchmarks.tables import print_header, print_row
from boltbox.detector.commands.doctor.labels import examine_labels
from boltbox.detector.commands.doctor.repair import write_coco, write_yolo
from boltbox.detector.data.datamodule import DetectionData
from boltbox.detector.data.dataset_file import DatasetFile
from boltbox.detector.data.datasets import DetectionDataset
from boltbox.detector.data.label_table import LabelTable, Texts, starts_of
from boltbox.detector.data.read_split import SplitReader
from boltbox.detector.evaluation.metrics import DetectionMetrics

NAMES = [f"class {k}" for k in range(80)]
WIDTH, HEIGHT = 640, 480
CORNERS = 22  # of a polygon


def made_boxes(objects: int, rng: np.random.Generator) -> np.ndarray:
    """(objects, 4) float32 xyxy of COCO's sizes, in pixels that JSON writes with two decimals."""
    frame = np.array((WIDTH, HEIGHT))
    size = (rng.lognormal(-2, 1, (objects, 2)).clip(0.01, 0.99) * frame).round()
    low = (4 * rng.random((objects, 2)) * (frame - size)).astype(int) / 4
    return np.concatenate((low, low + size), axis=1).astype(np.float32)


def made_labels(images: int, corners: int = 0) -> LabelTable:
    """Labels as COCO has them: 7.3 objects per image on average, none in 0.9 %.

    Args:
        images: How many.
        corners: Of the polygon of each object; 0: there are no polygons.
    """
    rng = np.random.default_rng(images)
    counts = np.where(rng.random(images) < 0.009, 0, rng.geometric(1 / 7.34, images))
    objects = int(counts.sum())
    boxes = made_boxes(objects, rng)
    parts = objects if corners else 0
    return LabelTable(
        sizes=np.full((images, 2), (HEIGHT, WIDTH)),
        starts=starts_of(counts),
        boxes=boxes,
        classes=rng.integers(0, len(NAMES), objects),
        crowd=np.zeros(objects, bool),
        area=(boxes[:, 2:] - boxes[:, :2]).prod(1),
        part_starts=np.arange(objects + 1).clip(max=parts),
        point_starts=np.arange(parts + 1) * corners,
        points=(rng.integers(0, 4 * HEIGHT, (parts * corners, 2)) / 4).astype(np.float32),
    )


def metrics(images: int) -> None:
    """The metrics of a validation: 300 detections per image, two of five near a label."""
    rng = np.random.default_rng(0)
    collected = DetectionMetrics(len(NAMES))
    for i, labels in enumerate(made_labels(images)):
        boxes = made_boxes(300, rng)
        classes = rng.integers(0, len(NAMES), 300)
        if len(labels.boxes):
            of_label = rng.integers(0, len(labels.boxes), 120)
            boxes[:120] = labels.boxes[of_label] + rng.normal(0, 5, (120, 4))
            classes[:120] = labels.classes[of_label]
        scores = np.sort(rng.random(300))[::-1]
        order = rng.permutation(300)
        rows = np.column_stack((boxes[order], scores, classes[order])).astype(np.float32)
        labels.crowd[:] = rng.random(len(labels.crowd)) < 0.01
        collected.update([rows], [labels], [i])

    with measured(f"metrics {images}"):
        collected.compute()


def write_set(root: Path, images: int, is_coco: bool) -> None:
    """A dataset of hard links to 400 small pictures; a 24th of it is for validation."""
    for k in range(400):
        Image.new("RGB", (WIDTH, HEIGHT), (k % 256, k // 256, 0)).save(root / f"{k}.jpg")
    for split, count in (("train2017", images - images // 24), ("val2017", images // 24)):
        (root / "images" / split).mkdir(parents=True)
        names = [f"{i:012d}.jpg" for i in range(count)]
        for i, name in enumerate(names):
            os.link(root / f"{i % 400}.jpg", root / "images" / split / name)
        labels = made_labels(count, CORNERS if is_coco else 0)
        entries = list(zip(names, labels, strict=True))
        if is_coco:
            write_coco(root / f"annotations/instances_{split}.json", entries, NAMES)
        else:
            write_yolo(root / "labels" / split, entries)
    if not is_coco:
        splits = "train: images/train2017\nval: images/val2017\n"
        (root / "data.yaml").write_text(f"{splits}names: {NAMES}\n")


def write_table(root: Path, images: int) -> None:
    """A dataset of a few images, and in the labels cache as many as these for training."""
    write_set(root, 480, is_coco=False)
    labels = made_labels(images)
    places = Texts.of(f"line {k}" for k in range(9))
    made = DetectionDataset(
        Texts.of(f"{root}/images/{i:012d}.jpg" for i in range(images)),
        labels,
        NAMES,
        Texts.of(f"{root}/labels/{i:012d}.txt" for i in range(images)),
        np.zeros((images, 2), np.int64),
        replace(places, numbers=np.arange(len(labels.boxes), dtype=np.int32) % 9),
        faults=[],
        folders=[],
    )
    with mock.patch.object(SplitReader, "_read", return_value=made):
        DatasetFile.read(str(root), needs_val=True).open("train")


def start(dataset: str) -> None:
    """Print what it costs until the keys of the first batch, with the doctor's check."""
    with measured("start"):
        data = DetectionData(dataset, cache="none", workers=0)
        data.setup("fit")
        loader: Any = data.train_dataloader()
        next(iter(loader.batch_sampler))
        with measured("of which the check"):
            list(examine_labels(data.file, data.datasets, 640))


def measure_starts(what: str, images: int) -> None:
    """The first two starts, each in a process of its own; of a table, which is in the cache, only
    one like the second."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR", ".")) as folder:
        root = Path(folder, "data")
        root.mkdir()
        os.environ["BOLTBOX_CACHE"] = f"{folder}/cache"
        if what == "table":
            write_table(root, images)
        else:
            write_set(root, images, what == "coco")
        program = f"from benchmarks.scale import start; start({str(root)!r})"
        for _ in range(1 if what == "table" else 2):
            subprocess.run([sys.executable, "-c", program], check=True)


@contextlib.contextmanager
def measured(name: str) -> Iterator[None]:
    """Print a row for what is done within this context."""
    before = peak()
    begin = seconds()
    yield
    print_row(name, f"{seconds() - begin:.2f}", f"{peak():.2f}", f"{peak() - before:+.2f}")


def seconds() -> float:
    """Processor time of this process and of those that it started."""
    return sum(os.times()[:4])


def peak() -> float:
    """Of this program, in GB; getrusage would begin with the peak of the one that started it."""
    (kilobytes,) = re.findall(r"VmHWM:\s*(\d+)", Path("/proc/self/status").read_text())
    return int(kilobytes) * 1024 / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("metrics", "yolo", "coco", "table"))
    parser.add_argument("sizes", type=int, nargs="+")
    options = parser.parse_args()
    print_header("", "seconds", "peak, GB", "more, GB")
    for size in options.sizes:
        if options.what == "metrics":
            metrics(size)
        else:
            print(f"{options.what}, {size} images:", flush=True)
            measure_starts(options.what, size)


if __name__ == "__main__":
    main()
