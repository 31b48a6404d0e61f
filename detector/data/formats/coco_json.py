"""COCO annotations: polygons, crowd regions and areas are kept; categories are matched by name. An
object without `bbox` gets the box around its polygons."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import filterfalse
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from boltbox.detector.data.datasets import Fault
from boltbox.detector.data.file_list import FileList, State
from boltbox.detector.data.formats.format import (
    FARTHEST,
    Entry,
    Format,
    ImageLabels,
    LabelObject,
    corners,
    find_tail,
    image_size_of,
    number,
    without_collector,
)
from boltbox.detector.system.addresses import join
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.text_file import read_text

# images, names of the categories by id, annotations
Content = tuple[list[dict[str, Any]], dict[Any, str], list[dict[str, Any]]]


class CocoJson(Format):
    """A split is a json file with `images`, `annotations`, `categories`, or several."""

    @classmethod
    def find_names(
        cls, root: Path, splits: Mapping[str, Sequence[Path]], files: FileList
    ) -> list[str]:
        """The categories of the first file, by id; those with the same name are one class."""
        first = next(iter(splits.values()))[0]
        _, names, _ = _read_json(first, files.state(first))
        ordered = sorted(names, key=lambda i: (isinstance(i, str), i))
        return list(dict.fromkeys(names[i] for i in ordered))

    def find(self) -> list[Entry]:
        entries = []
        for source in self.split.paths:
            images, names, annotations = _read_json(source, self.files.state(source))
            _read_json.cache_clear()  # it is large
            # an image that is listed again, with the same id, is the same
            images = list({(image["id"], image["file_name"]): image for image in images}.values())
            annotations_of = self._by_image(source, images, annotations)
            folders = self._folders(source)
            usual_folder = folders[0]
            for image in sorted(images, key=itemgetter("file_name")):
                name = image["file_name"]
                those_with_it = (f for f in folders if self.files.is_file(join(f, name)))
                folder = next(those_with_it, None)
                if folder is None:
                    tail = find_tail(name, self.files.is_file, *folders)
                    place = str(tail) if tail else join(usual_folder, name)
                else:
                    usual_folder = folder
                    place = join(folder, name)
                key = (image, annotations_of.get(image["id"]), names)
                entries.append(Entry(place, str(source), key))
        return entries

    def _folders(self, source: Path) -> list[Path]:
        """Those that may hold the images; the first one that has it counts. Of the given ones, the
        nearest to the file come first."""
        stem = source.stem.removeprefix("instances_")  # instances_train2017.json
        # with a share, the images of val are a part of train
        split = "train" if self.split.share else self.split.name
        # sets may have images of the same name: most parents in common with the file first
        folders = sorted(
            self.split.folders,
            key=lambda folder: -sum(map(folder.is_relative_to, source.parents)),
        )
        for folder in (stem, f"images/{stem}", f"images/{split}", split, "images", "data", ""):
            folders.append(self.split.root / folder)
        return folders + [source.parent, source.parent / "images", source.parent / "data"]

    def _by_image(
        self, source: Path, images: list[dict[str, Any]], annotations: list[dict[str, Any]]
    ) -> dict[Any, list[dict[str, Any]]]:
        """The annotations by image id, without ids that several images have. Annotations of no
        image or of several become faults."""
        ids = Counter(image["id"] for image in images)
        annotations_of: dict[Any, list] = {i: [] for i, count in ids.items() if count == 1}
        for annotation in annotations:
            image = annotation.get("image_id")
            if image in annotations_of:
                annotations_of[image].append(annotation)
            else:
                problem = f"its image {image} is not listed, or more than once"
                place = f"annotation {annotation.get('id')}"
                self.faults.append(Fault(str(source), place, problem))
        return annotations_of

    def read(self, entry: Entry, height: int, width: int) -> ImageLabels:
        image, annotations, names = entry.key
        if annotations is None:
            raise InputError(f"{entry.file}: ambiguous: several images have the id {image['id']}")
        objects = []
        for annotation in annotations:
            category = annotation.get("category_id")
            name = names.get(category, f"category {category}")
            area = number(annotation.get("area"))
            box = corners(annotation.get("bbox"))
            polygons = annotation["segmentation"]
            if polygons and not annotation.get("bbox"):
                points = np.concatenate(polygons)
                box = (*points.min(0).tolist(), *points.max(0).tolist())
            objects.append(
                LabelObject(
                    f"annotation {annotation.get('id')} ({name})",
                    name,
                    box,
                    polygons=polygons,
                    crowd=annotation.get("iscrowd") == 1,
                    area=area if abs(area) < FARTHEST**2 else np.nan,
                )
            )
        return ImageLabels(objects, image_size_of(image.get("height"), image.get("width")))


@lru_cache(1)  # the names are found in the file that is read first
def _read_json(source: Path, state: State | None) -> Content:
    """The images, the names of the categories by id and the annotations of a COCO json file in this
    state; InputError if it is not one."""
    text = read_text(source)
    try:
        with without_collector(), np.errstate(over="ignore"):
            content = json.loads(text, object_hook=_with_arrays)
        images = content["images"]
        annotations = content.get("annotations", [])
        if not isinstance(images, list) or not isinstance(annotations, list):
            raise ValueError("`images` and `annotations` must be lists")
        categories = _without_group(content["categories"], annotations)
        names = {category["id"]: category["name"] for category in categories}
        if len(names) < len(categories):
            raise ValueError("two of its `categories` have the same id")
        for key, name in names.items():
            _check(key, name)
        for image in images:
            _check(image["id"], image["file_name"])
        for annotation in annotations:
            hash((annotation.get("image_id"), annotation.get("category_id")))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise InputError(
            f"{source}: not a COCO json file with `images` and `categories` ({e!r})"
        ) from None
    return images, names, annotations


def _check(key: object, name: object) -> None:
    if not isinstance(name, str):
        raise ValueError(f"the name {name!r} is not a text")
    if type(key) not in (int, float, str):
        raise ValueError(f"the id {key!r} is neither a number nor a text")


def _without_group(categories: list[Any], annotations: list[Any]) -> list[Any]:
    """The categories without the parent of all others that Roboflow adds, which has no object."""
    parents = {category.get("supercategory") for category in categories} - {"none"}
    used = {annotation.get("category_id") for annotation in annotations}

    def is_group(category: dict[str, Any]) -> bool:
        is_parent = category.get("supercategory") == "none" and category["name"] in parents
        return is_parent and category["id"] not in used

    return list(filterfalse(is_group, categories))


def _with_arrays(item: dict[str, Any]) -> dict[str, Any]:
    """An object of the file; polygons as arrays, which take a tenth of the memory."""
    if "image_id" in item:
        item["segmentation"] = _polygons(item.get("segmentation"))
    return item


def _polygons(segmentation: object) -> list[np.ndarray]:
    """COCO's list of flat polygons -> parts (k, 2) that make sense; none for run-length masks."""
    if not isinstance(segmentation, list):
        return []
    parts = []
    for polygon in segmentation:
        with suppress(TypeError, ValueError, OverflowError):
            numbers = np.array(polygon, np.float32)
            if len(numbers) > 5 and numbers.dot(numbers) < FARTHEST**2:  # none is far or NaN
                parts.append(numbers.reshape(-1, 2))
    return parts
