"""COCO annotations."""

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from detector.data.cache.origins import Origins
from detector.data.datasets import FARTHEST, DetectionDataset, box_problem, too_many
from detector.data.images import image_sizes
from detector.data.part import Part
from detector.data.report import DataReport, Fault, emptied
from detector.data.sample import Labels
from detector.system.errors import InputError
from detector.system.text_file import is_file, read_text

Id = int | float | str
LARGEST = 8 * 2**30  # bytes; the largest sets have some GB


class CocoDataset(DetectionDataset):
    """COCO json: polygons, crowd regions and areas are kept.

    Args:
        annotations: json files with `images`, `annotations`, `categories`.
        names: class names in order; categories are matched by name.
        folders: where the images may be, tried in order.
        strict: refuse annotations whose category is not among the names; else drop them.
        keep_emptied: images whose annotations are all dropped stay, as background; else they are left out.
        part: only these images.
    """

    def __init__(
        self,
        annotations: Sequence[Path],
        names: list[str],
        folders: Sequence[Path],
        strict: bool = True,
        keep_emptied: bool = False,
        part: Part | None = None,
    ) -> None:
        report, origins = DataReport(), Origins()
        origins.note(annotations)
        numbers = {name: c for c, name in enumerate(names)}
        files, labels = [], []
        for source in annotations:
            content = read_coco(source)
            categories = class_names(content)
            of_image, astray = by_image(content)
            if not part or not part.val:  # else they are told twice
                report.faults += [Fault(str(source), where, problem) for where, problem, _ in astray]
            shared = defaultdict(list)  # faults of annotations that may belong to several images, by the id of these
            for where, problem, image_id in astray:
                shared[image_id].append(Fault(str(source), where, problem))
            images = sorted(content["images"], key=lambda image: image["file_name"])
            paths = [str(locate(image["file_name"], folders)) for image in images]
            if part:
                own = set(part.of(paths))
                images, paths = [i for i, p in zip(images, paths, strict=True) if p in own], [p for p in paths if p in own]
            origins.note(
                p for image, path in zip(images, paths, strict=True) for p in _tried(image["file_name"], folders, path)
            )
            for image, path, size in zip(images, paths, image_sizes(paths), strict=True):
                if isinstance(size, str):
                    report.lost_images.append(Fault(path, "", size))
                    continue
                if problem := too_many(len(of_image[image["id"]])):
                    report.lost_images.append(Fault(path, "", problem))
                    continue
                kept, boxes, classes, faults = [], [], [], list(shared[image["id"]])
                for a in of_image[image["id"]]:
                    x, y, w, h = xywh_of(a.get("bbox"))
                    number = a.get("category_id")
                    name: Any = category_name(a, categories)
                    problem = box_problem((x, y, x + w, y + h))
                    if not problem and name not in numbers:
                        if strict:
                            raise InputError(
                                f"{source}: annotation {a.get('id')} has category {number} ('{name}'), "
                                f"which is not among the names {names}; add it"
                            )
                        problem = f"class name '{name}' (category {number}) is not among the data set's names"
                    if problem:
                        faults.append(Fault(str(source), f"annotation {a.get('id')} ({name})", problem))
                    else:
                        kept.append(a)
                        boxes.append((x, y, x + w, y + h))
                        classes.append(numbers[name])
                report.faults += faults[len(shared[image["id"]]) :]
                if faults and not boxes and not keep_emptied:
                    report.lost_images.append(emptied(path, faults))
                    continue
                files.append(path)
                labels.append(
                    Labels.of(
                        np.array(boxes),
                        np.array(classes),
                        *size,
                        polygons=[_parts(a.get("segmentation")) for a in kept],
                        crowd=np.array([a.get("iscrowd") == 1 for a in kept]),
                        area=np.array([_area(a) for a in kept]),
                    )
                )
        super().__init__(files, labels, names, report, origins)


