"""The file that describes a data set (`data.yaml`), or a folder that speaks for itself."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from detector.data import demo
from detector.data.cache.labels import cached
from detector.data.datasets import DetectionDataset
from detector.data.formats.coco_json import CocoDataset, read_coco
from detector.data.formats.voc_xml import ANNOTATIONS, VocDataset, annotation_path, image_folder
from detector.data.formats.yolo_txt import YoloDataset, label_path
from detector.data.images import MAX_PIXELS_VARIABLE, SUFFIXES, most_pixels
from detector.data.part import Part
from detector.system.errors import InputError
from detector.system.rank_zero import rank_zero_print
from detector.system.text_file import exists, is_dir, is_file, read_text
from detector.system.yaml_text import LARGEST, NO_YAML, load_yaml

FORMATS = ("yolo", "voc", "coco")
DEMO_ROOT = Path("datasets/demo")
MOST_CLASSES = 100_000  # that `nc` may promise without names
_SPLIT_FOLDERS = {"train": ["train"], "val": ["val", "valid", "validation"], "test": ["test"]}
_EXPECTED = {
    "yolo": "give a folder of images, or a text file that lists them",
    "voc": "format voc wants a folder of images, or a text file of image IDs, like ImageSets/Main/train.txt",
    "coco": "format coco wants a json file",
}


@dataclass
class DatasetFile:
    """A data set by name: where its splits are, in which label format, and the class names.

    source: what the user gave · root: where its relative paths start · format: yolo, voc or coco · names: in class order ·
    splits: paths of `train`, `val`, `test` as far as they are given · images: further image folders (COCO) ·
    keep_difficult: VOC objects marked difficult are kept · keep_emptied: images whose labels are all unusable stay, as
    background · share: of the images of `train` that is `val`, where that is not given · found_names: they come from the
    annotations.
    """

    source: str
    root: Path
    format: str
    names: list[str]
    splits: dict[str, list[Path]] = field(default_factory=dict)
    images: list[Path] = field(default_factory=list)
    keep_difficult: bool = False
    keep_emptied: bool = False
    share: float | None = None
    found_names: bool = False

    @classmethod
    def read(cls, source: str, split: float | None = None) -> DatasetFile:
        """`demo`, a data.yaml, a folder with a data.yaml, or a VOC folder: xml files in Annotations or beside the images, with
        the lists ImageSets/Main, with folders train and val, or neither and a `split`.

        The keys of a data.yaml are YOLOv5's: `path` (relative to the file, or to the current folder), `train`, `val`, `test`
        (a folder, a list file, a json file, or a list of them), `names` (list or map), `nc`; and ours: `format` (yolo, voc,
        coco; found out when left out), `images` (folders of a COCO set's images), `split` (as the argument), `keep_difficult`,
        `keep_emptied`.

        Args:
            source: what the user gave.
            split: share of the images of `train` that is `val`, for a data set that names no `val`; see `Part`.

        Raises:
            InputError: naming the file and the key.
        """
        if source == demo.NAME:
            return cls(source, DEMO_ROOT, "yolo", list(demo.NAMES), _demo_splits())._divided(split)
        path = Path(source)
        if is_dir(path) and (path / "data.yaml").is_file():
            path = path / "data.yaml"
        if is_dir(path):
            return cls._read_voc_folder(path, split)
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
        return cls._from_content(path, content)._divided(split if split is not None else content.get("split"))

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
        found = names is None
        if names is None and kind == "voc":
            names = VocDataset.find_names(root, [p for paths in splits.values() for p in paths])
        if names is None and kind == "coco":
            categories = read_coco(splits[next(iter(splits))][0])["categories"]
            names = [str(c["name"]) for c in sorted(categories, key=lambda c: c["id"])]
        if not names:
            raise InputError(f"{path}: the key `names` is missing; give the class names as a list or a map{_hint(root, kind)}")
        keep = {key: bool(content.get(key, False)) for key in ("keep_difficult", "keep_emptied")}
        return cls(str(path), root, kind, names, splits, folders, **keep, found_names=found and kind == "voc")

    @classmethod
    def _read_voc_folder(cls, root: Path, split: float | None) -> DatasetFile:
        lists = {s: root / "ImageSets" / "Main" / f"{s}.txt" for s in ("train", "val", "test")}
        splits = {s: [p] for s, p in lists.items() if p.is_file() and any((root / name).is_dir() for name in ANNOTATIONS)}
        images = image_folder(root) or root
        if not splits:
            named = {s: [f for n in names for f in (images / n, root / n) if has_xml(f)] for s, names in _SPLIT_FOLDERS.items()}
            splits = {s: folders[:1] for s, folders in named.items() if folders}
        if not splits and has_xml(images):
            splits = {"train": [images]}
        if not splits:
            raise InputError(
                f"data.dataset {root}: this folder holds neither a data.yaml nor images with VOC annotations (JPEGImages or "
                "images with Annotations/*.xml, or xml files beside the images); for other labels write a data.yaml"
            )
        names = VocDataset.find_names(root, [p for paths in splits.values() for p in paths])
        if not names:
            raise InputError(f"data.dataset {root}: none of its annotations can be read and names an object")
        return cls(str(root), root, "voc", names, splits, found_names=True)._divided(split)

    def _divided(self, share: object) -> DatasetFile:
        """The same with a part of `train` as `val`, if that is asked for."""
        if share is None:
            return self
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share < 1:
            raise InputError(f"{self.source}: split is {share!r}; it is the share of the images for validation, like 0.2")
        if "val" in self.splits or "train" not in self.splits:
            lacking = "it has a val split of its own" if "val" in self.splits else "it has no train split to divide"
            raise InputError(f"{self.source}: split {share:g} was given, but {lacking}; leave split out")
        self.share, self.splits = float(share), {"train": self.splits["train"], "val": self.splits["train"], **self.splits}
        return self

    def part(self, split: str) -> Part | None:
        """Which of the images of its paths belong to a split; None: all."""
        return None if self.share is None or split == "test" else Part(self.share, split == "val", self.root)

    def prepare(self) -> None:
        """In one process only: draw the demo data set if it was asked for and is not there yet; say what was not given."""
        self.draw_demo()
        if self.found_names:
            listed = ", ".join(self.names[:20]) + (", ..." if len(self.names) > 20 else "")
            rank_zero_print(
                f"names: {len(self.names)} found in the annotations of {self.source}, in alphabetical order: {listed}"
            )
        if self.share is not None:
            rank_zero_print(f"split: {self.share:g} of the images of train are val, chosen by the hash of their names")

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
            way = "; --data.split 0.2 sets a fifth of train aside for it, always the same" if split == "val" else ""
            raise InputError(f"{self.source}: the split `{split}` is missing; it has {', '.join(self.splits)}{way}")
        paths = self.splits[split]
        for path in paths:
            if not exists(path):
                raise InputError(f"{self.source}: {split} refers to {path}, which does not exist")
            if is_dir(path) and self.format == "coco":
                raise InputError(f"{self.source}: {split} refers to the folder {path}; {_EXPECTED[self.format]}")
            if path.suffix.lower() in SUFFIXES:
                raise InputError(f"{self.source}: {split} refers to one image, {path}; {_EXPECTED[self.format]}")
        options = {key: getattr(self, key) for key in ("format", "names", "keep_difficult", "keep_emptied")}
        options |= {"split": self.share, MAX_PIXELS_VARIABLE: most_pixels()}  # by the names that users know
        if strict:
            dataset = cached(split, self.places(split), options, lambda: self._parse(split, strict))
        else:
            dataset = self._parse(split, strict)
        hint = self.unread_labels(split, dataset) if strict else ""
        if hint:
            raise InputError(f"{self.source}: no image of {split} has labels{hint}")
        if strict and not len(dataset):
            lost = dataset.report.lost_images
            why = f"all {len(lost)} were left out, first: {lost[0]}" if lost else "no image file was found"
            raise InputError(f"{self.source}: {split} has no usable image under {paths[0]} ({why})")
        return dataset

    def _parse(self, split: str, strict: bool) -> DetectionDataset:
        paths, part = self.splits[split], self.part(split)
        if self.format == "yolo":
            return YoloDataset(paths, self.names, self.root, strict, self.keep_emptied, part)
        if self.format == "voc":
            return VocDataset(paths, self.names, self.root, self.keep_difficult, strict, self.keep_emptied, part)
        return CocoDataset(paths, self.names, self.coco_folders(split), strict, self.keep_emptied, part)

    def unread_labels(self, split: str, dataset: DetectionDataset) -> str:
        """A hint, if the images have no label file of the format, but there are files of another; else an empty string."""
        if self.format == "coco" or not len(dataset) or dataset.report.unlabelled < len(dataset):
            return ""
        suffix = "xml" if self.format == "yolo" else "txt"
        stems = {Path(image).stem for image in dataset.files}
        places = dict.fromkeys([*(p for p in self.splits[split] if is_dir(p)), self.root])
        found = next((f for f in (sorted(p for p in at.rglob(f"*.{suffix}") if p.stem in stems) for at in places) if f), [])
        if not found:
            return ""
        read = annotation_path if self.format == "yolo" else label_path
        if any(is_file(read(image)) for image in dataset.files):
            advice = f"if these are the labels, set `format: {'voc' if self.format == 'yolo' else 'yolo'}` in the data.yaml"
        else:
            advice = f"if these are the labels, they belong where {read(dataset.files[0])} is"
        wanted = label_path(dataset.files[0]) if self.format == "yolo" else annotation_path(dataset.files[0])
        return (
            f": format {self.format} looks for {wanted} and the like, but there are {len(found)} {suffix} files, "
            f"first {found[0]}; {advice}"
        )

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
    if is_dir(first):
        return "voc" if has_xml(first) else "yolo"
    of_voc = (root / "Annotations").is_dir() or next(
        (root / "annotations").glob("*.xml"), None
    )  # COCO's json files lie there too
    return "voc" if first.suffix == ".txt" and of_voc else "yolo"


def has_xml(folder: Path, most: int = 100) -> bool:
    """Whether images of a folder and its subfolders have VOC annotations and no text labels, as far as the first ones tell."""
    found = False
    images = (Path(at, name) for at, _, names in os.walk(folder) for name in sorted(names))
    for image in islice((path for path in images if path.suffix.lower() in SUFFIXES), most):
        if is_file(label_path(image)):
            return False
        found = found or is_file(annotation_path(image))
    return found


def _hint(root: Path, kind: str) -> str:
    """What a reader of the labels as YOLO text should know."""
    xml = next(root.rglob("*.xml"), None) if kind == "yolo" else None
    return f" (or, if the xml files here are the labels, like {xml}, set `format: voc`, which finds the names)" if xml else ""


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
