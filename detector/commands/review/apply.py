"""The decisions of a review become a repaired copy of the dataset."""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite
from operator import index
from os.path import dirname, relpath
from pathlib import Path

import numpy as np

from boltbox.detector.commands.doctor.repair import check_folder, write_copy
from boltbox.detector.commands.review.suspect import VERSION, Box, Source
from boltbox.detector.data.dataset_file import FORMATS, DatasetFile
from boltbox.detector.data.sample import Labels
from boltbox.detector.model.boxes import area_xyxy, clip_xyxy
from boltbox.detector.system.errors import InputError, in_one_line
from boltbox.detector.system.text_file import read_text

SAME_BOX = 0.05  # pixels: nobody moves an edge by less


@dataclass(frozen=True)
class Change:
    """What one label becomes.

    Attributes:
        file: absolute path of the image.
        label: its number in the image; None: a new one.
        box: x1, y1, x2, y2 in pixels of the image file; None: the label is deleted.
        class_index: number of the class; None if the label is deleted.
    """

    file: str
    label: int | None
    box: Box | None
    class_index: int | None


@dataclass(frozen=True)
class Decisions:
    """What decisions.json holds, without the suspects that led to the changes.

    Attributes:
        dataset: that was reviewed.
        names: class names.
        images: the digest of the labels, see `Labels.digest`, by path of the image.
        changes: of labels.
    """

    dataset: Source
    names: list[str]
    images: dict[str, str]
    changes: list[Change]


def apply_decisions(
    decisions: Path, out: Path | None, dataset: str | None = None, format: str | None = None
) -> list[str]:
    """Write a copy of a dataset with the changes of a review.

    Other labels stay as training reads them, with crowd regions and polygons; a box that moves
    loses its polygon. Each split keeps its images; so does a val that `fit` sets aside.

    Args:
        decisions: the file that review.html saves, whoever made it.
        out: a new or empty folder; gets data.yaml, changes.txt, images and labels. None: nothing
            is written.
        dataset: where it is now, if it has moved.
        format: of the labels. Only a format of boltbox is taken from the file: others are code.

    Returns:
        One line per change, and per object or image that training leaves out.

    Raises:
        InputError: the decisions do not fit the dataset, or the folder is refused.
    """
    given = _read(decisions)
    source = given.dataset
    home = dataset or source.dataset
    if not format and source.format in list(FORMATS):
        format = source.format
    changes = defaultdict(list)
    for change in given.changes:
        changes[_place(change.file, source.dataset)].append(change)
    # in the copy, whose images have other names, `fit` would set others aside
    file = DatasetFile.read(home, source.split, format, needs_val=True)
    lines: list[str] = []
    splits = {}
    missing = dict(changes)
    for split in file.splits:
        part = file.open(split, strict=False, single_class=source.single_class)
        lines += [f"left out {fault}" for fault in part.faults]
        images = []
        for path, labels in zip(part.files, part.labels, strict=True):
            place = _place(path, file.source)
            of_image = changes.get(place, [])
            if of_image and labels.digest() == given.images.get(of_image[0].file):
                missing.pop(place, None)
                labels = _changed(labels, of_image, part.names, lines)
            images.append((path, labels))
        splits[split] = images
    file.names = part.names
    if missing or file.names != given.names:
        raise InputError(
            f"{home}: {next(iter(missing), 'names')} is not what was reviewed. Review again, or"
            " give the --data.dataset and --data.format of the review"
        )
    if out:
        check_folder(file.root, out)
        write_copy(file, splits, out, "changes.txt", list(lines))  # and the new names of images
    return lines


def _read(path: Path) -> Decisions:
    """What a decisions.json holds, whoever made it."""
    text = read_text(path)
    try:
        content = json.loads(text)
        if content["version"] != VERSION:
            raise ValueError(f"its version is not {VERSION}")
        read = content["dataset"]
        source = Source(str(read["dataset"]), read["format"], read["split"], read["single_class"])
        changes = []
        for row in content["changes"]:
            label = row["label"]
            if label is not None:
                label = index(label)  # raises TypeError for a text
            box = row["box"]
            if box is not None and not (len(box) == 4 and all(map(isfinite, box))):
                raise ValueError(f"{box} is no box")
            changes.append(Change(str(row["file"]), label, box, row["class"]))
        return Decisions(source, content["names"], dict(content["images"]), changes)
    except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as e:
        raise InputError(
            f"{path}: not the {path.stem} of this boltbox ({in_one_line(e):.200}). Give the file"
            " that it wrote"
        ) from None


def _place(path: str, dataset: str) -> str:
    """The path of an image from its dataset, which is a folder, or a data.yaml in it."""
    is_file = dataset.endswith((".yaml", ".yml"))
    return relpath(Path(path), dirname(dataset) if is_file else dataset)


def _changed(
    labels: Labels, changes: Sequence[Change], names: Sequence[str], lines: list[str]
) -> Labels:
    """The labels of an image after its changes.

    Args:
        labels: of the image.
        changes: of it.
        names: class names.
        lines: gets one per change.
    """
    old = len(labels.boxes)
    room = (0, len(changes))  # for new labels
    changed = replace(
        labels,
        boxes=np.pad(labels.boxes, (room, (0, 0))),
        classes=np.pad(labels.classes, room),
        polygons=labels.polygons + [[]] * len(changes),
        crowd=np.pad(labels.crowd, room),
        area=np.pad(labels.area, room),
    )
    kept = np.arange(len(changed.boxes)) < old
    for new, change in enumerate(changes, old):
        k = new if change.label is None else change.label
        c = change.class_index
        box = np.array(change.box or (0, 0, 1, 1), np.float32)
        box = clip_xyxy(box, labels.width, labels.height)
        is_class = c in range(len(names)) or not change.box
        is_label = k in range(old) or change.label is None
        if not (is_label and is_class and (box[2:] > box[:2]).all()):
            raise InputError(f"{change.file}: no such label, class or box: {change}. Review again")
        before = "new label" if k == new else _text(changed, k, names)
        after = "deleted"
        kept[k] = change.box is not None
        if change.box:
            changed.classes[k] = c
            if np.abs(changed.boxes[k] - change.box).max() > SAME_BOX:
                changed.boxes[k] = box
                changed.area[k] = area_xyxy(box)
                changed.polygons[k] = []
            after = _text(changed, k, names)
        lines.append(f"{change.file}: {before} -> {after}")
    return changed.keep(kept)


def _text(labels: Labels, k: int, names: Sequence[str]) -> str:
    return f"{names[labels.classes[k]]} {labels.boxes[k].astype(float).round(1).tolist()}"