def read_coco(source: Path) -> dict:
    """The content of a COCO json file; InputError if it is not one."""
    try:
        content = json.loads(read_text(source, LARGEST))
        for key, wanted in (("images", ("id", "file_name")), ("categories", ("id", "name"))):
            for entry in content[key] if isinstance(content[key], list) else [{}]:
                lacking = [name for name in wanted if not (_is_id if name == "id" else _is_text)(entry.get(name))]
                if lacking:
                    raise InputError(f"{source}: not a COCO json file: an entry of `{key}` has no {' and no '.join(lacking)}")
        if len({isinstance(c["id"], str) for c in content["categories"]}) > 1:
            raise InputError(f"{source}: the ids of `categories` are numbers and texts; make them all numbers")
        if not isinstance(content.get("annotations", []), list):
            raise InputError(f"{source}: not a COCO json file: `annotations` is no list")
    except FileNotFoundError:
        raise InputError(f"{source}: no such file; correct the path in the data set's file") from None
    except InputError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise InputError(f"{source}: not a COCO json file with `images` and `categories` ({e!r})") from None
    return content


def by_image(content: dict) -> tuple[dict[Id, list[dict]], list[tuple[str, str, Id | None]]]:
    """Of what `read_coco` gave: the annotations by image id, in their order; (place, problem, id of the images that it may
    belong to) of those that have no image of their own."""
    of_image: dict[Id, list[dict]] = {image["id"]: [] for image in content["images"]}
    times = Counter(image["id"] for image in content["images"])
    astray: list[tuple[str, str, Id | None]] = []
    for position, a in enumerate(content.get("annotations", []), 1):
        if not isinstance(a, dict):
            astray.append((f"annotation at position {position}", "no map with image_id, category_id and bbox", None))
        elif _is_id(a.get("image_id")) and times[a["image_id"]] == 1:
            of_image[a["image_id"]].append(a)
        elif _is_id(a.get("image_id")) and times[a["image_id"]]:
            problem = f"ambiguous: {times[a['image_id']]} images have the id {a['image_id']}"
            astray.append((f"annotation {a.get('id')}", problem, a["image_id"]))
        else:
            astray.append((f"annotation {a.get('id')}", f"its image {a.get('image_id')} is not listed", None))
    return of_image, astray


def class_names(content: dict) -> dict[Id, str]:
    """Of what `read_coco` gave: the names of the categories by id, but for ids that stand for several."""
    names: dict[Id, set[str]] = defaultdict(set)
    for category in content["categories"]:
        names[category["id"]].add(category["name"])
    return {number: given.pop() for number, given in names.items() if len(given) == 1}


def category_name(annotation: dict, categories: dict[Id, str]) -> str | None:
    """The name of an annotation's category, None if that is not listed."""
    number = annotation.get("category_id")
    return categories.get(number) if _is_id(number) else None


def _is_id(value: object) -> TypeGuard[Id]:
    return isinstance(value, int | float | str) and not isinstance(value, bool) and value == value  # NaN is none


def _is_text(value: object) -> bool:
    """Half of a surrogate pair can be neither a file's name nor shown."""
    return isinstance(value, str) and not re.search("[\ud800-\udfff]", value)


def xywh_of(bbox: object) -> list[float]:
    """x, y, width, height; NaN where there are not four numbers."""
    if not isinstance(bbox, list) or len(bbox) != 4:
        return [math.nan] * 4
    return [_number(v) for v in bbox]


def _number(value: object) -> float:
    try:
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    except OverflowError:  # an integer of hundreds of digits
        return math.inf


def _area(annotation: dict) -> float:
    """That of the box where none is given."""
    area = _number(annotation.get("area"))
    return area if abs(area) < FARTHEST**2 else annotation["bbox"][2] * annotation["bbox"][3]


def _parts(segmentation: object) -> list[np.ndarray]:
    """COCO's list of flat polygons -> parts (k, 2); none for run-length masks, and if one of the parts makes no sense."""
    if not isinstance(segmentation, list) or not all(isinstance(part, list) for part in segmentation):
        return []
    flat = [[_number(v) for v in part] for part in segmentation]
    if not all(abs(v) < FARTHEST for part in flat for v in part):
        return []
    return [np.array(part, np.float32).reshape(-1, 2) for part in flat if len(part) >= 6 and len(part) % 2 == 0]


def locate(name: str, folders: Sequence[Path]) -> Path:
    """An image of a COCO file: in the first of the folders that has it."""
    return next((folder / name for folder in folders if is_file(folder / name)), folders[0] / name)


def _tried(name: str, folders: Sequence[Path], found: str) -> list[str]:
    """The places where an image was looked for, up to the one where it is."""
    places = [str(folder / name) for folder in folders]
    return places[: places.index(found) + 1] if is_file(found) else places
