"""Data sets on which recipes have been seen to collapse, drawn by the demo's painter.

    python -m benchmarks.recipes.painted runs/painted python -m benchmarks.recipes --data
    runs/painted/*/data.yaml --recipe ... --folder runs/collapse -- --data.image_size 192

one_class: shapes without names · eighty_classes: 80 classes in 150 images · empty_images: nine of
ten have no object · tiny: sides of 2 to 5 % of the image, up to 20 an image · huge: one object, 60
to 95 % · text_lines: pages of lines of text, close to one another and up to 20 times as wide as
high · pages: documents of titles, paragraphs, lists, tables and figures, nothing like a photograph ·
batch sizes are an option of the study.
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
    named: classes have names; else all are one · text: see draw_page, instead of draw_image · blocks:
    see draw_blocks."""

    train: int = 150
    val: int = 60
    objects: tuple[int, int] = OBJECTS
    sizes: tuple[float, float] = SIZES
    empty: float = 0.05
    hues: int = 1
    named: bool = True
    text: bool = False
    blocks: bool = False


FONT = cv2.FONT_HERSHEY_SIMPLEX
SETS = {
    "one_class": Painted(named=False),
    "eighty_classes": Painted(hues=16),
    "empty_images": Painted(train=300, empty=0.9),
    "tiny": Painted(objects=(5, 20), sizes=(0.02, 0.05)),
    "huge": Painted(objects=(1, 1), sizes=(0.6, 0.95)),
    "text_lines": Painted(named=False, text=True),
    "pages": Painted(train=120, blocks=True),
}
BLOCKS = ("text", "title", "list", "table", "figure")


def draw_page(rng: np.random.Generator, empty: bool) -> tuple[np.ndarray, np.ndarray]:
    """Lines of text on textured ground, each an object of class 0; as draw_image."""
    image, rows = draw_image(rng, empty=True)[0], []
    height, width = image.shape[:2]
    font, size = FONT, float(rng.uniform(0.22, 0.4))
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


def draw_blocks(rng: np.random.Generator, empty: bool) -> tuple[np.ndarray, np.ndarray]:
    """A printed page, 480 x 640 px, of one or two columns of blocks; objects are the blocks, classes
    those of BLOCKS; as draw_image."""
    width, height, rows = 480, 640, []
    image = np.full((height, width, 3), rng.integers(225, 256), np.uint8)
    columns, margin = int(rng.integers(1, 3)), int(rng.integers(24, 48))
    gutter = int(rng.integers(12, 24))
    column = (width - 2 * margin - gutter * (columns - 1)) // columns
    size, ink = float(rng.uniform(0.26, 0.36)), int(rng.integers(0, 60))

    def write(left: int, right: int, base: int, scale: float, weight: int) -> None:
        """A line of words that ends before `right`."""
        while True:
            word = "".join(rng.choice(list("abcdefghiklmnoprstuvw"), rng.integers(2, 9)))
            end = left + cv2.getTextSize(word, FONT, scale, weight)[0][0]
            if end > right:
                return
            place = (left, base)
            cv2.putText(image, word, place, FONT, scale, (ink,) * 3, weight, cv2.LINE_AA)
            left = end + int(14 * scale)

    for x in (margin + (column + gutter) * n for n in range(0 if empty else columns)):
        y = int(rng.integers(margin, margin + 60))
        while y < height - margin - 40:
            kind = int(rng.choice(len(BLOCKS), p=(0.4, 0.25, 0.12, 0.1, 0.13)))
            bottom = min(y + int(rng.integers(50, 160)), height - margin)
            before = image.copy()
            if BLOCKS[kind] == "figure":
                cell = draw_image(rng, empty=False)[0]
                image[y:bottom, x : x + column] = cv2.resize(cell, (column, bottom - y))
            elif BLOCKS[kind] == "title":
                scale = size * float(rng.uniform(1.3, 1.9))
                write(x, x + int(column * rng.uniform(0.4, 1)), y + int(24 * scale), scale, 2)
            else:
                step, indent = int(44 * size), 0
                if BLOCKS[kind] == "list":
                    indent = int(rng.integers(10, 24))
                for base in range(y + step, bottom, step):
                    if BLOCKS[kind] == "table":
                        for cell_x in range(x, x + column - 40, column // 4):
                            write(cell_x + 2, cell_x + column // 4 - 6, base, size * 0.8, 1)
                        cv2.line(image, (x, base + 4), (x + column, base + 4), (ink,) * 3, 1)
                    else:
                        if indent:
                            cv2.circle(image, (x + 4, base - 3), 2, (ink,) * 3, -1)
                        last = base + step >= bottom
                        end = x + int(column * (rng.uniform(0.3, 0.9) if last or indent else 1))
                        write(x + indent, end, base, size, 1)
            drawn = (image != before).any(2).astype(np.uint8)
            if drawn.any():
                x1, y1, w, h = cv2.boundingRect(drawn)
                center = (x1 + w / 2) / width, (y1 + h / 2) / height
                rows.append([kind, *center, w / width, h / height])
                y = y1 + h
            y += int(rng.integers(10, 26))
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
            if painted.text or painted.blocks:
                image, rows = (draw_page if painted.text else draw_blocks)(rng, empty)
            else:
                image, rows = draw_image(rng, empty, painted.objects, painted.sizes, painted.hues)
            cv2.imwrite(str(images / f"{index:04d}.jpg"), image)
            lines = [
                f"{int(kind) if painted.named else 0} " + " ".join(f"{x:.6f}" for x in box) + "\n"
                for kind, *box in rows
            ]
            (labels / f"{index:04d}.txt").write_text("".join(lines))
    names = (
        list(BLOCKS)
        if painted.blocks
        else (
            [f"{shape}-{hue}" for shape in NAMES for hue in range(painted.hues)]
            if painted.named
            else ["object"]
        )
    )
    content = {"path": ".", "train": "images/train", "val": "images/val", "names": names}
    (folder / "data.yaml").write_text(yaml.safe_dump(content))
    return folder / "data.yaml"


if __name__ == "__main__":
    for each in SETS:
        print(paint(each, Path(sys.argv[1]) / each))
