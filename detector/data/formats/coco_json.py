"""COCO annotations: polygons, crowd regions and areas are kept; categories are matched by name."""

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from boltbox.detector.data.datasets import FARTHEST
from boltbox.detector.data.formats.format import (
    NO_BOX,
    Entry,
    Format,
    ImageLabels,
    LabelObject,
    RepairedImage,
    whole_size,
)
from boltbox.detector.data.report import Fault
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.text_file import is_dir, is_file, read_text

Id = int | float | str
Annotation = dict[str, Any]
_AMBIGUOUS = "ambiguous: {} images have the id {}"


class _Image(NamedTuple):
    """position: among all images of the split · entry: of `images` · annotations: its own ·
    names: of the categories by id · alike: number of images with its id."""

    position: int
    entry: dict[str, Any]
    annotations: list[Annotation]
    names: dict[Id, str]
    alike: int


class CocoJson(Format):
    """A split is a json file with `images`, `annotations`, `categories`, or several."""

    wants = "format coco wants a json file"
    shared = True
    lists_names = True

    @classmethod
    def recognises(cls, root: Path, path: Path) -> bool:
        return path.suffix == ".json"

    @classmethod
    def accepts(cls, path: Path) -> bool:
        return super().accepts(path) and not is_dir(path)

    @classmethod
    def find_names(cls, root: Path, splits: Mapping[str, Sequence[Path]]) -> list[str]:
        """The categories of the first file, by id."""
        categories = _read_json(next(iter(splits.values()))[0])["categories"]
        return [str(c["name"]) for c in sorted(categories, key=lambda c: c["id"])]

    def find(self) -> list[Entry]:
        entries: list[Entry] = []
        self.contents = {source: _read_json(source) for source in self.split.paths}
        for source, content in self.contents.items():
            names = _category_names(content)
            alike = Counter(image["id"] for image in content["images"])
            of_image = self._by_image(source, content, alike)
            first = len(entries)
            listed = enumerate(content["images"], first)
            for position, image in sorted(listed, key=lambda item: item[1]["file_name"]):
                number, path = image["id"], self._locate(image["file_name"])
                key = _Image(position, image, of_image[number], names, alike[number])
                entries.append(Entry(str(path), str(source), key))
        return entries

    def _locate(self, name: str) -> Path:
        """An image file: in the first of the folders that has it."""
        split = self.split
        # instances_train2017.json
        beside, stem = split.paths[0].parent, split.paths[0].stem.removeprefix("instances_")
        guesses = [
            split.root / stem,
            split.root / "images" / stem,
            split.root / "images" / split.name,
            split.root / split.name,
        ]
        places = [
            folder / name
            for folder in (*split.folders, *guesses, split.root / "images", split.root, beside)
        ]
        k = next((i for i, place in enumerate(places) if is_file(place)), None)
        split.origins.note(places[:k])
        return places[k or 0]

    def _by_image(
        self, source: Path, content: dict[str, Any], alike: Mapping[Id, int]
    ) -> dict[Id, list[Annotation]]:
        """The annotations by image id, in their order; those that have no image of their own become
        faults. alike: how many images have an id."""
        of_image: dict[Id, list[Annotation]] = {number: [] for number in alike}
        for position, a in enumerate(content.get("annotations", []), 1):
            where, problem = (
                f"annotation at position {position}",
                "no map with image_id, category_id and bbox",
            )
            if isinstance(a, dict):
                image, where = a.get("image_id"), f"annotation {a.get('id')}"
                count = alike.get(image, 0) if _is_id(image) else 0
                if _is_id(image) and count == 1:
                    of_image[image].append(a)
                    continue
                problem = _AMBIGUOUS.format(count, image)
                problem = problem if count else f"its image {image} is not listed"
            self.faults.append(Fault(str(source), where, problem))
        return of_image

    def read(self, entry: Entry, height: int, width: int) -> ImageLabels:
        image: _Image = entry.key
        if image.alike > 1:
            raise InputError(f"{entry.file}: {_AMBIGUOUS.format(image.alike, image.entry['id'])}")
        objects = []
        for a in image.annotations:
            category = a.get("category_id")
            name = image.names.get(category) if _is_id(category) else None
            x, y, w, h = _xywh(a.get("bbox"))
            objects.append(
                LabelObject(
                    f"annotation {a.get('id')} ({name})",
                    f"category {category}" if name is None else name,
                    (x, y, x + w, y + h),
                    polygons=_polygons(a.get("segmentation")),
                    crowd=a.get("iscrowd") == 1,
                    area=_area(a.get("area"), w * h),
                    raw=a,
                )
            )
        size = whole_size(image.entry.get("height"), image.entry.get("width"))
        return ImageLabels(objects, size)

    def write(self, folder: Path, images: Sequence[RepairedImage]) -> tuple[str, list[str]]:
        """One json, from however many there were. Ids stay as they are, where they are unique."""
        categories = {c["name"]: c for of in self.contents.values() for c in of["categories"]}
        entries: dict[str, dict[str, Any]] = {}  # by path
        annotations, done = [], []
        for image in sorted(images, key=lambda image: image.entry.key.position):
            entry, where = image.entry.key.entry, f"{image.entry.file}, image {image.name}"
            size = dict(zip(("height", "width"), image.size, strict=True))
            if image.entry.image in entries:
                done.append(f"{where}: listed again, its annotations go to the first")
            for key, pixels in size.items():
                if entry.get(key, pixels) != pixels:
                    done.append(f"{where}: {key} {entry[key]} corrected to {pixels}")
            entries.setdefault(image.entry.image, entry | size | {"file_name": image.name})
            annotations += [(image.entry.image, item, box) for item, box in image.objects]
        image_ids = _unique_ids(entries)
        category_ids = _unique_ids(categories)
        raws = {k: item.raw for k, (_, item, _) in enumerate(annotations)}
        annotation_ids = _unique_ids(raws)
        content = {key: value for of in self.contents.values() for key, value in of.items()}
        content["images"] = [entries[path] | {"id": image_ids[path]} for path in entries]
        content["categories"] = [c | {"id": category_ids[name]} for name, c in categories.items()]
        content["annotations"] = [
            raws[k]
            | {"id": annotation_ids[k], "image_id": image_ids[path]}
            | {"category_id": category_ids[str(item.name)]}
            | ({} if box is None else {"bbox": [*box[:2], box[2] - box[0], box[3] - box[1]]})
            for k, (path, item, box) in enumerate(annotations)
        ]
        path = folder / "annotations" / f"{self.split.name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            path.write_text(json.dumps(content), encoding="utf-8")
        except (
            RecursionError,
            ValueError,
        ) as e:  # lists within lists, integers of thousands of digits
            raise InputError(
                f"{self.split.name}: its annotations cannot be written again as JSON ({e})"
            ) from None
        return f"annotations/{self.split.name}.json", done


