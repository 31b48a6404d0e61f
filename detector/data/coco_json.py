"""COCO annotations."""

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from detector.data.datasets import DetectionDataset, box_problem
from detector.data.images import image_sizes
from detector.data.origins import Origins
from detector.data.report import DataReport, Fault
from detector.data.sample import Labels
from detector.errors import InputError


class CocoDataset(DetectionDataset):
    """COCO json: polygons, crowd regions and areas are kept.

    Args:
        annotations: json files with `images`, `annotations`, `categories`.
        names: class names in order; categories are matched by name.
        folders: where the images may be, tried in order.
    """

    def __init__(self, annotations: Sequence[Path], names: list[str], folders: Sequence[Path]) -> None:
        report, origins = DataReport(), Origins()
        origins.note(annotations)
        numbers = {name: c for c, name in enumerate(names)}
        files, labels = [], []
        for source in annotations:
            content = read_coco(source)
            categories = {c["id"]: c["name"] for c in content["categories"]}
            of_image: dict[int, list[dict]] = {image["id"]: [] for image in content["images"]}
            for a in content.get("annotations", []):
                if a.get("image_id") in of_image:
                    of_image[a["image_id"]].append(a)
                else:
                    problem = f"its image {a.get('image_id')} is not listed"
                    report.faults.append(Fault(str(source), f"annotation {a.get('id')}", problem))
            images = sorted(content["images"], key=lambda image: image["file_name"])
            paths = [str(_locate(image["file_name"], folders)) for image in images]
            origins.note(
                p for image, path in zip(images, paths, strict=True) for p in _tried(image["file_name"], folders, path)
            )
            for image, path, size in zip(images, paths, image_sizes(paths), strict=True):
                if isinstance(size, str):
                    report.lost_images.append(Fault(path, "", size))
                    continue
                kept, boxes, classes = [], [], []
                for a in of_image[image["id"]]:
                    x, y, w, h = _numbers(a.get("bbox"))
                    number = a.get("category_id")
                    name = categories.get(number)
                    problem = box_problem((x, y, x + w, y + h))
                    if problem:
                        report.faults.append(Fault(str(source), f"annotation {a.get('id')} ({name})", problem))
                    elif name not in numbers:
                        raise InputError(
                            f"{source}: annotation {a.get('id')} has category {number} ('{name}'), "
                            f"which is not among the names {names}; add it"
                        )
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
                        area=np.array([a.get("area", a["bbox"][2] * a["bbox"][3]) for a in kept]),
                    )
                )
        super().__init__(files, labels, names, report, origins)


def read_coco(source: Path) -> dict:
    """The content of a COCO json file; InputError if it is not one."""
    try:
        content = json.loads(source.read_text(encoding="utf-8"))
        for key, wanted in (("images", ("id", "file_name")), ("categories", ("id", "name"))):
            for entry in content[key] if isinstance(content[key], list) else [{}]:
                lacking = [name for name in wanted if name not in entry]
                if lacking:
                    raise InputError(f"{source}: not a COCO json file: an entry of `{key}` has no {' and no '.join(lacking)}")
    except FileNotFoundError:
        raise InputError(f"{source}: no such file; correct the path in the data set's file") from None
    except (json.JSONDecodeError, KeyError, TypeError, UnicodeDecodeError) as e:
        raise InputError(f"{source}: not a COCO json file with `images` and `categories` ({e!r})") from None
    return content


def _numbers(bbox: object) -> list[float]:
    """x, y, width, height; NaN where there are not four numbers."""
    if not isinstance(bbox, list) or len(bbox) != 4 or not all(isinstance(v, int | float) for v in bbox):
        return [math.nan] * 4
    return [float(v) for v in bbox]


def _parts(segmentation: object) -> list[np.ndarray]:
    """COCO's list of flat polygons -> parts (k, 2); run-length masks have none."""
    if not isinstance(segmentation, list):
        return []
    return [np.array(p, np.float32).reshape(-1, 2) for p in segmentation if len(p) >= 6 and len(p) % 2 == 0]


def _locate(name: str, folders: Sequence[Path]) -> Path:
    return next((folder / name for folder in folders if (folder / name).is_file()), folders[0] / name)


def _tried(name: str, folders: Sequence[Path], found: str) -> list[str]:
    """The places where an image was looked for, up to the one where it is."""
    places = [str(folder / name) for folder in folders]
    return places[: places.index(found) + 1] if Path(found).is_file() else places
