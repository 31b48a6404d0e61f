"""What describes a data set: a file (`data.yaml`), or a folder that speaks for itself.

A further layout of files and folders is a function here that gives a DatasetFile, beside
`_from_yaml` and `_from_folder`; a further label format is a row in FORMATS.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from os.path import exists, isdir, isfile
from pathlib import Path
from typing import Any

from boltbox.detector.data import demo
from boltbox.detector.data.datasets import DetectionDataset
from boltbox.detector.data.formats.coco_json import CocoJson
from boltbox.detector.data.formats.format import Format, Split
from boltbox.detector.data.formats.voc_xml import VocXml
from boltbox.detector.data.formats.yolo_txt import YoloText
from boltbox.detector.data.read_split import Part, SplitReader
from boltbox.detector.model.parts import find_part
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.rank_zero import rank_zero_print
from boltbox.detector.system.text_file import parse_yaml, read_text

DEMO_ROOT = Path("datasets/demo")
FORMATS: dict[str, type[Format]] = {"yolo": YoloText, "voc": VocXml, "coco": CocoJson}


def format_class(name: str) -> type[Format]:
    """The format of a name in FORMATS, or a class of the user's own by its import path,
    `my_formats.CsvRows`.

    A path is code, which is imported: it must come from a command line, a configuration or a
    script, never from a data file.

    Raises:
        InputError: there is no such format.
    """
    if name in FORMATS:
        return FORMATS[name]
    if "." not in name:
        raise InputError(
            f"data.format {name}: choose from {', '.join(FORMATS)}, or give the import path of a"
            " class of your own"
        )
    return find_part({"class_path": name}, Format, "data.format")  # type: ignore[type-abstract]


@dataclass
class DatasetFile:
    """A data set by name: where its splits are, in which label format, and the class names.

    source: what the user gave · root: where its relative paths start · format: see `format_class` ·
    splits: paths of `train`, `val`, `test` as far as they are given · names: in class order; those
    in the labels, where none are given · images: further image folders (COCO) · keep_difficult:
    VOC objects marked difficult are kept · share: of the images of `train` that is `val`, where
    that is not given.

    Raises:
        InputError: no names are given, and none are in the labels.
    """

    source: str
    root: Path
    format: str
    splits: dict[str, list[Path]]
    names: list[str] = field(default_factory=list)
    images: list[Path] = field(default_factory=list)
    keep_difficult: bool = False
    share: float | None = None

    def __post_init__(self) -> None:
        self.found_names = not self.names
        if self.found_names:
            self.names = format_class(self.format).find_names(self.root, self.splits)
        if not self.names:
            raise InputError(
                f"{self.source}: the key `names` is missing, and no label names an object; give"
                " the class names as a list or a map"
            )

    @classmethod
    def read(
        cls, source: str, split: float | None = None, format: str | None = None
    ) -> DatasetFile:
        """`demo`, a data.yaml, a folder with a data.yaml, or a VOC folder: xml files in Annotations
        or beside the images, with the lists ImageSets/Main, with folders train and val, or neither
        and a `split`.

        The keys of a data.yaml are YOLOv5's: `path` (relative to the file, or to the current
        folder), `train`, `val`, `test` (a folder, a list file, a json file, or a list of them),
        `names` (list or map), `nc`; and ours: `format` (yolo, voc, coco; found out when left out),
        `images` (folders of a COCO set's images), `split` (as the argument),
        `keep_difficult`.

        Args:
            source: what the user gave.
            split: share of the images of `train` that is `val`, for a data set that names no `val`;
                see `Part`.
            format: that of the labels, in place of the key; see `format_class`.

        Raises:
            InputError: naming the file and the key.
        """
        path = Path(source)
        if isfile(path / "data.yaml"):
            path = path / "data.yaml"
        if source == demo.NAME:
            splits = {s: [DEMO_ROOT / "images" / s] for s in ("train", "val")}
            file = cls(source, DEMO_ROOT, "yolo", splits, list(demo.NAMES))
        else:
            file = _from_folder(path) if isdir(path) else _from_yaml(path, format)
        if split is not None:
            file.share = split
        if file.share is not None:
            file._divide(file.share)
        return file

    def _divide(self, share: object) -> None:
        """A part of `train` becomes `val`."""
        if not isinstance(share, int | float) or not 0 < share < 1:
            raise InputError(
                f"{self.source}: split is {share!r}; it is the share of the images for validation,"
                " like 0.2"
            )
        if "val" in self.splits or "train" not in self.splits:
            raise InputError(
                f"{self.source}: split {share:g} divides a train split into train and val, but it"
                f" has {', '.join(self.splits)}; leave split out"
            )
        train = self.splits["train"]
        self.splits = {"train": train, "val": train, **self.splits}

    def prepare(self) -> None:
        """In one process only: draw the demo data set if it was asked for and is not there yet; say
        which names were found."""
        if self.source == demo.NAME:
            demo.make_demo(self.root)
        if self.found_names:
            names = ", ".join(self.names[:20])
            rank_zero_print(f"names: {len(self.names)} found in the labels: {names}")

    def open(self, split: str, strict: bool = True, single_class: bool = False) -> DetectionDataset:
        """The split, read and checked.

        Args:
            strict: an object whose class has no name is an error, and a split without a usable box.
                Else it is dropped, and named like other faults.
            single_class: every object becomes class 0.

        Raises:
            InputError: the split is not given, or cannot be used.
        """
        if split not in self.splits:
            hint = "; --data.split 0.2 sets a fifth of train aside for it, always the same"
            raise InputError(
                f"{self.source}: the split `{split}` is missing; it has"
                f" {', '.join(self.splits)}{hint if split == 'val' else ''}"
            )
        paths, part = self.splits[split], None
        for path in paths:
            if not exists(path):
                raise InputError(f"{self.source}: {split} refers to {path}, which does not exist")
        if self.share is not None and split != "test":
            part = Part(self.share, split == "val", self.root)
        form = format_class(self.format)(
            Split(split, paths, self.root, self.images, self.keep_difficult)
        )
        dataset = SplitReader(form, self.names, strict, single_class, part).read()
        if strict and not len(dataset.labels.boxes):
            lost = f", first left out: {dataset.faults[0]}" if dataset.faults else ""
            raise InputError(
                f"{self.source}: no usable box in {split} ({len(dataset)} images under {paths[0]},"
                f" {dataset.unlabelled} without a label file of format {self.format}{lost})"
            )
        return dataset


def _from_folder(root: Path) -> DatasetFile:
    """A folder without a data.yaml: one with VOC annotations."""
    splits = VocXml.find_splits(root)
    if not splits:
        raise InputError(
            f"data.dataset {root}: this folder holds neither a data.yaml nor images with VOC"
            " annotations (JPEGImages or images with Annotations/*.xml, or xml files beside"
            " the images); for other labels write a data.yaml"
        )
    return DatasetFile(str(root), root, "voc", splits)


def _from_yaml(path: Path, format: str | None) -> DatasetFile:
    """A data.yaml. format: instead of its key."""
    wanted = "give a data.yaml, a VOC folder, or 'demo'"
    try:
        content = parse_yaml(read_text(path), path)
    except InputError as e:
        raise InputError(f"data.dataset {e}; {wanted}") from None
    if not isinstance(content, dict):
        raise InputError(f"data.dataset {path}: expected a map with the keys train, val, names")

    def listed(key: str) -> list[str]:
        value = content.get(key) or []
        return [str(entry) for entry in (value if isinstance(value, list) else [value])]

    given = Path(str(content.get("path") or "."))
    root = next(filter(isdir, (path.parent / given, given)), None)
    if root is None:
        raise InputError(
            f"{path}: path '{given}' is neither a folder beside this file nor one from here"
        )
    splits = {}
    for split in ("train", "val", "test"):
        # relative to the root, else to the data.yaml, else to the current folder
        places = [(root / e, path.parent / e, Path(e)) for e in listed(split)]
        if places:
            splits[split] = [next(filter(exists, of), of[0]) for of in places]
    if not splits:
        raise InputError(f"{path}: none of the keys train, val, test is given")
    kind = format or str(content.get("format") or _guess_format(root, splits))
    if not format and kind not in FORMATS:
        raise InputError(
            f"{path}: format '{kind}' is not known; choose from {', '.join(FORMATS)}, or for a"
            f" class of your own give --data.format {kind}"
        )
    names, images = _read_names(path, content), [root / folder for folder in listed("images")]
    options = bool(content.get("keep_difficult")), content.get("split")
    return DatasetFile(str(path), root, kind, splits, names, images, *options)


def _guess_format(root: Path, splits: dict[str, list[Path]]) -> str:
    """By the first path of the first split."""
    first = next(iter(splits.values()))[0]
    if first.suffix == ".json":
        return "coco"
    return "voc" if VocXml.recognises(root, first) else "yolo"


def _read_names(path: Path, content: dict[str, Any]) -> list[str]:
    """The key `names` as a list; a map must have the keys 0 to n - 1. `nc` alone gives numbers.
    Empty if there is neither.

    Args:
        path: of the data.yaml, for messages. content: what it holds.

    Raises:
        InputError: it cannot be used.
    """
    names, count = content.get("names"), content.get("nc")
    if names is None:
        return [str(number) for number in range(count)] if isinstance(count, int) else []
    if isinstance(names, dict):
        numbered = {str(key): name for key, name in names.items()}
        names = [numbered.get(str(number)) for number in range(len(names))]
    if not isinstance(names, list) or None in names:
        raise InputError(
            f"{path}: `names` must be a list of class names, or a map with the keys 0, 1, 2, ..."
        )
    names = [str(name) for name in names]
    twice = [name for name, times in Counter(names).items() if times > 1]
    if twice:
        raise InputError(
            f"{path}: `names` holds {twice[0]!r} twice; every class needs its own name"
        )
    return names
