"""What describes a dataset: a file (`data.yaml`), or a folder whose layout is known.

A further layout of files and folders is one of `layouts.py`; a further label format is a row in
FORMATS.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from os.path import isdir, isfile
from pathlib import Path

from boltbox.detector.data import demo
from boltbox.detector.data.cache.archive import fetched, unpacked
from boltbox.detector.data.cache.labels import CacheFile
from boltbox.detector.data.class_names import read_names
from boltbox.detector.data.datasets import DetectionDataset
from boltbox.detector.data.file_list import FileList, state_of
from boltbox.detector.data.formats.coco_json import CocoJson
from boltbox.detector.data.formats.format import SPLIT_NAMES, Format, Split, find_tail
from boltbox.detector.data.formats.metadata_jsonl import MetadataJsonl
from boltbox.detector.data.formats.tensorflow_csv import TensorflowCsv
from boltbox.detector.data.images import SUFFIXES, read_lines
from boltbox.detector.data.layouts import (
    DESCRIPTIONS,
    PER_IMAGE,
    Content,
    conversion,
    describe,
    labels_beside,
)
from boltbox.detector.data.public_datasets import public_name
from boltbox.detector.data.read_split import VERSION, SplitReader
from boltbox.detector.model.parts import find_part
from boltbox.detector.system.addresses import absolute, is_address, join, to_path
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.operating_system import alone
from boltbox.detector.system.rank_zero import rank_zero_print
from boltbox.detector.system.text_file import parse_yaml, read_text

DEMO_ROOT = Path("datasets/demo")
SHARE = 0.2  # of train that is val, where neither is given
FORMATS: dict[str, type[Format]] = {
    **PER_IMAGE,
    "coco": CocoJson,
    "metadata": MetadataJsonl,
    "csv": TensorflowCsv,
}
FORMAT_OF_SUFFIX = {".json": "coco", ".jsonl": "metadata", ".csv": "csv"}


def format_class(name: str) -> type[Format]:
    """The class of a label format.

    Args:
        name: a key of FORMATS, or the import path of a user's class, such as `my_formats.CsvRows`.
            A path is code, which is imported: it must come from a command line, a configuration or
            a script, never from a data file.

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
    """A dataset by name: where its splits are, in which label format, and the class names.

    Attributes:
        source: what the user typed.
        root: where its relative paths start.
        format: see `format_class`.
        splits: paths by split: `train`, `val`, `test`, or some of them.
        names: in class order; those in the labels, if none are given.
        images: further image folders (COCO).
        share: of the images of `train` that is `val`, if that is not given.
        notes: assumptions and corrections, to be printed.
        gives_names: the data.yaml or its folder gives the names.

    Raises:
        InputError: no names are given, and none are in the labels.
    """

    source: str
    root: Path
    format: str
    splits: dict[str, list[Path]]
    names: list[str] = field(default_factory=list)
    images: list[Path] = field(default_factory=list)
    share: float | None = None
    notes: list[str] = field(default_factory=list)
    gives_names: bool = True

    def __post_init__(self) -> None:
        if not self.names:
            self.names = self._find_names()
            shown = ", ".join(self.names[:20])
            self.notes.append(f"names: {len(self.names)} found in the labels: {shown}")
        if not self.names:
            raise InputError(
                f"{self.source}: the key `names` is missing, and no label names an object; give"
                " the class names as a list or a map"
            )

    @classmethod
    def read(
        cls,
        source: str,
        split: float | None = None,
        format: str | None = None,
        needs_val: bool = False,
    ) -> DatasetFile:
        """`demo`, a public dataset, a data.yaml, or a folder: one with a data.yaml, or as a
        labelling tool exports it (docs/data.md), also in a zip file.

        The keys of a data.yaml are YOLOv5's: `path` (relative to the file, or to the current
        folder), `train`, `val`, `test` (a folder, a list file, a json file, or a list of them),
        `names` (list or map), `nc`; and ours: `format` (see FORMATS; detected by default), `images`
        (folders of a COCO set's images), `split` (as the argument).

        Args:
            source: what the user typed.
            split: share of the images of `train` that is `val`, for a dataset that names no `val`;
                see `part_of` in read_split.py.
            format: that of the labels, instead of the key; see `format_class`.
            needs_val: without a `val`, SHARE of train becomes it.

        Raises:
            InputError: naming the file and the key.
        """
        if source == demo.NAME:
            root = DEMO_ROOT.absolute()
            paths = {name: [root / "images" / name] for name in ("train", "val")}
            file = cls(source, root, "yolo", paths, list(demo.NAMES))
        else:
            path = to_path(source)
            notes = []
            if name := public_name(source):
                path = fetched(name, DEMO_ROOT.parent)
            elif path.suffix.lower() == ".zip" and isfile(path):
                path = unpacked(path)
                notes.append(f"unpacked from {source}")
            described = [path / name for name in DESCRIPTIONS]
            path = next(filter(state_of, described), path)
            content = describe(path) if isdir(path) else _read_content(path)
            file = _from_content(path, content, format, notes)
        lacks_val = "train" in file.splits and "val" not in file.splits
        if split is not None:
            file.share = split
        elif needs_val and lacks_val and file.share is None:
            file.share = SHARE
            file.notes.append(
                "there is no val split: a fifth of train is set aside for it, always the same"
                f" (--data.split {SHARE})"
            )
        if file.share is not None:
            file._divide(file.share)
        return file

    def _find_names(self) -> list[str]:
        """The class names in the labels; one process of a machine looks for them."""
        kind = format_class(self.format)
        if self.format not in FORMATS:
            return kind.find_names(self.root, self.splits, FileList())
        cache = CacheFile("names", [kind.__qualname__, *self.splits.values()])
        with suppress(OSError):
            cache.path.parent.mkdir(parents=True, exist_ok=True)
        with alone(cache.path.parent):
            if found := cache.load(VERSION):
                return found["names"]
            files = FileList(with_states=True)
            names = kind.find_names(self.root, self.splits, files)
            cache.save(VERSION, files, {"names": names})
            return names

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
                f" has {', '.join(self.splits)}; leave split out (one of the run that --ckpt_path"
                " continues: --data.split null)"
            )
        train = self.splits["train"]
        # SplitReader divides the files of both by the share
        self.splits = {"train": train, "val": train} | self.splits

    def prepare(self) -> None:
        """Draw the demo dataset if it is asked for and not there yet, and print the notes. For one
        process only."""
        if self.source == demo.NAME:
            demo.make_demo(self.root)
        for note in self.notes:
            rank_zero_print(f"{self.source}: {note}")

    def without_names(self) -> list[str]:
        """The warning before a training of classes without names; no line if they have some."""
        if self.gives_names or self.names != list(map(str, range(len(self.names)))):
            return []
        return [
            f"warning: no class names; the classes are numbers, 0 to {len(self.names) - 1}",
            "  the checkpoints keep them; give `names` in a data.yaml first (docs/data.md)",
        ]

    def open(
        self, split: str, strict: bool = True, single_class: bool = False, stamp: str = ""
    ) -> DetectionDataset:
        """The split, read and checked.

        Args:
            split: train, val or test.
            strict: an object whose class has no name is an error, and a split without a usable box.
                Else it is dropped, and named like other faults.
            single_class: every object becomes class 0.
            stamp: of the dataset that another process of this machine has just opened.

        Raises:
            InputError: the split is not given, or cannot be used.
        """
        if split not in self.splits:
            raise InputError(
                f"{self.source}: the split `{split}` is missing; it has {', '.join(self.splits)}"
            )
        paths = self.splits[split]
        for path in paths:
            if not state_of(path):
                raise InputError(f"{self.source}: {split} refers to {path}, which does not exist")
            if self.format in PER_IMAGE and path.suffix == ".json":
                raise InputError(
                    f"{path}: labels of many images, in a dataset with a label file per image; give"
                    " all in one format (docs/formats.md)"
                )
        share = None if split == "test" else self.share
        described = Split(split, paths, self.root, self.images, share)
        label_format = format_class(self.format)(described)
        is_own = self.format not in FORMATS
        reader = SplitReader(label_format, self.names, strict, single_class, is_own)
        dataset = reader.read(stamp)
        if strict and not len(dataset.labels.boxes):
            lost = f", first left out: {dataset.faults[0]}" if dataset.faults else ""
            raise InputError(
                f"{self.source}: no usable box in {split} ({len(dataset)} images under {paths[0]},"
                f" {dataset.unlabelled} without a label file of format {self.format}{lost})"
            )
        return dataset


