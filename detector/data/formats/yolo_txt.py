"""YOLO text labels: for `.../images/a/b.jpg` the file `.../labels/a/b.txt`, a line an object:
`class cx cy w h`, or `class x y x y ...` for a polygon, as fractions of the image."""

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from boltbox.detector.data.datasets import read_lines, too_many
from boltbox.detector.data.formats.format import (
    NO_BOX,
    Entry,
    ImageLabels,
    LabelObject,
    RepairedImage,
)
from boltbox.detector.data.formats.per_image import PerImageFormat
from boltbox.detector.model.boxes import clip_xyxy, cxcywhn_to_xyxy, xyxy_to_cxcywh, xyxy_to_cxcywhn
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.text_file import exists, is_dir, read_text

# fraction of the image; thinner, and the two edges of a box become one in float32
LEAST_SIDE = 1e-6


class YoloText(PerImageFormat):
    """A split is a folder of images, or a text file that lists images ("./" relative to the
    list)."""

    wants = "give a folder of images, or a text file that lists them"
    suffix = ".txt"
    in_fractions = True

    @classmethod
    def recognises(cls, root: Path, path: Path) -> bool:
        return True  # it is asked last

    @classmethod
    def label_path(cls, image: str | Path) -> Path:
        """The last folder `images` becomes `labels`, the suffix .txt."""
        parts = list(Path(image).with_suffix(".txt").parts)
        for i in range(len(parts) - 2, -1, -1):
            if parts[i] == "images":
                parts[i] = "labels"
                break
        return Path(*parts)

    def listed_images(self, source: Path) -> list[Path]:
        # an image is the first of its places that exists; one that comes later may come before it
        found, elsewhere = [], []
        for line in read_lines(source):
            places = [source.parent / line, self.split.root / line, Path(line)]
            k = next((i for i, p in enumerate(places) if exists(p)), 0)
            found.append(places[k])
            elsewhere += places[:k] if exists(places[k]) else places[1:]
        self.split.origins.note(elsewhere)
        return found

    def read(self, entry: Entry, height: int, width: int) -> ImageLabels | None:
        if not exists(entry.file) or is_dir(entry.file):
            return None
        text = read_text(entry.file, replace=True)  # bytes that are no UTF-8 become no number
        if problem := too_many(text.count("\n")):
            raise InputError(f"{entry.file}: {problem}")
        lines = list(parse_yolo(text))
        with np.errstate(over="ignore"):
            boxes = cxcywhn_to_xyxy(
                np.array([line.box for line in lines], np.float32).reshape(-1, 4), width, height
            ).tolist()
        side = np.array((width, height), np.float32)
        objects = []
        for line, box in zip(lines, boxes, strict=True):
            polygons = [part * side for part in line.polygons]
            objects.append(
                LabelObject(
                    f"line {line.number}",
                    line.class_number,
                    box,
                    line.problem,
                    polygons,
                    raw=line.text,
                )
            )
        return ImageLabels(objects)

    def write(self, folder: Path, images: Sequence[RepairedImage]) -> tuple[str, list[str]]:
        for image in images:
            if image.labels is None:
                continue
            target = self.label_path(folder / self.image_folder / image.name)
            target.parent.mkdir(parents=True, exist_ok=True)
            if image.changed:
                lines = [
                    item.raw if box is None else _clipped(item.raw, *image.size)
                    for item, box in image.objects
                ]
                target.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
            else:
                shutil.copyfile(image.entry.file, target)
        return self.image_folder, []


class Line(NamedTuple):
    """One line of a label file that is not empty.

    number: from 1 · class_number: -1 if there is none · box (4,) float32 cx, cy, w, h as fractions,
    of a polygon too; NO_BOX if it cannot be read · polygons: one part (k, 2) in fractions, or none
    · problem: why it cannot be used, or an empty string.
    """

    number: int
    text: str
    class_number: int
    box: Sequence[float] | np.ndarray
    polygons: list[np.ndarray]
    problem: str = ""


def parse_yolo(text: str) -> Iterator[Line]:
    """The lines of a label file; exact duplicates have a problem too."""
    seen = set()  # numbers of a line
    for number, line in enumerate(text.split("\n"), 1):
        fields = line.split()
        if not fields:
            continue
        try:
            with np.errstate(over="ignore"):
                values = np.array(fields, np.float32)
            problem = _problem(float(fields[0]), values)
        except ValueError:
            problem = "not a number"
        if "_" in line or not line.isascii():  # Python reads 1_0 as 10, and digits of any script
            problem = "not a number"
        if problem:
            yield Line(number, line, -1, _fractions(fields[1:]), [], problem)
            continue
        polygons = [values[1:].reshape(-1, 2)] if len(values) > 5 else []
        box = _around(polygons[0]) if polygons else values[1:]
        key = (values[0], *box.tolist())
        if min(box[2:]) < LEAST_SIDE:
            problem = "zero width or height"
        elif key in seen:
            problem = "duplicate of an earlier line"
        seen |= set() if problem else {key}
        yield Line(number, line, int(values[0]), box, polygons, problem)


def _problem(number: float, values: np.ndarray) -> str:
    """What is wrong with the numbers of one line, or an empty string. number: the class, which
    float32 may have rounded."""
    if len(values) != 5 and (len(values) < 7 or len(values) % 2 == 0):
        return f"wrong column count ({len(values)}; a box has 5, a polygon 7, 9, 11, ...)"
    if not np.isfinite(values).all():
        return "non-finite value"
    if (values < 0).any():
        return "negative value"
    if (values[1:] > 1).any():
        return "coordinate above 1 (coordinates are fractions of the image)"
    if number != int(number) or number > 2**24:  # from there on float32 leaves integers out
        return f"class {number} is not an integer"
    return ""


def _around(points: np.ndarray) -> np.ndarray:
    """cx, cy, w, h of the box around points (k, 2)."""
    return xyxy_to_cxcywh(np.concatenate((points.min(0), points.max(0))))


def _fractions(fields: Sequence[str]) -> Sequence[float] | np.ndarray:
    """The box of a line that is dropped, cx, cy, w, h, if its numbers give one."""
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            values = np.array(fields, np.float32)
            if np.isfinite(values).all() and len(values) >= 4 and len(values) % 2 == 0:
                return values if len(values) == 4 else _around(values.reshape(-1, 2))
    except ValueError:
        pass
    return NO_BOX


def _clipped(line: str, height: int, width: int) -> str:
    """The line of a box with what reaches past the frame cut off."""
    fields = line.split()
    box = clip_xyxy(cxcywhn_to_xyxy(np.array(fields[1:], np.float64), width, height), width, height)
    return " ".join((fields[0], *(f"{v:.9g}" for v in xyxy_to_cxcywhn(box, width, height))))
