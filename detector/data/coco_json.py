"""COCO annotations."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from detector.data.datasets import DetectionDataset, box_problem
from detector.data.images import image_sizes
from detector.data.report import DataReport, Fault
from detector.data.sample import Labels
from detector.errors import InputError


class CocoDataset(DetectionDataset):
    """COCO json: polygons, crowd regions and areas are kept.

    Args:
        annotations: json files with `images`, `annotations`, `categories`.
        names: class names in order; categories are matched by name.
        folders: where the images may be, tried in order.
        strict: refuse annotations whose category is not among the names; else drop them.
    """

    def __init__(self, annotations: Sequence[Path], names: list[str], folders: Sequence[Path], strict: bool = True) -> None:
        report = DataReport()
        numbers = {name: c for c, name in enumerate(names)}
        files, labels = [], []
        for source in annotations:
            content = read_coco(source)
            categories = {c["id"]: c["name"] for c in content["categories"]}
            of_image, astray = by_image(content)
            report.faults += [Fault(str(source), where, problem) for where, problem in astray]
            images = sorted(content["images"], key=lambda image: image["file_name"])
            paths = [str(locate(image["file_name"], folders)) for image in images]
            for image, path, size in zip(images, paths, image_sizes(paths), strict=True):
                if isinstance(size, str):
                    report.lost_images.append(Fault(path, "", size))
                    continue
                kept, boxes, classes = [], [], []
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
                        report.faults.append(Fault(str(source), f"annotation {a.get('id')} ({name})", problem))
                    else:
                        kept.append(a)
                        boxes.append((x, y, x + w, y + h))
                        classes.append(numbers[name])
                files.append(path)
                labels.append(
                    Labels.of(
                        np.array(boxes),
                        np.array(classes),
                        *size,
                        polygons=[_parts(a.get("segmentation")) for a in kept],
                        crowd=np.array([bool(a.get("iscrowd", 0)) for a in kept]),
                        area=np.array([_area(a) for a in kept]),
                    )
                )
        super().__init__(files, labels, names, report)


def read_coco(source: Path) -> dict:
    """The content of a COCO json file; InputError if it is not one."""
    try:
        content = json.loads(source.read_text(encoding="utf-8"))
        for key, wanted in (("images", ("id", "file_name")), ("categories", ("id", "name"))):
            for entry in content[key] if isinstance(content[key], list) else [{}]:
                lacking = [name for name in wanted if not isinstance(entry.get(name), int | str if name == "id" else str)]
                if lacking:
                    raise InputError(f"{source}: not a COCO json file: an entry of `{key}` has no {' and no '.join(lacking)}")
        if not isinstance(content.get("annotations", []), list):
            raise InputError(f"{source}: not a COCO json file: `annotations` is no list")
    except FileNotFoundError:
        raise InputError(f"{source}: no such file; correct the path in the data set's file") from None
    except InputError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise InputError(f"{source}: not a COCO json file with `images` and `categories` ({e!r})") from None
    return content


def by_image(content: dict) -> tuple[dict[int | str, list[dict]], list[tuple[str, str]]]:
    """Of what `read_coco` gave: the annotations by image id, in their order; (place, problem) of those that have no image."""
    of_image: dict[int | str, list[dict]] = {image["id"]: [] for image in content["images"]}
    astray = []
    for position, a in enumerate(content.get("annotations", []), 1):
        if not isinstance(a, dict):
            astray.append((f"annotation at position {position}", "no map with image_id, category_id and bbox"))
        elif isinstance(a.get("image_id"), int | str) and a["image_id"] in of_image:
            of_image[a["image_id"]].append(a)
        else:
            astray.append((f"annotation {a.get('id')}", f"its image {a.get('image_id')} is not listed"))
    return of_image, astray


def category_name(annotation: dict, categories: dict[int | str, str]) -> str | None:
    """The name of an annotation's category, None if that is not listed."""
    number = annotation.get("category_id")
    return categories.get(number) if isinstance(number, int | str) else None


def xywh_of(bbox: object) -> list[float]:
    """x, y, width, height; NaN where there are not four numbers."""
    if not isinstance(bbox, list) or len(bbox) != 4:
        return [math.nan] * 4
    return [_number(v) for v in bbox]


def _number(value: object) -> float:
    try:
        return float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:  # an integer of hundreds of digits
        return math.inf


def _area(annotation: dict) -> float:
    """That of the box where none is given."""
    area = _number(annotation.get("area"))
    return area if math.isfinite(area) else annotation["bbox"][2] * annotation["bbox"][3]


def _parts(segmentation: object) -> list[np.ndarray]:
    """COCO's list of flat polygons -> parts (k, 2); run-length masks have none."""
    if not isinstance(segmentation, list):
        return []
    flat = [[_number(v) for v in part] for part in segmentation if isinstance(part, list)]
    whole = [p for p in flat if len(p) >= 6 and len(p) % 2 == 0 and max(map(abs, p)) < np.finfo(np.float32).max]
    return [np.array(p, np.float32).reshape(-1, 2) for p in whole]


def locate(name: str, folders: Sequence[Path]) -> Path:
    """An image of a COCO file: in the first of the folders that has it."""
    return next((folder / name for folder in folders if (folder / name).is_file()), folders[0] / name)
