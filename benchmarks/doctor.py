"""How long the doctor takes for a large data set, and its short form before a fit.

    python -m benchmarks.doctor --images 10000

Draws images of 640 x 480 px (JPEG, about 100 kB each, no two alike) with YOLO labels in a temporary
folder, a tenth of them for validation, and runs `cli.py doctor` on them in a process of its own.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cv2
import numpy as np

from boltbox.detector.commands.doctor.examine import brief
from boltbox.detector.data.dataset_file import DatasetFile

ROOT = Path(__file__).parents[1]
WIDTH, HEIGHT, CLASSES, OBJECTS = 640, 480, 80, 7  # as many objects as an image of COCO has


def draw(folder: Path, split: str, number: int) -> int:
    """One image and its label file; its size in bytes."""
    rng = np.random.default_rng(number)
    scene = cv2.resize(
        rng.integers(0, 256, (12, 16, 3), np.uint8), (WIDTH, HEIGHT), interpolation=cv2.INTER_CUBIC
    )
    grain = cv2.resize(rng.integers(0, 64, (HEIGHT // 2, WIDTH // 2, 3), np.uint8), (WIDTH, HEIGHT))
    image = cv2.addWeighted(scene, 0.8, grain, 1.0, 0)
    path = folder / f"images/{split}/{number:06d}.jpg"
    assert cv2.imwrite(str(path), image, [cv2.IMWRITE_JPEG_QUALITY, 90])
    centres, sides = rng.uniform(0.3, 0.7, (OBJECTS, 2)), rng.uniform(0.05, 0.5, (OBJECTS, 2))
    rows = zip(rng.integers(0, CLASSES, OBJECTS), *centres.T, *sides.T, strict=True)
    text = "".join(f"{c} {x:.6f} {y:.6f} {w:.6f} {h:.6f}\n" for c, x, y, w, h in rows)
    (folder / f"labels/{split}/{number:06d}.txt").write_text(text)
    return path.stat().st_size


def make(folder: Path, count: int) -> Path:
    """The data.yaml."""
    for split in ("train", "val"):
        (folder / "images" / split).mkdir(parents=True)
        (folder / "labels" / split).mkdir(parents=True)
    with ThreadPoolExecutor() as pool:
        size = sum(pool.map(lambda k: draw(folder, "train" if k % 10 else "val", k), range(count)))
    print(f"{count} images, {size / count / 1000:.0f} kB each")
    names = [f"class{c}" for c in range(CLASSES)]
    (folder / "data.yaml").write_text(f"train: images/train\nval: images/val\nnames: {names}\n")
    return folder / "data.yaml"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=10_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        os.environ["BOLTBOX_CACHE"] = str(folder / "cache")
        source = make(folder / "data", options.images)
        command = [
            sys.executable,
            str(ROOT / "cli.py"),
            "doctor",
            "--data.dataset",
            str(source),
            "--run",
            str(folder / "run"),
        ]
        start = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        seconds = time.perf_counter() - start
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        print(done.stdout)
        print(
            f"exit code {done.returncode}; the last line of progress:"
            f" {done.stderr.splitlines()[-1]}"
        )
        cpu, memory = used.ru_utime + used.ru_stime, used.ru_maxrss / 2**20
        print(f"doctor: {seconds:.1f} s, {cpu:.1f} s of CPU, largest process {memory:.2f} GB")

        file = DatasetFile.read(str(source))
        datasets = {split: file.open(split) for split in file.splits}
        start = time.perf_counter()
        brief(file, datasets, 640)
        print(f"short form: {time.perf_counter() - start:.2f} s")


if __name__ == "__main__":
    main()
