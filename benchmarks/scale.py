"""What grows with the number of images, or with their size: the doctor's search for near
duplicates, predictions.json, the metrics of a validation, and merging the detections of tiles.

    python -m benchmarks.scale hashes 10000 123000 1000000 [--all]
    python -m benchmarks.scale predictions 20000
    python -m benchmarks.scale metrics 5000
    python -m benchmarks.scale tiles 2500 5000 10000

Seconds are processor time of this process, memory is its peak.
"""

import argparse
import resource
import tempfile
import time
from pathlib import Path
from unittest.mock import patch

import numpy as np

from boltbox.detector.commands.doctor import near_duplicates as search
from boltbox.detector.data.inputs.tiles import merge, tile_windows
from boltbox.detector.data.sample import Labels, SourceImage
from boltbox.detector.evaluation.metrics import DetectionMetrics
from boltbox.detector.report.prediction_files import Output, PredictionFiles

BLOCK = 50000  # pictures made at a time
ROWS = 100  # detections per image


def made_hashes(n: int) -> np.ndarray:
    """(n, 8) uint64, hashes as `difference_hash` makes them of smooth noise. One in fifty is of an
    earlier picture with noise, one in a hundred is a copy."""
    rng = np.random.default_rng(n)
    blocks = []
    for start in range(0, n, BLOCK):
        pictures = rng.normal(size=(min(BLOCK, n - start), 17, 17)).astype(np.float32)
        pictures = pictures[:, 1:] + pictures[:, :-1]
        pictures = pictures[:, :, 1:] + pictures[:, :, :-1]
        changed = rng.integers(0, len(pictures), (len(pictures) // 50, 2))
        noise = rng.normal(size=(len(changed), 16, 16)) * rng.uniform(0, 1, (len(changed), 1, 1))
        pictures[changed[:, 0]] = pictures[changed[:, 1]] + noise
        copies = rng.integers(0, len(pictures), (len(pictures) // 100, 2))
        pictures[copies[:, 0]] = pictures[copies[:, 1]]
        down = np.diff(pictures, axis=1) > 0
        right = np.diff(pictures, axis=2) > 0
        count = len(pictures)
        bits = np.concatenate((down.reshape(count, -1), right.reshape(count, -1)), axis=1)
        blocks.append(np.pad(np.packbits(bits, axis=1), ((0, 0), (0, 4))).view(np.uint64))
    return np.concatenate(blocks)


def measure_hashes(n: int, compares_all: bool) -> None:
    """Print the seconds of a search among n hashes, and those of comparing each with each."""
    hashes = made_hashes(n)
    groups = np.random.default_rng(0).integers(0, 2, n)
    started = time.process_time()
    found = list(search.near_duplicates(hashes, groups))
    seconds = time.process_time() - started
    line = f"{n} hashes: {len(found)} found, {seconds:.2f} s, peak {peak():.2f} GB"
    if compares_all:
        started = time.process_time()
        with patch.object(search, "_most_similar", search._compare_all):
            expected = list(search.near_duplicates(hashes, groups))
        seconds = time.process_time() - started
        line += f"; each with each: {seconds:.2f} s, equal: {found == expected}"
    print(line, flush=True)


def measure_predictions(images: int) -> None:
    """Print what predictions.json of so many images costs."""
    rng = np.random.default_rng(0)
    names = [f"class {k}" for k in range(80)]
    output = Output(images=False, labels=False, json=True)
    before = peak()
    started = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        files = PredictionFiles(Path(folder), names, output)
        for i in range(images):
            rows = rng.uniform(0, 640, (ROWS, 6))
            rows[:, 4] = rng.uniform(0, 1, ROWS)
            rows[:, 5] = rng.integers(0, 80, ROWS)
            files.add(SourceImage(f"{i:012d}", f"{i:012d}.jpg"), rows, 640, 640)
        files.close()
        size = (Path(folder) / "predictions.json").stat().st_size / 1e9
    seconds = time.process_time() - started
    print(f"{images} images: {size:.2f} GB, {seconds:.1f} s, +{peak() - before:.2f} GB")


def made_boxes(rng: np.random.Generator, n: int) -> np.ndarray:
    """(n, 4) of COCO's sizes, in an image of 640 x 640."""
    side = np.exp(rng.normal(4, 1, (n, 2))).clip(4, 600)
    low = rng.uniform(0, 1, (n, 2)) * (640 - side)
    return np.concatenate((low, low + side), axis=1).astype(np.float32)


def measure_metrics(images: int) -> None:
    """Print what the metrics of so many images with 300 detections and 7 labels of 80 classes cost;
    two detections of five are near a label."""
    rng = np.random.default_rng(0)
    metrics = DetectionMetrics(80)
    for i in range(images):
        boxes = made_boxes(rng, rng.poisson(7.3))
        classes = rng.integers(0, 80, len(boxes))
        area = (boxes[:, 2:] - boxes[:, :2]).prod(1)
        labels = Labels(boxes, classes, [], rng.random(len(boxes)) < 0.01, area, 640, 640)
        rows = np.column_stack((made_boxes(rng, 300), rng.random(300), rng.integers(0, 80, 300)))
        if len(boxes):
            of_label = rng.integers(0, len(boxes), 120)
            rows[:120, :4] = boxes[of_label] + rng.normal(0, 5, (120, 4))
            rows[:120, 5] = classes[of_label]
        rows = rows[np.argsort(-rows[:, 4])].astype(np.float32)
        metrics.update([rows], [labels], [i])
    before = peak()
    started = time.process_time()
    summary = metrics.compute().summary
    seconds = time.process_time() - started
    line = f"{images} images: {seconds:.2f} s, +{peak() - before:.2f} GB"
    print(f"{line}, mAP50-95 {summary['mAP50-95']:.4f}, COCO's AP {summary['coco/AP']:.4f}")


def measure_tiles(side: int) -> None:
    """Print the seconds of merging 1,000 detections for each tile of 640 px of a square image, and
    for the whole of it, as of an image full of small objects."""
    rng = np.random.default_rng(0)
    places = np.concatenate(([[0, 0, side, side]], tile_windows(side, side, 640)))
    windows = places.repeat(1000, 0)
    low = rng.uniform(windows[:, :2], windows[:, 2:])
    boxes = np.concatenate((low, low + rng.uniform(5, 120, low.shape)), 1)
    boxes = boxes.clip(np.tile(windows[:, :2], 2), np.tile(windows[:, 2:], 2))
    rows = np.column_stack((boxes, rng.uniform(0, 1, len(boxes)), rng.integers(0, 3, len(boxes))))
    before = peak()
    started = time.process_time()
    merged = merge(rows, windows, (side, side), iou=0.45, max_det=len(rows))
    seconds = time.process_time() - started
    memory = f"+{peak() - before:.2f} GB"
    print(f"{len(places)} windows, {len(rows)} boxes: {len(merged)}, {seconds:.2f} s, {memory}")


def peak() -> float:
    """Of this process, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("hashes", "predictions", "metrics", "tiles"))
    parser.add_argument("sizes", type=int, nargs="+")
    parser.add_argument("--all", action="store_true", help="compare each hash with each, too")
    options = parser.parse_args()
    for size in options.sizes:
        if options.what == "hashes":
            measure_hashes(size, options.all)
        elif options.what == "predictions":
            measure_predictions(size)
        elif options.what == "metrics":
            measure_metrics(size)
        else:
            measure_tiles(size)


if __name__ == "__main__":
    main()
