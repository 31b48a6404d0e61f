"""Data sets on which recipes have been seen to collapse, drawn by the demo's painter.

    python -m benchmarks.recipes.painted runs/painted
    python -m benchmarks.recipes --data runs/painted/*/data.yaml --recipe ... --folder runs/collapse -- --data.image_size 192

one_class: shapes without names · eighty_classes: 80 classes in 150 images · empty_images: nine of ten have no object · tiny:
sides of 2 to 5 % of the image, up to 20 an image · huge: one object, 60 to 95 % · batch sizes are an option of the study.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
import yaml

from detector.data.demo import NAMES, OBJECTS, SIZES, draw_image


class Painted(NamedTuple):
    """train, val: images · empty: share of the images without an object · hues: see draw_image · named: classes have names;
    else all are one."""

    train: int = 150
    val: int = 60
    objects: tuple[int, int] = OBJECTS
    sizes: tuple[float, float] = SIZES
    empty: float = 0.05
    hues: int = 1
    named: bool = True


SETS = {
    "one_class": Painted(named=False),
    "eighty_classes": Painted(hues=16),
    "empty_images": Painted(train=300, empty=0.9),
    "tiny": Painted(objects=(5, 20), sizes=(0.02, 0.05)),
    "huge": Painted(objects=(1, 1), sizes=(0.6, 0.95)),
}


def paint(name: str, folder: Path) -> Path:
    """Draw one of SETS into a folder; its data.yaml. An image is a function of the set, the split and its number."""
    painted = SETS[name]
    for split, count in enumerate((painted.train, painted.val)):
        images, labels = (folder / kind / ("train", "val")[split] for kind in ("images", "labels"))
        images.mkdir(parents=True, exist_ok=True)
        labels.mkdir(parents=True, exist_ok=True)
        for index in range(count):
            rng = np.random.default_rng(np.random.SeedSequence((list(SETS).index(name), split, index)))
            empty = split == 0 and rng.random() < painted.empty
            image, rows = draw_image(rng, empty, painted.objects, painted.sizes, painted.hues)
            cv2.imwrite(str(images / f"{index:04d}.jpg"), image)
            lines = [f"{int(kind) if painted.named else 0} " + " ".join(f"{x:.6f}" for x in box) + "\n" for kind, *box in rows]
            (labels / f"{index:04d}.txt").write_text("".join(lines))
    names = [f"{shape}-{hue}" for shape in NAMES for hue in range(painted.hues)] if painted.named else ["object"]
    content = {"path": ".", "train": "images/train", "val": "images/val", "names": names}
    (folder / "data.yaml").write_text(yaml.safe_dump(content))
    return folder / "data.yaml"


if __name__ == "__main__":
    for each in SETS:
        print(paint(each, Path(sys.argv[1]) / each))
