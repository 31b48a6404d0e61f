"""Data sets on which recipes have been seen to collapse, drawn by the demo's painter.

    python -m benchmarks.recipes.painted runs/painted python -m benchmarks.recipes --data
    runs/painted/*/data.yaml --recipe ... --folder runs/collapse -- --data.image_size 192

one_class: shapes without names · eighty_classes: 80 classes in 150 images · empty_images: nine of
ten have no object · tiny: sides of 2 to 5 % of the image, up to 20 an image · huge: one object, 60
to 95 % · text_lines: pages of lines of text, close to one another and up to 20 times as wide as
high · batch sizes are an option of the study.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
import yaml

from boltbox.detector.data.demo import NAMES, OBJECTS, SIZES, draw_image


class Painted(NamedTuple):
    """train, val: images · empty: share of the images without an object · hues: see draw_image ·
    named: classes have names; else all are one · text: see draw_page, instead of draw_image."""

    train: int = 150
    val: int = 60
    objects: tuple[int, int] = OBJECTS
    sizes: tuple[float, float] = SIZES
    empty: float = 0.05
    hues: int = 1
    named: bool = True
    text: bool = False


SETS = {
    "one_class": Painted(named=False),
    "eighty_classes": Painted(hues=16),
    "empty_images": Painted(train=300, empty=0.9),
    "tiny": Painted(objects=(5, 20), sizes=(0.02, 0.05)),
    "huge": Painted(objects=(1, 1), sizes=(0.6, 0.95)),
    "text_lines": Painted(named=False, text=True),
}


def draw_page(rng: np.random.Generator, empty: bool) -> tuple[np.ndarray, np.ndarray]:
    """Lines of text on textured ground, each an object of class 0; as draw_image."""
    image, rows = draw_image(rng, empty=True)[0], []
    height, width = image.shape[:2]
    font, size = cv2.FONT_HERSHEY_SIMPLEX, float(rng.uniform(0.22, 0.4))
    ink = tuple(
        int(x)
        for x in (image.mean((0, 1)) + rng.choice((-1, 1)) * rng.uniform(60, 110)).clip(0, 255)
    )
    left, y = int(rng.integers(4, 20)), int(rng.integers(12, 30))
    while y < height - 4 and not empty:
        line = ""
        while rng.random() < 0.9:
            longer = (
                line + "".join(rng.choice(list("abcdefghiklmnoprstuvw"), rng.integers(2, 9))) + " "
            )
            if left + cv2.getTextSize(longer, font, size, 1)[0][0] > width - 4:
                break
            line = longer
        if line:
            canvas = np.zeros((height, width), np.uint8)
            cv2.putText(canvas, line, (left, y), font, size, 255, 1, cv2.LINE_AA)
            cv2.putText(image, line, (left, y), font, size, ink, 1, cv2.LINE_AA)
            x1, y1, w, h = cv2.boundingRect((canvas > 127).astype(np.uint8))
            rows.append([0, (x1 + w / 2) / width, (y1 + h / 2) / height, w / width, h / height])
        y += int(cv2.getTextSize("bg", font, size, 1)[0][1] * rng.uniform(1.6, 2.6)) + 1
    return image, np.array(rows).reshape(-1, 5)


def paint(name: str, folder: Path) -> Path:
    """Draw one of SETS into a folder; its data.yaml. An image is a function of the set, the split
    and its number."""
    painted = SETS[name]
    for split, count in enumerate((painted.train, painted.val)):
        images, labels = (folder / kind / ("train", "val")[split] for kind in ("images", "labels"))
        images.mkdir(parents=True, exist_ok=True)
        labels.mkdir(parents=True, exist_ok=True)
        for index in range(count):
            rng = np.random.default_rng(
                np.random.SeedSequence((list(SETS).index(name), split, index))
            )
            empty = split == 0 and rng.random() < painted.empty
            if painted.text:
                image, rows = draw_page(rng, empty)
            else:
                image, rows = draw_image(rng, empty, painted.objects, painted.sizes, painted.hues)
            cv2.imwrite(str(images / f"{index:04d}.jpg"), image)
            lines = [
                f"{int(kind) if painted.named else 0} " + " ".join(f"{x:.6f}" for x in box) + "\n"
                for kind, *box in rows
            ]
            (labels / f"{index:04d}.txt").write_text("".join(lines))
    names = (
        [f"{shape}-{hue}" for shape in NAMES for hue in range(painted.hues)]
        if painted.named
        else ["object"]
    )
    content = {"path": ".", "train": "images/train", "val": "images/val", "names": names}
    (folder / "data.yaml").write_text(yaml.safe_dump(content))
    return folder / "data.yaml"


if __name__ == "__main__":
    for each in SETS:
        print(paint(each, Path(sys.argv[1]) / each))
