"""The file that describes a data set (`data.yaml`), or a folder that speaks for itself."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from detector.data import demo
from detector.data.cache.labels import cached
from detector.data.coco_json import CocoDataset, read_coco
from detector.data.datasets import DetectionDataset
from detector.data.images import MAX_PIXELS_VARIABLE, SUFFIXES, most_pixels
from detector.data.voc_xml import VocDataset
from detector.data.yolo_txt import YoloDataset
from detector.errors import InputError
from detector.text_file import exists, is_dir, read_text
from detector.yaml_text import LARGEST, NO_YAML, load_yaml

FORMATS = ("yolo", "voc", "coco")
DEMO_ROOT = Path("datasets/demo")
MOST_CLASSES = 100_000  # that `nc` may promise without names
_EXPECTED = {
    "yolo": "give a folder of images, or a text file that lists them",
    "voc": "format voc wants a text file of image IDs, like ImageSets/Main/train.txt",
    "coco": "format coco wants a json file",
}


@dataclass
class DatasetFile:
    """A data set by name: where its splits are, in which label format, and the class names.

    source: what the user gave · root: where its relative paths start · format: yolo, voc or coco · names: in class order ·
    splits: paths of `train`, `val`, `test` as far as they are given · images: further image folders (COCO) ·
    keep_difficult: VOC objects marked difficult are kept.
    """

    source: str
    root: Path
    format: str
    names: list[str]
    splits: dict[str, list[Path]] = field(default_factory=dict)
    images: list[Path] = field(default_factory=list)
    keep_difficult: bool = False

    @classmethod
    def read(cls, source: str) -> DatasetFile:
        """`demo`, a data.yaml, a folder with a data.yaml, or a VOC folder (Annotations, JPEGImages, ImageSets/Main).

        The keys of a data.yaml are YOLOv5's: `path` (relative to the file, or to the current folder), `train`, `val`, `test`
        (a folder, a list file, a json file, or a list of them), `names` (list or map), `nc`; and ours: `format` (yolo, voc,
        coco; found out when left out), `images` (folders of a COCO set's images), `keep_difficult`.

        Raises:
            InputError: naming the file and the key.
        """
        if source == demo.NAME:
            return cls(source, DEMO_ROOT, "yolo", list(demo.NAMES), _demo_splits())
        path = Path(source)
        if is_dir(path) and (path / "data.yaml").is_file():
            path = path / "data.yaml"
        if is_dir(path):
            return cls._read_voc_folder(path)
        if not exists(path):
            raise InputError(f"data.dataset {source}: no such file; give a data.yaml, a VOC folder, or 'demo'")
        try:
            content = load_yaml(read_text(path, LARGEST))
        except InputError as e:
            raise InputError(f"data.dataset {e}; give a data.yaml, a VOC folder, or 'demo'") from None
        except NO_YAML as e:
            raise InputError(f"data.dataset {path}: not valid YAML ({' '.join(str(e).split())})") from None
        if not isinstance(content, dict):
            raise InputError(f"data.dataset {path}: expected a map with the keys train, val, names")
        return cls._from_content(path, content)

    @classmethod
    def _from_content(cls, path: Path, content: dict[str, Any]) -> DatasetFile:
        root = Path(str(content.get("path") or "."))
        root = next((p for p in (path.parent / root, root) if is_dir(p)), None) or path.parent / root
        if not is_dir(root):
            raise InputError(f"{path}: path '{content['path']}' is neither a folder beside this file nor one from here")
        splits = {}
        for split in ("train", "val", "test"):
            entries = content.get(split) or []
            entries = entries if isinstance(entries, list) else [entries]
            splits[split] = [_resolve(root, path.parent, str(entry)) for entry in entries]
        splits = {split: paths for split, paths in splits.items() if paths}
        if not splits:
            raise InputError(f"{path}: none of the keys train, val, test is given")
        kind = content.get("format") or _guess_format(root, splits)
        if kind not in FORMATS:
            raise InputError(f"{path}: format '{kind}' is not known; choose from {', '.join(FORMATS)}")
        folders = content.get("images") or []
        folders = [root / str(f) for f in (folders if isinstance(folders, list) else [folders])]
        names = _names(path, content)
        if names is None and kind == "voc":
            names = VocDataset.find_names(root)
        if names is None and kind == "coco":
            categories = read_coco(splits[next(iter(splits))][0])["categories"]
            names = [str(c["name"]) for c in sorted(categories, key=lambda c: c["id"])]
        if not names:
            raise InputError(f"{path}: the key `names` is missing; give the class names as a list or a map")
        return cls(str(path), root, kind, names, splits, folders, bool(content.get("keep_difficult", False)))

    @classmethod
    def _read_voc_folder(cls, root: Path) -> DatasetFile:
        lists = {s: root / "ImageSets" / "Main" / f"{s}.txt" for s in ("train", "val", "test")}
        splits = {s: [p] for s, p in lists.items() if p.is_file()}
        if not splits or not (root / "Annotations").is_dir():
            raise InputError(
                f"data.dataset {root}: this folder holds neither a data.yaml nor Annotations and ImageSets/Main/train.txt"
            )
        names = VocDataset.find_names(root)
        if not names:
            raise InputError(f"data.dataset {root}: no file in its folder Annotations can be read and names an object")
        return cls(str(root), root, "voc", names, splits)

    def draw_demo(self) -> None:
        """Draw the demo data set if it was asked for and is not there yet; do it in one process only."""
        if self.source == demo.NAME:
            demo.make_demo(self.root)

    def open(self, split: str, strict: bool = True) -> DetectionDataset:
        """The split, read and checked. Not strict: objects whose class has no name are dropped and named like other faults, and
        no image need be usable.

        Raises:
            InputError: the split is not given, holds no usable image, or class numbers without a name.
        """
        if split not in self.splits:
            raise InputError(f"{self.source}: the key `{split}` is missing; it has {', '.join(self.splits)}")
        paths = self.splits[split]
        for path in paths:
            if not exists(path):
                raise InputError(f"{self.source}: {split} refers to {path}, which does not exist")
            if is_dir(path) and self.format != "yolo":
                raise InputError(f"{self.source}: {split} refers to the folder {path}; {_EXPECTED[self.format]}")
            if path.suffix.lower() in SUFFIXES:
                raise InputError(f"{self.source}: {split} refers to one image, {path}; {_EXPECTED[self.format]}")
        options = {"format": self.format, "names": self.names, "keep_difficult": self.keep_difficult}
        options[MAX_PIXELS_VARIABLE] = most_pixels()
        if strict:
            dataset = cached(split, self.places(split), options, lambda: self._parse(split, strict))
        else:
            dataset = self._parse(split, strict)
        if strict and not len(dataset):
            lost = dataset.report.lost_images
            why = f"all {len(lost)} were left out, first: {lost[0]}" if lost else "no image file was found"
            raise InputError(f"{self.source}: {split} has no usable image under {paths[0]} ({why})")
        return dataset

    def _parse(self, split: str, strict: bool) -> DetectionDataset:
        paths = self.splits[split]
        if self.format == "yolo":
            return YoloDataset(paths, self.names, self.root, strict)
        if self.format == "voc":
            return VocDataset(paths, self.names, self.root, self.keep_difficult, strict)
        return CocoDataset(paths, self.names, self.coco_folders(split), strict)

    def places(self, split: str) -> list[str]:
        """What tells a split from all others: where it is."""
        return [split, *map(str, (self.root, *self.splits[split], *self.images))]

    def coco_folders(self, split: str) -> list[Path]:
        """Where the images of a COCO file may be, in the order in which they are tried."""
        beside = self.splits[split][0].parent
        guesses = [self.root / "images" / split, self.root / split, self.root / "images", self.root, beside]
        named = self.splits[split][0].stem.removeprefix("instances_")  # instances_train2017.json -> train2017
        return [*self.images, self.root / named, self.root / "images" / named, *guesses]


def _demo_splits() -> dict[str, list[Path]]:
    return {split: [DEMO_ROOT / "images" / split] for split in ("train", "val")}


def _resolve(root: Path, beside: Path, entry: str) -> Path:
    """A split's path: relative to the root, else to the description file, else to the current folder."""
    return next((p for p in (root / entry, beside / entry, Path(entry)) if exists(p)), root / entry)


def _guess_format(root: Path, splits: dict[str, list[Path]]) -> str:
    first = next(iter(splits.values()))[0]
    if first.suffix == ".json":
        return "coco"
    return "voc" if first.suffix == ".txt" and (root / "Annotations").is_dir() else "yolo"


def _names(path: Path, content: dict[str, Any]) -> list[str] | None:
    """`names` as a list; a map must have the keys 0 to n - 1."""
    names, count = content.get("names"), content.get("nc")
    if isinstance(names, dict):
        try:
            numbered = {int(k): v for k, v in names.items()}
        except (TypeError, ValueError, OverflowError):
            numbered = {}
        if sorted(numbered) != list(range(len(names))):
            raise InputError(f"{path}: `names` must have the keys 0 to {len(names) - 1}")
        names = [numbered[k] for k in range(len(numbered))]
    if names is None and isinstance(count, int):
        if count > MOST_CLASSES:
            raise InputError(f"{path}: nc is {count}, more than {MOST_CLASSES}; correct it, or give the class names as `names`")
        names = list(range(count))
    if names is None:
        return None
    if not isinstance(names, list):
        raise InputError(f"{path}: `names` must be a list or a map of class names, not {names!r}")
    names = [str(n) for n in names]
    if len(set(names)) != len(names):
        twice = next(n for n, times in Counter(names).items() if times > 1)
        raise InputError(f"{path}: `names` holds '{twice}' twice; every class needs its own name")
    if count is not None and count != len(names):
        raise InputError(f"{path}: nc is {count}, but `names` has {len(names)} entries; leave nc out or correct it")
    return names
