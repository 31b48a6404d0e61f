"""The demo data set: drawn on the spot, so that a first training needs neither data nor a network.

    root/data.yaml · root/images/{train,val}/0000.jpg · root/labels/{train,val}/0000.txt

Solid shapes, lit from one side, lie over one another on textured ground. A class has a shape and a
range of hues; size, brightness and direction say nothing, so every augmentation keeps the labels
true. Each image has a seed of its own, (version, split, index), and is the same whatever the
counts.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.random import Generator

from boltbox.detector.system.errors import InputError

NAME = "demo"  # what data.dataset calls it
VERSION = 1  # raise it with any change to what is drawn
TRAIN, VAL = 512, 64  # images
EMPTY = 20  # one training image in this many is without an object
OBJECTS = (2, 5)  # an image, at most: what finds no room is left out
SIZES = (0.18, 0.75)  # longer side of an object over the shorter side of its image, log-uniform
# least share of an object within the image, and of its whole not covered by later ones
INSIDE, VISIBLE = 0.75, 0.75
# of 255, in the channel where an object differs most from the mean of what lies behind it
CONTRAST = 100
# a short training on small images
OPTIONS = {"data.image_size": 128, "data.batch_size": 64, "trainer.max_epochs": 60}
FINE = 3  # objects are drawn this many times larger, then averaged down


def defaults(command: str, dataset: str | None) -> dict[str, Any]:
    """Options of a command on the demo data set, where the user or a configuration says nothing
    else. It is the one that is trained on where none is given.

    Args:
        command: of the command line.
        dataset: `data.dataset`, None if it is not given.

    Returns:
        option -> value; nothing for other data.
    """
    if dataset == NAME or (dataset is None and command in ("fit", "evolve", "benchmark")):
        return {"data.dataset": NAME, **OPTIONS}
    return {}


def announcement(dataset: str | None) -> str:
    """What a training on it prints. dataset: as for `defaults`."""
    why = "" if dataset else ", as no --data.dataset is given"
    options = ", ".join(f"{name} {value}" for name, value in OPTIONS.items())
    return f"the demo dataset{why}; defaults: {options}"


def circle(points: int) -> np.ndarray:
    """Corners of a regular polygon on the unit circle, as complex numbers."""
    return np.exp(2j * np.pi * np.arange(points) / points)


def cross(arm: float) -> np.ndarray:
    """The twelve corners of a plus with arms of length 1 and half-width `arm`."""
    return (
        1j ** np.arange(4)[:, None] * np.array([1 - arm * 1j, 1 + arm * 1j, arm + arm * 1j])
    ).ravel()


# Contours in the complex plane, the outer one first; a second one is a hole.
SHAPES: dict[str, Callable[[Generator], list[np.ndarray]]] = {
    "disc": lambda rng: [circle(90)],
    "ring": lambda rng: [circle(90), circle(90) * rng.uniform(0.5, 0.7)],
    "star": lambda rng: [circle(10) * np.tile([1, rng.uniform(0.4, 0.5)], 5)],
    "triangle": lambda rng: [circle(3)],
    "cross": lambda rng: [cross(rng.uniform(0.26, 0.36))],
}
NAMES = tuple(SHAPES)


def make_demo(root: Path, train: int = TRAIN, val: int = VAL) -> Path:
    """Draws the data set into the folder `root`, unless one is there already, and returns the path
    of its data.yaml.

    It is drawn beside `root` and moved there whole, so nobody ever sees half of it and of two
    processes either may win.
    """
    config = root / "data.yaml"
    if not config.exists():
        root.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{root.name}-", dir=root.parent) as beside:
            new = Path(beside, "new")
            for split, count in enumerate((train, val)):
                _write_split(new, split, count)
            text = f"path: .\ntrain: images/train\nval: images/val\nnames: [{', '.join(NAMES)}]\n"
            (new / "data.yaml").write_text(text)
            try:
                os.replace(new, root)
            except OSError:
                if not config.exists():  # else another process was first
                    raise InputError(f"{root} is not the demo data set: move it away") from None
    return config


def draw_image(
    rng: Generator,
    empty: bool = False,
    objects: tuple[int, int] = OBJECTS,
    sizes: tuple[float, float] = SIZES,
    hues: int = 1,
) -> tuple[np.ndarray, np.ndarray]:
    """One image, (height, width, 3) uint8 BGR, and its labels, (n, 5) float64: class, cx, cy, w, h
    as fractions.

    Args:
        empty: without an object. objects, sizes: see OBJECTS and SIZES.
        hues: classes a shape, told apart by their hue; class = shape * hues + hue.
    """
    height, width = rng.integers(160, 225, 2).tolist()
    if rng.random() < 0.25:
        width = height
    canvas = _ground(height, width, rng)
    # the object seen at each pixel, from 1; 0 is ground
    owner = np.zeros((height, width), np.int64)
    areas, rows = [0], []
    for _ in range(0 if empty else rng.integers(objects[0], objects[1] + 1)):
        kind = int(rng.integers(len(NAMES) * hues))
        side = min(height, width) * float(np.exp(rng.uniform(*np.log(sizes))))
        alpha, light = _stamp(NAMES[kind // hues], side, rng)
        solid = alpha > 0.5
        areas.append(int(solid.sum()))
        h, w = alpha.shape
        for _ in range(20):
            x, y = (
                int(rng.integers(-n // 5, room - n * 4 // 5))
                for n, room in ((w, width), (h, height))
            )
            there = slice(max(y, 0), y + h), slice(max(x, 0), x + w)
            here = slice(max(-y, 0), height - y), slice(max(-x, 0), width - x)
            covered = owner.copy()
            covered[there][solid[here]] = len(areas) - 1
            seen = np.bincount(covered.ravel(), minlength=len(areas))
            if seen[-1] >= INSIDE * areas[-1] and (seen >= VISIBLE * np.array(areas)).all():
                break
        else:
            areas.pop()
            continue
        owner = covered
        colours = _colours(
            kind / (len(NAMES) * hues), rng
        )  # the first that stands out from what lies behind, else the best of them
        far = np.abs(colours - canvas[there][solid[here]].mean(0)).max(1)
        colour = colours[np.minimum(far, CONTRAST).argmax()]
        canvas[there] += alpha[here][..., None] * (colour * light[here][..., None] - canvas[there])
        left, top, w, h = cv2.boundingRect(solid[here].astype(np.uint8))
        cx, cy = max(x, 0) + left + w / 2, max(y, 0) + top + h / 2
        rows.append([kind, cx / width, cy / height, w / width, h / height])
    noise = rng.uniform(0, 7) * rng.standard_normal(canvas.shape, np.float32)
    canvas = cv2.GaussianBlur(canvas, (0, 0), rng.uniform(0.2, 0.8)) + noise
    return canvas.clip(0, 255).astype(np.uint8), np.array(rows).reshape(-1, 5)


def _colours(hue_of_class: float, rng: Generator) -> np.ndarray:
    """Fifty random colours of a class, (50, 3) float64 BGR: near its hue (0 to 1), from pale to
    strong."""
    hue = (hue_of_class + rng.normal(0, 0.02, 50)) % 1 * 180
    hsv = np.stack((hue, rng.uniform(140, 255, 50), rng.uniform(140, 255, 50)), 1).astype(np.uint8)
    return cv2.cvtColor(hsv[None], cv2.COLOR_HSV2BGR)[0].astype(float)


def _write_split(root: Path, split: int, count: int) -> None:
    """Writes images and label files of split 0 (train) or 1 (val); every other empty image has no
    label file."""
    images, labels = (root / kind / ("train", "val")[split] for kind in ("images", "labels"))
    images.mkdir(parents=True)
    labels.mkdir(parents=True)
    for index in range(count):
        rng = np.random.default_rng((VERSION, split, index))
        image, rows = draw_image(rng, empty=split == 0 and index % EMPTY == EMPTY // 2)
        jpeg = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, int(rng.integers(85, 96))])[1]
        jpeg.tofile(images / f"{index:04d}.jpg")
        if len(rows) or index // EMPTY % 2 == 0:
            np.savetxt(labels / f"{index:04d}.txt", rows, "%d" + " %.6f" * 4)


def _stamp(name: str, side: float, rng: Generator) -> tuple[np.ndarray, np.ndarray]:
    """One object, turned and stretched, its longer side `side` pixels: coverage 0..1 and
    brightness, (h, w) float32."""
    turn, stretch = np.exp(2j * np.pi * rng.random(2)) * (1, rng.uniform(0, 0.14))
    turned = [turn * (z + stretch * z.conj()) for z in SHAPES[name](rng)]
    contours = [np.stack([z.real, z.imag], 1) for z in turned]
    extent = np.ptp(contours[0], 0)
    scale = side / extent.max()
    corner = contours[0].min(0) - 1 / scale  # leaves a pixel of margin
    w, h = (int(n) for n in np.ceil(extent * scale) + 2)
    mask = np.zeros((h * FINE, w * FINE), np.uint8)
    scaled = [((xy - corner) * scale * FINE).round().astype(np.int32) for xy in contours]
    cv2.fillPoly(mask, scaled, 1)
    # The surface rises from the edge as a quarter circle of radius `bevel`, from a flat plate to a
    # ball.
    edge = cv2.distanceTransform(mask, cv2.DIST_L2, cv2.DIST_MASK_5)
    bevel = FINE * side * rng.uniform(0.06, 0.5)
    surface = cv2.GaussianBlur(
        bevel * np.sqrt(1 - (1 - np.minimum(edge / bevel, 1)) ** 2), (0, 0), 2 + 0.01 * bevel
    )
    dx, dy = (cv2.Sobel(surface, cv2.CV_32F, i, 1 - i, scale=1 / 8) for i in (1, 0))
    angle = rng.uniform(0, 2 * np.pi)
    # downwards from the lamp, which stands 0.8 high at distance 1
    slope = dx * math.cos(angle) + dy * math.sin(angle)
    lit = np.maximum(0.8 - slope, 0) / np.sqrt(1 + dx**2 + dy**2) / math.hypot(1, 0.8)
    light = 0.6 + 0.5 * lit + rng.uniform(0, 0.8) * lit**12
    light[edge < FINE * max(0.8, 0.02 * side)] *= rng.uniform(0.4, 1)  # the outline
    alpha = cv2.resize(mask.astype(np.float32), (w, h), interpolation=cv2.INTER_AREA)
    return alpha, cv2.resize(light * mask, (w, h), interpolation=cv2.INTER_AREA) / np.maximum(
        alpha, 1e-3
    )


def _ground(height: int, width: int, rng: Generator) -> np.ndarray:
    """A textured image without objects, (height, width, 3) float32 BGR: a muted colour, low
    contrast, some clutter."""
    y, x = np.mgrid[:height, :width].astype(np.float32) / max(height, width)
    octaves = [rng.uniform(-1, 1, (n, n)).astype(np.float32) / n**0.7 for n in (3, 6, 12, 24, 48)]
    clouds = np.sum(
        [cv2.resize(o, (width, height), interpolation=cv2.INTER_CUBIC) for o in octaves], 0
    )
    angle = rng.uniform(0, 2 * np.pi)
    slope = x * math.cos(angle) + y * math.sin(angle)
    stripes = np.sin(2 * np.pi * rng.uniform(3, 25) * slope + rng.uniform(0, 6) * clouds)
    speckle = cv2.GaussianBlur(
        rng.standard_normal((height, width), np.float32), (0, 0), rng.uniform(0.6, 2)
    )
    base = rng.uniform(50, 205) + rng.uniform(-25, 25, 3)
    canvas = np.tile(base, (height, width, 1)).astype(np.float32)
    for field, most, share in (
        (clouds, 70, 0.9),
        (slope, 60, 0.5),
        (stripes, 16, 0.5),
        (speckle, 25, 0.6),
    ):
        if rng.random() < share:
            canvas += field[..., None] * (
                rng.uniform(0.2, 1) * most * rng.uniform(0.6, 1, 3)
            ).astype(np.float32)
    for _ in range(rng.integers(0, 4)):  # faint blobs
        u, v, size = rng.random(3, np.float32)
        blob = np.exp(-((x - u) ** 2 + (y - v) ** 2) / (0.03 + 0.12 * size) ** 2)
        canvas += blob[..., None] * rng.uniform(-30, 30, 3).astype(np.float32)
    for _ in range(rng.integers(0, 5)):  # thin lines
        start, end = ((int(u * width), int(v * height)) for u, v in rng.uniform(-0.1, 1.1, (2, 2)))
        cv2.line(
            canvas, start, end, (base + rng.uniform(-50, 50)).tolist(), int(rng.integers(1, 3))
        )
    return canvas
