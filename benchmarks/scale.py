"""What grows with the number of images: the doctor's search for near duplicates, and
predictions.json.

    python -m benchmarks.scale hashes 10000 123000 1000000 [--all]
    python -m benchmarks.scale predictions 20000

Seconds are processor time of this process, memory is its peak.
"""

import argparse
import resource
import tempfile
import time
from pathlib import Path

import numpy as np

from boltbox.detector.commands.doctor.near_duplicates import compare_all, near_duplicates
from boltbox.detector.data.sample import SourceImage
from boltbox.detector.inference.detections import Style
from boltbox.detector.report.prediction_files import PredictionFiles

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
    found = list(near_duplicates(hashes, groups))
    seconds = time.process_time() - started
    line = f"{n} hashes: {len(found)} found, {seconds:.2f} s, peak {peak():.2f} GB"
    if compares_all:
        started = time.process_time()
        expected = list(compare_all(hashes, groups))
        seconds = time.process_time() - started
        line += f"; each with each: {seconds:.2f} s, equal: {found == expected}"
    print(line, flush=True)


def measure_predictions(images: int) -> None:
    """Print what predictions.json of so many images costs."""
    rng = np.random.default_rng(0)
    names = [f"class {k}" for k in range(80)]
    style = Style(True, True, None)
    before = peak()
    started = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        files = PredictionFiles(Path(folder), names, False, None, True, False, False, True, style)
        for i in range(images):
            rows = rng.uniform(0, 640, (ROWS, 6))
            rows[:, 4] = rng.uniform(0, 1, ROWS)
            rows[:, 5] = rng.integers(0, 80, ROWS)
            files.add(SourceImage(f"{i:012d}", f"{i:012d}.jpg"), rows, 640, 640)
        files.close()
        size = (Path(folder) / "predictions.json").stat().st_size / 1e9
    seconds = time.process_time() - started
    print(f"{images} images: {size:.2f} GB, {seconds:.1f} s, +{peak() - before:.2f} GB")


def peak() -> float:
    """Of this process, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("hashes", "predictions"))
    parser.add_argument("sizes", type=int, nargs="+")
    parser.add_argument("--all", action="store_true", help="compare each hash with each, too")
    options = parser.parse_args()
    for size in options.sizes:
        if options.what == "hashes":
            measure_hashes(size, options.all)
        else:
            measure_predictions(size)


if __name__ == "__main__":
    main()
