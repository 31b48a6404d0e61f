"""The file that describes a data set (`data.yaml`), or a folder that speaks for itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from boltbox.detector.data import demo
from boltbox.detector.data.cache.labels import cached
from boltbox.detector.data.class_names import read_names
from boltbox.detector.data.datasets import DetectionDataset
from boltbox.detector.data.formats import FORMATS, format_class
from boltbox.detector.data.formats.format import Format, Split
from boltbox.detector.data.formats.per_image import PerImageFormat
from boltbox.detector.data.images import MAX_PIXELS_VARIABLE, SUFFIXES, most_pixels
from boltbox.detector.data.part import Part
from boltbox.detector.data.read_split import SplitReader
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.rank_zero import rank_zero_print
from boltbox.detector.system.text_file import exists, is_dir, is_file, read_text
from boltbox.detector.system.yaml_text import NO_YAML, load_yaml

DEMO_ROOT = Path("datasets/demo")


@dataclass
class DatasetFile:
    """A data set by name: where its splits are, in which label format, and the class names.

    source: what the user gave · root: where its relative paths start · format: see `format_class` ·
    names: in class order · splits: paths of `train`, `val`, `test` as far as they are given ·
    images: further image folders (COCO) · keep_difficult: VOC objects marked difficult are kept ·
    keep_emptied: images whose labels are all unusable stay, as background · share: of the images of
    `train` that is `val`, where that is not given · found_names: they come from the annotations.
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
    def read(
        cls, source: str, split: float | None = None, format: str | None = None
    ) -> DatasetFile:
        """`demo`, a data.yaml, a folder with a data.yaml, or a VOC folder: xml files in Annotations
        or beside the images, with the lists ImageSets/Main, with folders train and val, or neither
        and a `split`.

        The keys of a data.yaml are YOLOv5's: `path` (relative to the file, or to the current
        folder), `train`, `val`, `test` (a folder, a list file, a json file, or a list of them),
        `names` (list or map), `nc`; and ours: `format` (yolo, voc, coco; found out when left out),
        `images` (folders of a COCO set's images), `split` (as the argument), `keep_difficult`,
        `keep_emptied`.

        Args:
            source: what the user gave.
            split: share of the images of `train` that is `val`, for a data set that names no `val`;
                see `Part`.
            format: that of the labels, in place of the key; see `format_class`.

        Raises:
            InputError: naming the file and the key.
        """
        if source == demo.NAME:
            return cls(source, DEMO_ROOT, "yolo", list(demo.NAMES), _demo_splits())._divided(split)
        path = Path(source)
        if is_dir(path) and (path / "data.yaml").is_file():
            path = path / "data.yaml"
        if is_dir(path):
            return cls._read_folder(path, format)._divided(split)
        if not exists(path):
            raise InputError(
                f"data.dataset {source}: no such file; give a data.yaml, a VOC folder, or 'demo'"
            )
        try:
            content = load_yaml(read_text(path))
        except InputError as e:
            raise InputError(
                f"data.dataset {e}; give a data.yaml, a VOC folder, or 'demo'"
            ) from None
        except NO_YAML as e:
            raise InputError(
                f"data.dataset {path}: not valid YAML ({' '.join(str(e).split())})"
            ) from None
        if not isinstance(content, dict):
            raise InputError(f"data.dataset {path}: expected a map with the keys train, val, names")
        return cls._from_content(path, content, format)._divided(
            split if split is not None else content.get("split")
        )

    @classmethod
    def _from_content(cls, path: Path, content: dict[str, Any], format: str | None) -> DatasetFile:
        root = Path(str(content.get("path") or "."))
        root = (
            next((p for p in (path.parent / root, root) if is_dir(p)), None) or path.parent / root
        )
        if not is_dir(root):
            raise InputError(
                f"{path}: path '{content['path']}' is neither a folder beside this file nor one"
                " from here"
            )
        splits = {}
        for split in ("train", "val", "test"):
            entries = content.get(split) or []
            entries = entries if isinstance(entries, list) else [entries]
            splits[split] = [_resolve(root, path.parent, str(entry)) for entry in entries]
        splits = {split: paths for split, paths in splits.items() if paths}
        if not splits:
            raise InputError(f"{path}: none of the keys train, val, test is given")
        kind = format or str(content.get("format") or _guess_format(root, splits))
        if not format and kind not in FORMATS:
            way = (
                f"; it is code of your own, which no data file can load: give --data.format {kind}"
                if "." in kind
                else ""
            )
            raise InputError(
                f"{path}: format '{kind}' is not known; choose from {', '.join(FORMATS)}{way}"
            )
        folders = content.get("images") or []
        folders = [root / str(f) for f in (folders if isinstance(folders, list) else [folders])]
        given = read_names(path, content)
        names = _found_names(format_class(kind), root, splits) if given is None else given
        if not names:
            raise InputError(
                f"{path}: the key `names` is missing; give the class names as a list or a"
                f" map{_hint(root, kind)}"
            )
        keep = {key: bool(content.get(key, False)) for key in ("keep_difficult", "keep_emptied")}
        sorted_ = given is None and not format_class(kind).lists_names
        return cls(str(path), root, kind, names, splits, folders, **keep, found_names=sorted_)

    @classmethod
    def _read_folder(cls, root: Path, format: str | None) -> DatasetFile:
        kinds = [format] if format else FORMATS
        kind, splits = next(
            ((k, found) for k in kinds if (found := format_class(k).find_splits(root))), ("", {})
        )
        if not splits:
            raise InputError(
                f"data.dataset {root}: this folder holds neither a data.yaml nor images with VOC"
                " annotations (JPEGImages or images with Annotations/*.xml, or xml files beside"
                " the images); for other labels write a data.yaml"
            )
        names = _found_names(format_class(kind), root, splits)
        if not names:
            raise InputError(
                f"data.dataset {root}: none of its annotations can be read and names an object"
            )
        return cls(
            str(root), root, kind, names, splits, found_names=not format_class(kind).lists_names
        )

    def _divided(self, share: object) -> DatasetFile:
        """The same with a part of `train` as `val`, if that is asked for."""
        if share is None:
            return self
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share < 1:
            raise InputError(
                f"{self.source}: split is {share!r}; it is the share of the images for validation,"
                " like 0.2"
            )
        if "val" in self.splits or "train" not in self.splits:
            lacking = (
                "it has a val split of its own"
                if "val" in self.splits
                else "it has no train split to divide"
            )
            raise InputError(
                f"{self.source}: split {share:g} was given, but {lacking}; leave split out"
            )
        self.share, self.splits = (
            float(share),
            {"train": self.splits["train"], "val": self.splits["train"], **self.splits},
        )
        return self

    def part(self, split: str) -> Part | None:
        """Which of the images of its paths belong to a split; None: all."""
        return (
            None
            if self.share is None or split == "test"
            else Part(self.share, split == "val", self.root)
        )

    def prepare(self) -> None:
        """In one process only: draw the demo data set if it was asked for and is not there yet; say
        what was not given."""
        self.draw_demo()
        if self.found_names:
            listed = ", ".join(self.names[:20]) + (", ..." if len(self.names) > 20 else "")
            rank_zero_print(
                f"names: {len(self.names)} found in the annotations of {self.source}, in"
                f" alphabetical order: {listed}"
            )
        if self.share is not None:
            rank_zero_print(
                f"split: {self.share:g} of the images of train are val, chosen by the hash of their"
                " names"
            )

    def draw_demo(self) -> None:
        """Draw the demo data set if it was asked for and is not there yet; do it in one process
        only."""
        if self.source == demo.NAME:
            demo.make_demo(self.root)

    def open(self, split: str, strict: bool = True) -> DetectionDataset:
        """The split, read and checked. Not strict: objects whose class has no name are dropped and
        named like other faults, and no image need be usable.

        Raises:
            InputError: the split is not given, holds no usable image, or class numbers without a
                name.
        """
        if split not in self.splits:
            way = (
                "; --data.split 0.2 sets a fifth of train aside for it, always the same"
                if split == "val"
                else ""
            )
            raise InputError(
                f"{self.source}: the split `{split}` is missing; it has"
                f" {', '.join(self.splits)}{way}"
            )
        paths = self.splits[split]
        for path in paths:
            if not exists(path):
                raise InputError(f"{self.source}: {split} refers to {path}, which does not exist")
            form = format_class(self.format)
            if not form.accepts(path):
                what = (
                    "the folder "
                    if is_dir(path)
                    else "one image, "
                    if path.suffix.lower() in SUFFIXES
                    else ""
                )
                raise InputError(f"{self.source}: {split} refers to {what}{path}; {form.wants}")
        options = {
            key: getattr(self, key) for key in ("format", "names", "keep_difficult", "keep_emptied")
        }
        # by the names that users know
        options |= {"split": self.share, MAX_PIXELS_VARIABLE: most_pixels()}
        if strict:
            dataset = cached(split, self.places(split), options, lambda: self._parse(split, strict))
        else:
            dataset = self._parse(split, strict)
        hint = self.unread_labels(split, dataset) if strict else ""
        if hint:
            raise InputError(f"{self.source}: no image of {split} has labels{hint}")
        if strict and not len(dataset):
            lost = dataset.report.lost_images
            why = (
                f"all {len(lost)} were left out, first: {lost[0]}"
                if lost
                else "no image file was found"
            )
            raise InputError(f"{self.source}: {split} has no usable image under {paths[0]} ({why})")
        return dataset

    def form(self, split: str) -> Format:
        """The format of the labels, about to read a split."""
        place = Split(split, self.splits[split], self.root, self.images, self.keep_difficult)
        return format_class(self.format)(place)

    def _parse(self, split: str, strict: bool) -> DetectionDataset:
        return SplitReader(
            self.form(split), self.names, strict, self.keep_emptied, self.part(split)
        ).read()

    def unread_labels(self, split: str, dataset: DetectionDataset) -> str:
        """A hint, if the images have no label file of the format, but there are files of another;
        else an empty string."""
        own, images = format_class(self.format), dataset.files
        if (
            not issubclass(own, PerImageFormat)
            or not len(images)
            or dataset.report.unlabelled < len(images)
        ):
            return ""
        stems = {Path(image).stem for image in images}
        places = dict.fromkeys([*(p for p in self.splits[split] if is_dir(p)), self.root])
        for name, other in FORMATS.items():
            if other is own or not issubclass(other, PerImageFormat):
                continue
            files = (
                sorted(p for p in at.rglob(f"*{other.suffix}") if p.stem in stems) for at in places
            )
            found = next(filter(None, files), [])
            if not found:
                continue
            if any(is_file(other.label_path(image)) for image in images):
                advice = f"set `format: {name}` in the data.yaml"
            else:
                advice = f"they belong where {other.label_path(images[0])} is"
            return (
                f": format {self.format} looks for {own.label_path(images[0])} and the like, but"
                f" there are {len(found)} {other.suffix[1:]} files, first {found[0]}; if these are"
                f" the labels, {advice}"
            )
        return ""

    def places(self, split: str) -> list[str]:
        """What tells a split from all others: where it is."""
        return [split, *map(str, (self.root, *self.splits[split], *self.images))]


def _demo_splits() -> dict[str, list[Path]]:
    return {split: [DEMO_ROOT / "images" / split] for split in ("train", "val")}


def _resolve(root: Path, beside: Path, entry: str) -> Path:
    """A split's path: relative to the root, else to the description file, else to the current
    folder."""
    return next((p for p in (root / entry, beside / entry, Path(entry)) if exists(p)), root / entry)


def _guess_format(root: Path, splits: dict[str, list[Path]]) -> str:
    first = next(iter(splits.values()))[0]
    return next(name for name, form in reversed(FORMATS.items()) if form.recognises(root, first))


def _found_names(form: type[Format], root: Path, splits: dict[str, list[Path]]) -> list[str]:
    names = form.find_names(root, splits)
    return names if form.lists_names else sorted(names)


def _hint(root: Path, kind: str) -> str:
    """What a reader of the labels as YOLO text should know."""
    xml = next(root.rglob("*.xml"), None) if kind == "yolo" else None
    return (
        f" (or, if the xml files here are the labels, like {xml}, set `format: voc`, which finds"
        " the names)"
        if xml
        else ""
    )
