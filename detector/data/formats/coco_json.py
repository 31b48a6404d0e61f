"""COCO annotations: polygons, crowd regions and areas are kept; categories are matched by name."""

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from os.path import isfile
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from boltbox.detector.data.formats.format import (
    FARTHEST,
    NO_BOX,
    Entry,
    Format,
    ImageLabels,
    LabelObject,
    whole_size,
)
from boltbox.detector.data.report import Fault
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.text_file import read_text

Id = int | float | str


class CocoJson(Format):
    """A split is a json file with `images`, `annotations`, `categories`, or several."""

    shared = True

    @classmethod
    def find_names(cls, root: Path, splits: Mapping[str, Sequence[Path]]) -> list[str]:
        """The categories of the first file, by id."""
        names = _category_names(_read_json(next(iter(splits.values()))[0]))
        return [names[i] for i in sorted(names, key=lambda i: (isinstance(i, str), i))]

    def find(self) -> list[Entry]:
        entries: list[Entry] = []
        for source in self.split.paths:
            content = _read_json(source)
            names, of_image = _category_names(content), self._by_image(source, content)
            for image in sorted(content["images"], key=lambda image: image["file_name"]):
                path = self._locate(image["file_name"])
                key = image, of_image.get(image["id"]), names
                entries.append(Entry(str(path), str(source), key))
        return entries

    def _locate(self, name: str) -> Path:
        """An image file: in the first of the folders that has it."""
        split, root = self.split, self.split.root
        # instances_train2017.json
        beside, stem = split.paths[0].parent, split.paths[0].stem.removeprefix("instances_")
        guesses = (stem, f"images/{stem}", f"images/{split.name}", split.name, "images", "")
        folders = [*split.folders, *(root / guess for guess in guesses), beside]
        places = [folder / name for folder in folders]
        found = next(filter(isfile, places), None)
        split.origins.note(places[: places.index(found)] if found else places)
        return found or places[0]

    def _by_image(self, source: Path, content: dict[str, Any]) -> dict[Id, list[dict[str, Any]]]:
        """The annotations by image id, in their order, without ids that several images have; those
        that have no image of their own become faults."""
        listed = Counter(image["id"] for image in content["images"])
        of_image: dict[Id, list] = {number: [] for number, n in listed.items() if n == 1}
        for position, a in enumerate(content.get("annotations", []), 1):
            a = a if isinstance(a, dict) else {"id": f"at position {position}"}
            if _is_id(image := a.get("image_id")) and image in of_image:
                of_image[image].append(a)
            else:
                problem = f"its image {image} is not listed, or more than once"
                self.faults.append(Fault(str(source), f"annotation {a.get('id')}", problem))
        return of_image

    def read(self, entry: Entry, height: int, width: int) -> ImageLabels:
        image, annotations, names = entry.key
        if annotations is None:
            raise InputError(f"{entry.file}: ambiguous: several images have the id {image['id']}")
        objects = []
        for a in annotations:
            category, bbox = a.get("category_id"), a.get("bbox")
            name = names.get(category) if _is_id(category) else None
            is_box = isinstance(bbox, list) and len(bbox) == 4
            x, y, w, h = map(_number, bbox) if is_box else NO_BOX
            area = _number(a.get("area"))
            objects.append(
                LabelObject(
                    f"annotation {a.get('id')} ({name})",
                    f"category {category}" if name is None else name,
                    (x, y, x + w, y + h),
                    polygons=_polygons(a.get("segmentation")),
                    crowd=a.get("iscrowd") == 1,
                    area=area if abs(area) < FARTHEST**2 else None,
                )
            )
        return ImageLabels(objects, whole_size(image.get("height"), image.get("width")))


def _read_json(source: Path) -> dict[str, Any]:
    """The content of a COCO json file; InputError if it is not one."""
    try:
        content = json.loads(read_text(source))
        keys = ("images", "categories", "annotations")
        if not all(isinstance(content.get(key, []), list) for key in keys):
            raise ValueError(f"{', '.join(keys)} must be lists")
        for key, text in (("images", "file_name"), ("categories", "name")):
            for entry in content[key]:
                if not (_is_id(entry["id"]) and _is_name(entry[text])):
                    raise ValueError(f"an entry of `{key}` has no usable id and {text}")
        if len(_category_names(content)) < len(content["categories"]):
            raise ValueError("two of its `categories` have the same id")
    except FileNotFoundError:
        raise InputError(
            f"{source}: no such file; correct the path in the data set's file"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise InputError(
            f"{source}: not a COCO json file with `images` and `categories` ({e!r})"
        ) from None
    return content


def _category_names(content: dict[str, Any]) -> dict[Id, str]:
    return {category["id"]: category["name"] for category in content["categories"]}


def _is_id(value: object) -> TypeGuard[Id]:
    # NaN is none
    return isinstance(value, int | float | str) and not isinstance(value, bool) and value == value


def _is_name(value: object) -> bool:
    """Half of a surrogate pair can be neither a file's name nor shown, a zero byte is in no file's
    name."""
    return isinstance(value, str) and not re.search("[\0\ud800-\udfff]", value)


def _number(value: object) -> float:
    """NaN where it is none, infinite where it has hundreds of digits."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _polygons(segmentation: object) -> list[np.ndarray]:
    """COCO's list of flat polygons -> parts (k, 2) that make sense; none for run-length masks."""
    given = segmentation if isinstance(segmentation, list) else []
    parts = []
    for numbers in given:
        flat = [_number(v) for v in numbers] if isinstance(numbers, list) else []
        if len(flat) >= 6 and len(flat) % 2 == 0 and all(abs(v) < FARTHEST for v in flat):
            parts.append(np.array(flat, np.float32).reshape(-1, 2))
    return parts