def _unique_ids(entries: Mapping[Any, Mapping[str, Any]]) -> dict[Any, Id]:
    """The ids of entries by their keys; numbers from 1 on, if one is missing or occurs twice."""
    ids = [entry.get("id") for entry in entries.values()]
    if not all(map(_is_id, ids)) or len(set(ids)) < len(ids):
        ids = list(range(1, len(ids) + 1))
    return dict(zip(entries, ids, strict=True))


def _read_json(source: Path) -> dict[str, Any]:
    """The content of a COCO json file; InputError if it is not one."""
    try:
        content = json.loads(read_text(source))
        for key, wanted in (("images", ("id", "file_name")), ("categories", ("id", "name"))):
            for entry in content[key] if isinstance(content[key], list) else [{}]:
                lacking = [
                    name
                    for name in wanted
                    if not (_is_id if name == "id" else _is_text)(entry.get(name))
                ]
                if lacking:
                    raise InputError(
                        f"{source}: not a COCO json file: an entry of `{key}` has no usable"
                        f" {' and '.join(lacking)}"
                    )
        if len({isinstance(c["id"], str) for c in content["categories"]}) > 1:
            raise InputError(
                f"{source}: the ids of `categories` are numbers and texts; make them all numbers"
            )
        if not isinstance(content.get("annotations", []), list):
            raise InputError(f"{source}: not a COCO json file: `annotations` is no list")
    except FileNotFoundError:
        raise InputError(
            f"{source}: no such file; correct the path in the data set's file"
        ) from None
    except InputError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise InputError(
            f"{source}: not a COCO json file with `images` and `categories` ({e!r})"
        ) from None
    return content


def _category_names(content: dict[str, Any]) -> dict[Id, str]:
    """The names of the categories by id, but for ids that stand for several."""
    names: dict[Id, set[str]] = defaultdict(set)
    for category in content["categories"]:
        names[category["id"]].add(category["name"])
    return {number: given.pop() for number, given in names.items() if len(given) == 1}


def _is_id(value: object) -> TypeGuard[Id]:
    # NaN is none
    return isinstance(value, int | float | str) and not isinstance(value, bool) and value == value


def _is_text(value: object) -> bool:
    """Half of a surrogate pair can be neither a file's name nor shown, a zero byte is in no file's
    name."""
    return isinstance(value, str) and not re.search("[\0\ud800-\udfff]", value)


def _xywh(bbox: object) -> Sequence[float]:
    """x, y, width, height; NaN where there are not four numbers."""
    return [_number(v) for v in bbox] if isinstance(bbox, list) and len(bbox) == 4 else NO_BOX


def _number(value: object) -> float:
    try:
        return (
            float(value)
            if isinstance(value, int | float) and not isinstance(value, bool)
            else math.nan
        )
    except OverflowError:  # an integer of hundreds of digits
        return math.inf


def _area(value: object, of_box: float) -> float:
    """That of the box where no number is given that makes sense."""
    area = _number(value)
    return area if abs(area) < FARTHEST**2 else of_box


def _polygons(segmentation: object) -> list[np.ndarray]:
    """COCO's list of flat polygons -> parts (k, 2); none for run-length masks, and if one of the
    parts makes no sense."""
    if not isinstance(segmentation, list) or not all(
        isinstance(part, list) for part in segmentation
    ):
        return []
    flat = [[_number(v) for v in part] for part in segmentation]
    if not all(abs(v) < FARTHEST for part in flat for v in part):
        return []
    return [
        np.array(part, np.float32).reshape(-1, 2)
        for part in flat
        if len(part) >= 6 and len(part) % 2 == 0
    ]
