"""Whole images against tiles, at the same size of the network's input: large pages with many small
boxes.

    python -m benchmarks.tiled [EPOCHS]

Draws pages like receipts (1280 px, 120 boxes about 10 to 65 px long), trains one small detector on
whole pages and one on crops at full resolution, for the same number of images and of steps, and
evaluates both on the same unseen pages, whole and tiled, by the command `validate`. Everything lies
in a temporary folder.
"""

import json
import sys
import tempfile
import time
from pathlib import Path

import cv2
import numpy as np
from numpy.random import Generator

import cli
from boltbox.detector.model.boxes import xyxy_to_cxcywhn

SIDE, INPUT, ROWS = 1280, 320, 30  # pixels of a page and of the network's input; lines of a page
TRAIN, VAL = 64, 8  # pages
NAMES = ("word", "amount", "tick")
LETTERS = np.array(list("abcdefghijklmnopqrstuvwxyz"))


def page(rng: Generator) -> tuple[np.ndarray, np.ndarray]:
    """A page (SIDE, SIDE, 3) uint8 BGR and its boxes (n, 5): class, x1, y1, x2, y2 in pixels."""
    canvas = np.full((SIDE, SIDE), rng.integers(200, 250), np.uint8)
    boxes = []
    for line in range(ROWS):
        y = 40 + line * (SIDE - 60) // ROWS + int(rng.integers(0, 12))
        left = int(rng.integers(20, 120))
        size = int(rng.integers(8, 13))
        cv2.rectangle(canvas, (left, y - size), (left + size, y), int(rng.integers(0, 90)), 2)
        boxes.append((2, left - 1, y - size - 1, left + size + 2, y + 2))
        for column, start in enumerate((left + 120, left + 420, left + 800)):
            start += int(rng.integers(0, 120))
            digits = column == 2
            word = (
                f"{rng.integers(100, 9999) / 100:.2f}"
                if digits
                else "".join(rng.choice(LETTERS, rng.integers(3, 8)))
            )
            boxes.append((int(digits), *_write(canvas, word, start, y, rng)))
    noise = rng.normal(0, 8, canvas.shape)
    grey = cv2.GaussianBlur((canvas + noise).clip(0, 255).astype(np.uint8), (0, 0), 0.6)
    return cv2.cvtColor(grey, cv2.COLOR_GRAY2BGR), np.array(boxes, float)


def _write(
    canvas: np.ndarray, word: str, x: int, y: int, rng: Generator
) -> tuple[int, int, int, int]:
    """The box around a word once it is drawn."""
    height, width = 30, 90
    ink = np.zeros((height, width), np.uint8)
    cv2.putText(
        ink, word, (2, 20), cv2.FONT_HERSHEY_SIMPLEX, rng.uniform(0.35, 0.5), 255, 1, cv2.LINE_AA
    )
    there = canvas[y - 20 : y + 10, x : x + width]
    share = ink[: there.shape[0], : there.shape[1]] / 255
    there[:] = there * (1 - share) + rng.integers(0, 90) * share
    left, top, width, height = cv2.boundingRect((share > 0.24).astype(np.uint8))
    return x + left, y - 20 + top, x + left + width, y - 20 + top + height


def crop(image: np.ndarray, boxes: np.ndarray, rng: Generator) -> tuple[np.ndarray, np.ndarray]:
    """INPUT x INPUT pixels of a page; boxes that lie in there by more than half."""
    x, y = rng.integers(0, SIDE - INPUT, 2)
    moved = boxes.copy()
    moved[:, 1:] = (boxes[:, 1:] - (x, y, x, y)).clip(0, INPUT)
    area = (moved[:, 3] - moved[:, 1]) * (moved[:, 4] - moved[:, 2])
    whole = (boxes[:, 3] - boxes[:, 1]) * (boxes[:, 4] - boxes[:, 2])
    return image[y : y + INPUT, x : x + INPUT], moved[area > whole / 2]


def save(folder: Path, split: str, number: int, image: np.ndarray, boxes: np.ndarray) -> None:
    for kind in ("images", "labels"):
        (folder / kind / split).mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(folder / "images" / split / f"{number:04d}.png"), image)
    height, width = image.shape[:2]
    rows = np.column_stack((boxes[:, :1], xyxy_to_cxcywhn(boxes[:, 1:], width, height)))
    text = "".join(f"{int(c)} {x:.6f} {y:.6f} {w:.6f} {h:.6f}\n" for c, x, y, w, h in rows)
    (folder / "labels" / split / f"{number:04d}.txt").write_text(text)


def make(root: Path) -> None:
    """Two data sets with the same pages: `pages`, and `crops` (one of each page), whose val split
    is the pages'."""
    rng = np.random.default_rng(0)
    for number in range(TRAIN + VAL):
        split = "train" if number < TRAIN else "val"
        image, boxes = page(rng)
        save(root / "pages", split, number, image, boxes)
        if split == "train":
            save(root / "crops", split, number, *crop(image, boxes, rng))
    for name, val in (("pages", "images/val"), ("crops", str(root / "pages/images/val"))):
        content = {
            "path": str(root / name),
            "train": "images/train",
            "val": val,
            "names": list(NAMES),
        }
        (root / f"{name}.yaml").write_text(json.dumps(content))


def main() -> None:
    epochs = sys.argv[1] if len(sys.argv) > 1 else "40"
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        make(root)
        quiet = [
            "--data.workers",
            "0",
            "--trainer.enable_progress_bar",
            "false",
            "--trainer.accelerator",
            "cpu",
        ]
        table = []
        for trained in ("pages", "crops"):
            run = root / f"fit-{trained}"
            options = [
                "--data.dataset",
                str(root / f"{trained}.yaml"),
                "--data.image_size",
                str(INPUT),
            ]
            options += [
                "--data.batch_size",
                "8",
                "--model.network.width_multiple",
                "0.125",
                "--model.optim.nominal_batch_size",
                "8",
            ]
            options += [
                "--data.augment.fliplr",
                "0",
                "--trainer.limit_val_batches",
                "1",
                "--trainer.precision",
                "32-true",
                "--data.cache",
                "ram",
            ]
            started = time.perf_counter()
            cli.main(["fit", *options, *quiet, "--trainer.max_epochs", epochs, "--run", str(run)])
            took = time.perf_counter() - started
            for tiled in ("null", "320"):
                out = root / f"validate-{trained}-{tiled}"
                checkpoint = ["--ckpt_path", str(run / "checkpoints/last.ckpt"), "--run", str(out)]
                pages = ["--data.dataset", str(root / "pages.yaml"), "--data.tile_size", tiled]
                started = time.perf_counter()
                cli.main(["validate", *checkpoint, *pages, *quiet])
                figures = json.loads((out / "metrics.json").read_text())
                each = (time.perf_counter() - started) / VAL
                table.append(
                    (
                        trained,
                        tiled,
                        figures["P"],
                        figures["R"],
                        figures["mAP50"],
                        figures["mAP50-95"],
                        each,
                        took,
                    )
                )
    print(
        "\n| trained on | evaluated | P | R | mAP50 | mAP50-95 | s a page | training, s"
        " |\n|---|---|---|---|---|---|---|---|"
    )
    for trained, tiled, *numbers, each, took in table:
        cells = " | ".join(f"{n:.3f}" for n in numbers)
        print(
            f"| {trained} | {'whole' if tiled == 'null' else 'tiled'} | {cells} | {each:.2f} |"
            f" {took:.0f} |"
        )


if __name__ == "__main__":
    main()
