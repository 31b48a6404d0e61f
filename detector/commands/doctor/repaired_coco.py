"""Repaired COCO annotations."""

import json
from collections import defaultdict
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from detector.commands.doctor.labels import PAST_FRAME
from detector.data.dataset_file import DatasetFile
from detector.data.datasets import DetectionDataset, box_problem
from detector.data.formats.coco_json import Id, by_image, category_name, class_names, locate, read_coco, xywh_of
from detector.model.boxes import clip_xyxy
from detector.system.errors import InputError

Entry = dict[str, Any]


class _Ids:
    """Hands out ids: the one that is asked for, if it is still free."""

    def __init__(self) -> None:
        self.taken: set[Any] = set()
        self.numbers = count(1)

    def take(self, wanted: Any) -> Any:
        if not isinstance(wanted, int | float | str) or wanted in self.taken:
            wanted = next(n for n in self.numbers if n not in self.taken)
        self.taken.add(wanted)
        return wanted


class CocoCopy:
    """One json for the images `names` of a split (path -> path below folder/images/split), from however many it had.

    Ids stay as they are unless two of the files use the same.
    """

    def __init__(
        self, file: DatasetFile, split: str, dataset: DetectionDataset, names: dict[str, str], done: list[str]
    ) -> None:
        self.classes, self.names, self.done = set(file.names), names, done
        self.sizes = {path: (labels.height, labels.width) for path, labels in zip(dataset.files, dataset.labels, strict=True)}
        self.image_ids, self.annotation_ids, self.category_ids = _Ids(), _Ids(), _Ids()
        self.category_of: dict[str, Any] = {}
        self.rest: Entry = {}  # info, licenses
        self.images: list[Entry] = []
        self.of_path: dict[str, Entry] = {}
        self.seen: dict[Any, set[tuple]] = defaultdict(set)  # boxes by image
        self.annotations: list[Entry] = []
        self.categories: list[Entry] = []
        for source in file.splits[split]:
            self._add(source, file.coco_folders(split))

    def write(self, folder: Path, split: str) -> str:
        """Write it; returns the `split` of a data.yaml."""
        content = {**self.rest, "images": self.images, "annotations": self.annotations, "categories": self.categories}
        (folder / "annotations").mkdir(parents=True, exist_ok=True)
        try:
            (folder / "annotations" / f"{split}.json").write_text(json.dumps(content), encoding="utf-8")
        except (RecursionError, ValueError) as e:  # lists within lists, integers of thousands of digits
            raise InputError(f"{split}: its annotations cannot be written again as JSON ({e})") from None
        return f"annotations/{split}.json"

    def _add(self, source: Path, folders: list[Path]) -> None:
        content = read_coco(source)
        self.rest = {**content, **self.rest}
        for category in content["categories"]:
            if category["name"] not in self.category_of:
                self.category_of[category["name"]] = self.category_ids.take(category["id"])
                self.categories.append({**category, "id": self.category_of[category["name"]]})
        names = class_names(content)
        of_image, astray = by_image(content)
        self.done += [f"{source}, {where}: dropped ({why})" for where, why, _ in astray]
        for entry in content["images"]:
            path = str(locate(entry["file_name"], folders))
            if path in self.names:
                self._add_image(f"{source}, image {entry['id']}", entry, path)
                self._add_annotations(source, of_image[entry["id"]], self.of_path[path], names)
            elif of_image[entry["id"]]:
                self.done.append(f"{source}: left out the annotations of {path}")

    def _add_annotations(self, source: Path, entries: list[Entry], image: Entry, names: dict[Id, str]) -> None:
        seen = self.seen[image["id"]]
        for entry in entries:
            name = category_name(entry, names)
            where = f"{source}, annotation {entry.get('id')} ({name})"
            box, why = _inside(xywh_of(entry.get("bbox")), image["height"], image["width"])
            if not why and name not in self.classes:
                why = "its class is not among the data set's names"
            key = (name, entry.get("iscrowd") == 1, *box)
            if not why and key in seen:
                why = "duplicate of an earlier annotation"
            if why:
                self.done.append(f"{where}: dropped ({why})")
                continue
            seen.add(key)
            if box != entry["bbox"]:
                self.done.append(f"{where}: box clipped to the image")
            changed = {"image_id": image["id"], "category_id": self.category_of[str(name)], "bbox": box}
            self.annotations.append({**entry, "id": self.annotation_ids.take(entry.get("id")), **changed})

    def _add_image(self, where: str, entry: Entry, path: str) -> None:
        if path in self.of_path:
            self.done.append(f"{where}: listed again, its annotations go to the first")
            return
        height, width = self.sizes[path]
        for key, pixels in (("height", height), ("width", width)):
            if entry.get(key, pixels) != pixels:
                self.done.append(f"{where}: {key} {entry[key]} corrected to {pixels}")
        number = self.image_ids.take(entry["id"])
        self.of_path[path] = {**entry, "id": number, "file_name": self.names[path], "height": height, "width": width}
        self.images.append(self.of_path[path])


def _inside(xywh: list[float], height: int, width: int) -> tuple[list[float], str]:
    """x, y, width, height inside the image; why the box cannot stay, or an empty string."""
    x, y, w, h = xywh
    problem = box_problem((x, y, x + w, y + h))
    if problem:
        return xywh, problem
    box = np.array((x, y, x + w, y + h))
    inside = clip_xyxy(box, width, height)
    if (inside[2:] <= inside[:2]).any():
        return xywh, "the box lies outside the image"
    if np.abs(box - inside).max() <= PAST_FRAME:
        return xywh, ""
    return [float(v) for v in (*inside[:2], *(inside[2:] - inside[:2]))], ""
