"""What grows with the number of images, or with their size.

    python -m benchmarks.scale hashes 10000 123000 1000000  # the doctor's search for near duplicates
    python -m benchmarks.scale metrics 5000                 # of a validation
    python -m benchmarks.scale tiles 2500 5000 10000        # merging detections; sides in pixels
    python -m benchmarks.scale yolo 13000 41000 123287      # the start of a training; or coco
    python -m benchmarks.scale table 1000000 9000000        # the same, labels in the cache only

Seconds are processor time. Memory is the peak of the process, and what the measured work adds to it.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import cv2
import numpy as np
from PIL import Image

from benchmarks.tables import print_header, print_row
from boltbox.detector.commands.doctor.examine import brief
from boltbox.detector.commands.doctor.images import difference_hash
from boltbox.detector.commands.doctor.near_duplicates import near_duplicates
from boltbox.detector.commands.doctor.repair import write_coco, write_yolo
from boltbox.detector.data.datamodule import DetectionData
from boltbox.detector.data.dataset_file import DatasetFile
from boltbox.detector.data.datasets import DetectionDataset
from boltbox.detector.data.inputs.tiles import merge, tile_windows
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


def made_hashes(n: int) -> np.ndarray:
    """(n, 8) uint64, of smooth noise. One picture in fifty is an earlier one with more noise, one in
    a hundred is a copy."""
    rng = np.random.default_rng(n)
    made = []
    for i in range(n):
        chance = rng.random()
        seed = rng.integers(i + 1) if chance < 0.03 else i
        picture = cv2.blur(np.random.default_rng(seed).normal(0, 1000, (16, 16)), (2, 2))
        if chance < 0.02:
            picture += rng.normal(0, rng.uniform(0, 250), (16, 16))
        made.append(difference_hash(picture))
    return np.frombuffer(b"".join(made), np.uint64).reshape(n, 8)


def hashes(n: int) -> Callable[[], str]:
    """The search for near duplicates among n images."""
    made = made_hashes(n)
    groups = np.random.default_rng(0).integers(0, 2, n)
    return lambda: f"{len(list(near_duplicates(made, groups)))} found"


def metrics(images: int) -> Callable[[], str]:
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

    def compute() -> str:
        summary = collected.compute().summary
        return f"mAP50-95 {summary['mAP50-95']:.4f}, COCO's AP {summary['coco/AP']:.4f}"

    return compute


def tiles(side: int) -> Callable[[], str]:
    """Merging 1,000 detections for each tile of 640 px of a square image, and for the whole of it,
    as of an image full of small objects."""
    rng = np.random.default_rng(0)
    places = np.concatenate(([[0, 0, side, side]], tile_windows(side, side, 640)))
    windows = places.repeat(1000, 0)
    low = rng.uniform(windows[:, :2], windows[:, 2:])
    high = np.minimum(low + rng.uniform(5, 120, low.shape), windows[:, 2:])
    n = len(windows)
    rows = np.column_stack((low, high, rng.random(n), rng.integers(0, 3, n)))

    def merged() -> str:
        left = merge(rows, windows, (side, side), iou=0.45, max_det=n)
        return f"{len(places)} windows, {n} boxes, {len(left)} after merging"

    return merged


def write_set(root: Path, images: int, is_coco: bool) -> None:
    """A dataset of hard links to 400 small pictures; a 24th of it is for validation."""
    for k in range(400):
        Image.new("RGB", (WIDTH, HEIGHT), (k % 256, k // 256, 0)).save(root / f"{k}.jpg")
    for split, count in (("train2017", images - images // 24), ("val2017", images // 24)):
        (root / "images" / split).mkdir(parents=True)
        names = {str(i): f"{i:012d}.jpg" for i in range(count)}
        for i, name in enumerate(names.values()):
            os.link(root / f"{i % 400}.jpg", root / "images" / split / name)
        labels = made_labels(count, CORNERS if is_coco else 0)
        entries = list(zip(names, labels, strict=True))
        if is_coco:
            write_coco(root / f"annotations/instances_{split}.json", entries, names, NAMES)
        else:
            write_yolo(root / "labels" / split, entries, names)
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
    )
    with mock.patch.object(SplitReader, "_read", return_value=made):
        DatasetFile.read(str(root), needs_val=True).open("train")


def start(dataset: str) -> None:
    """Print what it costs until the keys of the first batch, with the doctor's check."""

    def work() -> str:
        data = DetectionData(dataset, cache="none", workers=0)
        data.setup("fit")
        loader: Any = data.train_dataloader()
        next(iter(loader.batch_sampler))
        begin = time.process_time()
        brief(data.file, data.datasets, 640)
        return f"of which the check {time.process_time() - begin:.2f} s"

    measure("start", work)


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


def measure(name: str, work: Callable[[], str]) -> None:
    """Print the row of a measurement; `work` returns what came of it."""
    before = peak()
    begin = seconds()
    result = work()
    took = seconds() - begin
    print_row(name, f"{took:.2f}", f"{peak():.2f}", f"{peak() - before:+.2f}", result)


def seconds() -> float:
    """Processor time of this process and of those that it started."""
    return sum(os.times()[:4])


def peak() -> float:
    """Of this program, in GB; getrusage would begin with the peak of the one that started it."""
    (kilobytes,) = re.findall(r"VmHWM:\s*(\d+)", Path("/proc/self/status").read_text())
    return int(kilobytes) * 1024 / 1e9


WORKS = {each.__name__: each for each in (hashes, metrics, tiles)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=(*WORKS, "yolo", "coco", "table"))
    parser.add_argument("sizes", type=int, nargs="+")
    options = parser.parse_args()
    print_header("", "seconds", "peak, GB", "more, GB", "result")
    for size in options.sizes:
        if options.what in WORKS:
            measure(f"{options.what} {size}", WORKS[options.what](size))
        else:
            print(f"{options.what}, {size} images:", flush=True)
            measure_starts(options.what, size)


if __name__ == "__main__":
    main()
