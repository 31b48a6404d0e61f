"""The demo dataset: images drawn on the spot; a first training needs no files and no network.

    root/data.yaml, root/images/{train,val}/0000.jpg, root/labels/{train,val}/0000.txt

Shapes of one colour on a cloudy background. A class has a shape and a hue; size, brightness and
direction say nothing, so every augmentation keeps the labels true. The random generator of an image
is seeded with (version, split, index): an image is the same whatever the number of images.
"""

import os
import tempfile
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.random import Generator

from boltbox.detector.system.errors import InputError

NAME = "demo"  # the value of data.dataset
VERSION = 2  # raise it with any change to what is drawn
EMPTY = 20  # one of this many training images has no object
OBJECTS = (2, 6)  # tries per image, at least and below; an object without room is left out
SIZES = (0.18, 0.75)  # diameter of an object per shorter side of its image, log-uniform
# a short training on small images
OPTIONS = {"data.image_size": 128, "data.batch_size": 64, "trainer.max_epochs": 60}
COMMANDS = ("fit", "evolve", "benchmark", "review")  # that train without a data.dataset
ANNOUNCEMENT = "demo (change it with --data.dataset); defaults: 128 px, batch 64, 60 epochs"

# The corners of each shape: their distances from the centre, at equal angles.
SHAPES = {
    "disc": [1.0] * 60,
    "ring": [1.0] * 60,
    "star": [1, 0.45] * 5,
    "triangle": [1.0] * 3,
    "cross": [1, 1, 0.37] * 4,
}
NAMES = tuple(SHAPES)
HOLE = 0.6  # inner diameter of a ring per outer diameter


def defaults(command: str, dataset: str | None) -> dict[str, Any]:
    """Options of a command on the demo dataset that neither the user nor a configuration sets.

    Without `data.dataset`, the commands that train use the demo dataset.

    Args:
        command: of the command line.
        dataset: `data.dataset`, None if it is not set.

    Returns:
        Values by option; empty for other data.
    """
    if dataset == NAME or (dataset is None and command in COMMANDS):
        return {"data.dataset": NAME} | OPTIONS
    return {}


def make_demo(root: Path, train: int = 512, val: int = 64) -> Path:
    """Draw the dataset, unless it is there already.

    It is drawn beside `root` and then moved: nobody sees half of it, and of two processes either
    may be first.

    Args:
        root: the folder of the dataset.
        train: number of training images.
        val: number of validation images.

    Returns:
        The path of its data.yaml.

    Raises:
        InputError: the folder holds something else.
    """
    config = root / "data.yaml"
    if config.exists():
        return config
    root.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{root.name}-", dir=root.parent) as folder:
        new = Path(folder, "new")
        _write_split(new, "train", train)
        _write_split(new, "val", val)
        text = f"path: .\ntrain: images/train\nval: images/val\nnames: [{', '.join(NAMES)}]\n"
        (new / "data.yaml").write_text(text)
        try:
            os.replace(new, root)
        except OSError:
            if not config.exists():  # else another process was first
                raise InputError(f"{root} is not the demo dataset: move it away") from None
    return config


def _write_split(root: Path, split: str, count: int) -> None:
    """Images and label files; every other empty image has no label file."""
    images = root / "images" / split
    labels = root / "labels" / split
    images.mkdir(parents=True)
    labels.mkdir(parents=True)
    for index in range(count):
        rng = np.random.default_rng((VERSION, split == "val", index))
        empty = split == "train" and index % EMPTY == EMPTY // 2
        image, rows = draw_image(rng, empty)
        # OpenCV itself cannot write to every path
        _, content = cv2.imencode(".jpg", image)
        (images / f"{index:04d}.jpg").write_bytes(content.tobytes())
        if not empty or index // EMPTY % 2 == 0:
            np.savetxt(labels / f"{index:04d}.txt", rows, "%d" + " %.6f" * 4)


def draw_image(rng: Generator, empty: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """One image with its labels.

    Args:
        rng: decides everything.
        empty: without an object.

    Returns:
        (H, W, 3) uint8 BGR, and (n, 5) float64: class, cx, cy, w, h as fractions of W, H.
    """
    height, width = rng.integers(160, 225, 2).tolist()
    image = _background(height, width, rng)
    occupied = np.zeros((height, width), bool)
    rows = []
    for _ in range(0 if empty else rng.integers(*OBJECTS)):
        number = int(rng.integers(len(NAMES)))
        diameter = min(height, width) * np.exp(rng.uniform(*np.log(SIZES)))
        contours = _contours(NAMES[number], diameter / 2, rng)
        left, top, w, h = cv2.boundingRect(contours[0])
        for _ in range(20):  # tries
            x = int(rng.integers(width - w))
            y = int(rng.integers(height - h))
            place = occupied[y : y + h, x : x + w]
            if not place.any():
                place[:] = True
                colour = _colour(number / len(NAMES), rng)
                cv2.fillPoly(image, contours, colour, offset=(x - left, y - top))
                centre = ((x + w / 2) / width, (y + h / 2) / height)
                rows.append((number, *centre, w / width, h / height))
                break
    noise = rng.normal(0, rng.uniform(0, 8), image.shape)
    blurred = cv2.GaussianBlur(image, (0, 0), rng.uniform(0.3, 0.8))
    return (blurred + noise).clip(0, 255).astype(np.uint8), np.array(rows).reshape(-1, 5)


def _background(height: int, width: int, rng: Generator) -> np.ndarray:
    """(height, width, 3) float64: clouds, large and small, of muted colours."""
    image = np.full((height, width, 3), rng.uniform(50, 205))
    for cells in (3, 8, 24):
        clouds = rng.uniform(-45, 45, (cells, cells, 3)) / cells**0.4
        image += cv2.resize(clouds, (width, height), interpolation=cv2.INTER_CUBIC)
    return image


def _contours(name: str, radius: float, rng: Generator) -> list[np.ndarray]:
    """The outline of a shape in any direction, then that of its hole: (corners, 2) int32 xy."""
    distances = np.array(SHAPES[name])
    angles = 2 * np.pi * (np.arange(len(distances)) / len(distances) + rng.random())
    outline = radius * np.stack((distances * np.cos(angles), distances * np.sin(angles)), 1)
    contours = [outline, outline * HOLE] if name == "ring" else [outline]
    return [contour.round().astype(np.int32) for contour in contours]


def _colour(hue: float, rng: Generator) -> list[int]:
    """BGR near a hue (0 to 1), from pale to strong."""
    degrees = (hue + rng.normal(0, 0.02)) % 1 * 180  # OpenCV counts half degrees
    hsv = np.array([[[degrees, rng.uniform(140, 255), rng.uniform(140, 255)]]], np.uint8)
    return cv2.cvtColor(hsv, cv2.COLOR_HSV2BGR)[0, 0].tolist()
