"""COCO annotations: polygons, crowd regions and areas are kept; categories are matched by name."""

import json
import re
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from os.path import isfile
from pathlib import Path
from typing import Any

import numpy as np

from boltbox.detector.data.datasets import Fault
from boltbox.detector.data.formats.format import (
    FARTHEST,
    Entry,
    Format,
    ImageLabels,
    LabelObject,
    corners,
    number,
    whole_size,
)
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.text_file import read_text


class CocoJson(Format):
    """A split is a json file with `images`, `annotations`, `categories`, or several."""

    shared = True

    @classmethod
    def find_names(cls, root: Path, splits: Mapping[str, Sequence[Path]]) -> list[str]:
        """The categories of the first file, by id; those of one name are one class."""
        _, names, _ = _read_json(next(iter(splits.values()))[0])
        ordered = sorted(names, key=lambda i: (isinstance(i, str), i))
        return list(dict.fromkeys(names[i] for i in ordered))

    def find(self) -> list[Entry]:
        entries: list[Entry] = []
        for source in self.split.paths:
            images, names, annotations = _read_json(source)
            of_image = self._by_image(source, images, annotations)
            for image in sorted(images, key=lambda image: image["file_name"]):
                key = image, of_image.get(image["id"]), names
                entries.append(Entry(self._locate(image["file_name"], source), str(source), key))
        return entries

    def _locate(self, name: str, source: Path) -> str:
        """An image file: in the first of the folders that has it."""
        split, root = self.split, self.split.root
        # instances_train2017.json
        beside, stem = source.parent, source.stem.removeprefix("instances_")
        name_of = "train" if split.share else split.name  # a val split that is a part of train
        guesses = (stem, f"images/{stem}", f"images/{name_of}", name_of, "images", "data", "")
        folders = [*split.folders, *(root / guess for guess in guesses)]
        folders += [beside, beside / "images", beside / "data"]
        places = [str(folder / name) for folder in folders]
        return next(filter(isfile, places), places[0])

    def _by_image(
        self, source: Path, images: list[dict[str, Any]], annotations: list[Any]
    ) -> dict[Any, list[dict[str, Any]]]:
        """The annotations by image id, in their order, without ids that several images have; those
        that have no image of their own become faults."""
        listed = Counter(image["id"] for image in images)
        of_image: dict[Any, list] = {i: [] for i, times in listed.items() if times == 1}
        for position, a in enumerate(annotations, 1):
            a = a if isinstance(a, dict) else {"id": f"at position {position}"}
            try:
                of_image[a.get("image_id")].append(a)
            except (KeyError, TypeError):
                problem = f"its image {a.get('image_id')} is not listed, or more than once"
                self.faults.append(Fault(str(source), f"annotation {a.get('id')}", problem))
        return of_image

    def read(self, entry: Entry, height: int, width: int) -> ImageLabels:
        image, annotations, names = entry.key
        if annotations is None:
            raise InputError(f"{entry.file}: ambiguous: several images have the id {image['id']}")
        objects = []
        for a in annotations:
            category = a.get("category_id")
            name = names.get(category) if isinstance(category, Hashable) else None
            area = number(a.get("area"))
            objects.append(
                LabelObject(
                    f"annotation {a.get('id')} ({name})",
                    f"category {category}" if name is None else name,
                    corners(a.get("bbox")),
                    polygons=_polygons(a.get("segmentation")),
                    crowd=a.get("iscrowd") == 1,
                    area=area if abs(area) < FARTHEST**2 else np.nan,
                )
            )
        return ImageLabels(objects, whole_size(image.get("height"), image.get("width")))


def _read_json(source: Path) -> tuple[list[dict[str, Any]], dict[Any, str], list[Any]]:
    """The images, the names of the categories by id and the annotations of a COCO json file;
    InputError if it is not one."""
    text = read_text(source)
    try:
        content = json.loads(text)
        images, annotations = content["images"], content.get("annotations", [])
        categories = _without_group(content["categories"], annotations)
        names = {category["id"]: category["name"] for category in categories}
        if len(names) < len(categories):
            raise ValueError("two of its `categories` have the same id")
        if not isinstance(images, list) or not isinstance(annotations, list):
            raise ValueError("`images` and `annotations` must be lists")
        for name in (*names.values(), *(image["file_name"] for image in images)):
            # half of a surrogate pair can be neither a file's name nor shown
            if not isinstance(name, str) or re.search("[\0\ud800-\udfff]", name):
                raise ValueError(f"{name!r} is no usable name")
        if not {type(i) for i in (*names, *(image["id"] for image in images))} <= {int, float, str}:
            raise ValueError("an id is neither a number nor a text")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise InputError(
            f"{source}: not a COCO json file with `images` and `categories` ({e!r})"
        ) from None
    return images, names, annotations


def _without_group(categories: list[Any], annotations: list[Any]) -> list[Any]:
    """Without the category that Roboflow makes for the group of all others, of which there is no
    object."""
    groups = {str(category.get("supercategory")) for category in categories} - {"none"}
    used = {str(a.get("category_id")) for a in annotations if isinstance(a, dict)}
    return [
        category
        for category in categories
        if category.get("supercategory") != "none"
        or str(category["name"]) not in groups
        or str(category["id"]) in used
    ]


def _polygons(segmentation: object) -> list[np.ndarray]:
    """COCO's list of flat polygons -> parts (k, 2) that make sense; none for run-length masks."""
    given = segmentation if isinstance(segmentation, list) else []
    parts = []
    for numbers in given:
        flat = [*map(number, numbers)] if isinstance(numbers, list) else []
        if len(flat) >= 6 and len(flat) % 2 == 0 and all(abs(v) < FARTHEST for v in flat):
            parts.append(np.array(flat, np.float32).reshape(-1, 2))
    return parts
