"""YOLO text labels."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from detector.data.cache.origins import Origins
from detector.data.datasets import DetectionDataset, read_lines, too_many
from detector.data.images import find_images, image_sizes
from detector.data.part import Part
from detector.data.report import DataReport, Fault, emptied
from detector.data.sample import Labels, Polygons
from detector.model.boxes import cxcywhn_to_xyxy, xyxy_to_cxcywh
from detector.system.errors import InputError
from detector.system.text_file import exists, is_dir, read_text

LEAST_SIDE = 1e-6  # fraction of the image; thinner, and the two edges of a box become one in float32


class YoloDataset(DetectionDataset):
    """Text labels: for `.../images/a/b.jpg` the file `.../labels/a/b.txt`, a line an object: `class cx cy w h`, or
    `class x y x y ...` for a polygon, as fractions of the image.

    Args:
        sources: folders of images, or text files that list images ("./" relative to the list).
        names: class names.
        root: where relative paths in lists start, after the list's own folder.
        strict: leave class numbers without a name to `check_classes`, which refuses them; else drop their lines.
        keep_emptied: images whose objects are all dropped stay, as background; else they are left out.
        part: only these images.
    """

    def __init__(
        self,
        sources: Sequence[Path],
        names: list[str],
        root: Path,
        strict: bool = True,
        keep_emptied: bool = False,
        part: Part | None = None,
    ) -> None:
        report, origins = DataReport(), Origins()
        paths = sorted({str(p) for source in sources for p in _images_of(source, root, origins)})
        paths = part.of(paths) if part else paths
        origins.note(paths)
        origins.note(map(label_path, paths))
        files, labels = [], []
        for path, size in zip(paths, image_sizes(paths), strict=True):
            if isinstance(size, str):
                report.lost_images.append(Fault(path, "", size))
                continue
            label_file = label_path(path)
            try:
                text = read_labels(label_file) if exists(label_file) and not label_file.is_dir() else None
                problem = too_many(0 if text is None else text.count("\n"))
            except InputError as e:
                problem = str(e).removeprefix(f"{label_file}: ")
            if problem:
                report.lost_images.append(Fault(str(label_file), "", problem))
                continue
            report.unlabelled += text is None
            rows, polygons, found = parse_yolo(text or "", None if strict else len(names))
            faults = [Fault(str(label_file), where, problem) for where, problem in found]
            report.faults += faults
            if faults and not len(rows) and not keep_emptied:
                report.lost_images.append(emptied(path, faults))
                continue
            height, width = size
            files.append(path)
            labels.append(
                Labels.of(
                    cxcywhn_to_xyxy(rows[:, 1:], width, height),
                    rows[:, 0],
                    height,
                    width,
                    [[p * np.array((width, height), np.float32) for p in parts] for parts in polygons],
                )
            )
        super().__init__(files, labels, names, report, origins)


def label_path(image: str | Path) -> Path:
    """Where the text labels of an image are: the last folder `images` becomes `labels`, the suffix .txt."""
    parts = list(Path(image).with_suffix(".txt").parts)
    for i in range(len(parts) - 2, -1, -1):
        if parts[i] == "images":
            parts[i] = "labels"
            break
    return Path(*parts)


def read_labels(path: Path) -> str:
    """The text of a label file, with or without the mark that editors put before UTF-8. Other bytes become no number.
    InputError if it is no regular file, or too large."""
    return read_text(path, replace=True)


def parse_yolo(text: str, classes: int | None = None) -> tuple[np.ndarray, Polygons, list[tuple[str, str]]]:
    """The text of a label file -> (n, 5) float32 class, cx, cy, w, h as fractions; n lists of polygon parts (k, 2) in
    fractions; (line, problem) of each line that was dropped. Exact duplicates are dropped too, and if `classes` is given, the
    lines of class numbers from there on."""
    rows: dict[tuple[float, ...], np.ndarray] = {}  # by their numbers
    polygons: Polygons = []
    faults = []
    for number, line in enumerate(text.split("\n"), 1):
        fields = line.split()
        if not fields:
            continue
        try:
            values = np.array(fields, np.float32)
            problem = _problem(float(fields[0]), values, classes)
        except ValueError:
            problem = "not a number"
        if "_" in line or not line.isascii():  # Python reads 1_0 as 10, and digits of any script
            problem = "not a number"
        if not problem:
            points = values[1:].reshape(-1, 2) if len(values) > 5 else None
            if points is not None:
                corners = np.concatenate((points.min(0), points.max(0)))
                values = np.concatenate((values[:1], xyxy_to_cxcywh(corners)))
            if min(values[3:]) < LEAST_SIDE:
                problem = "zero width or height"
            elif (key := tuple(values.tolist())) in rows:
                problem = "duplicate of an earlier line"
            else:
                rows[key] = values
                polygons.append([] if points is None else [points])
        if problem:
            faults.append((f"line {number}", problem))
    return np.array(list(rows.values()), np.float32).reshape(-1, 5), polygons, faults


def _problem(number: float, values: np.ndarray, classes: int | None) -> str:
    """What is wrong with the numbers of one line, or an empty string. number: the class, which float32 may have rounded."""
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
    if classes is not None and number >= classes:
        return f"class number {int(number)} has no name (the data set has {classes}: 0 to {classes - 1})"
    return ""


def _images_of(source: Path, root: Path, origins: Origins) -> list[Path]:
    """Images of a folder, or those that a text file lists."""
    if is_dir(source):
        origins.note(folder for folder, _, _ in os.walk(source))
        return find_images(source)
    if not exists(source):
        raise InputError(f"{source}: no such folder or list of images; correct the path in the data set's file")
    origins.note([source])
    found, elsewhere = [], []  # an image is the first of its places that exists; one that comes later may come before it
    for line in read_lines(source):
        places = [source.parent / line, root / line, Path(line)]
        k = next((i for i, p in enumerate(places) if exists(p)), 0)
        found.append(places[k])
        elsewhere += places[:k] if exists(places[k]) else places[1:]
    origins.note(elsewhere)
    return found