def _read_content(path: Path) -> Content:
    """The keys of a data.yaml."""
    if path.suffix in FORMAT_OF_SUFFIX:
        raise InputError(
            f"data.dataset {path}: a file of labels; give the folder that it lies in, or name it in"
            f" a data.yaml (train: {path.name}); {conversion(path.parent)}"
        )
    try:
        content = parse_yaml(read_text(path), path)
    except InputError as e:
        raise InputError(
            f"data.dataset {e}; give a data.yaml, a folder of this disk, or 'demo'"
        ) from None
    if not isinstance(content, dict):
        hint = "" if path.suffix in (".yaml", ".yml") else f"; {conversion(path.parent)}"
        raise InputError(f"data.dataset {path}: expected a map (train, val, names){hint}")
    return content


def _from_content(
    path: Path, content: Content, format: str | None, notes: list[str]
) -> DatasetFile:
    """Of the keys of a data.yaml; paths that do not exist are looked for near the file.

    Args:
        path: of the file, or the folder that is described.
        content: the keys.
        format: instead of its key.
        notes: gets what is corrected.
    """
    home = absolute(path if isdir(path) else path.parent)
    named = "".join(_as_list(content.get("path"))[:1])
    roots = [absolute(join(home, named)), absolute(named)]
    root = next((place for place in roots if is_address(place) or isdir(place)), None)
    if root is None:
        root = home
        notes.append(f"path {named} does not exist; using {home}")
    # where relative paths may start; files of this disk are no substitute for those at an address
    folders = [root] if is_address(root) else [root, home, Path.cwd()]
    splits: dict[str, list[Path]] = {}
    for split in SPLIT_NAMES:
        for entry in _as_list(content.get(split)):
            places = [join(folder, entry) for folder in folders]
            place = next(filter(state_of, places), None)
            is_known = place or is_address(entry)
            if not is_known and (tail := find_tail(entry, state_of, *folders[:2])):
                place = str(tail)
                notes.append(f"{split} {entry} does not exist; using {place}")
            if place is None and split == "test":
                notes.append(f"test {entry} does not exist; there is no test split")
            else:
                splits.setdefault(split, []).append(absolute(place or places[0]))
    if not splits:
        raise InputError(f"{path}: none of the keys train, val, test is given")
    if not format:
        format = str(content["format"]) if content.get("format") else _guess_format(root, splits)
        if format not in FORMATS:
            raise InputError(
                f"{path}: format '{format}' is not known; choose from {', '.join(FORMATS)}, or for"
                f" a class of your own give --data.format {format}"
            )
    if format == "yolo" and content.get("kpt_shape"):
        raise InputError(
            f"{path}: `kpt_shape`: its labels have keypoints, which would be read as polygons;"
            " keep the first five columns of each line, and remove the key"
        )
    return DatasetFile(
        str(path),
        root,
        format,
        splits,
        names=read_names(path, content),
        images=[absolute(join(root, folder)) for folder in _as_list(content.get("images"))],
        share=content.get("split"),
        notes=notes,
        gives_names=content.get("names") is not None,
    )


def _as_list(value: object) -> list[str]:
    """The paths of a key that holds one or several, or none."""
    if not value:
        return []
    return list(map(str, value)) if isinstance(value, list) else [str(value)]


def _guess_format(root: Path, splits: dict[str, list[Path]]) -> str:
    """By the first path of the first split."""
    first = next(iter(splits.values()))[0]
    if first.suffix in FORMAT_OF_SUFFIX:
        return FORMAT_OF_SUFFIX[first.suffix]
    files = FileList()
    lines = read_lines(first) if isfile(first) else []
    if lines or files.is_folder(first):
        found = labels_beside(first, root, files)
        if found:
            return found
    # a list without paths of images is one of VOC
    return "voc" if lines and Path(lines[0]).suffix.lower() not in SUFFIXES else "yolo"
