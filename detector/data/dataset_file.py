"""The file that describes a data set (`data.yaml`), or a folder that speaks for itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from os.path import exists, isdir, isfile
from pathlib import Path

from boltbox.detector.data import demo
from boltbox.detector.data.cache.labels import Origins, cached
from boltbox.detector.data.data_yaml import read_content, read_folder
from boltbox.detector.data.datasets import DetectionDataset
from boltbox.detector.data.formats import format_class
from boltbox.detector.data.formats.format import Split
from boltbox.detector.data.read_split import Part, SplitReader
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.rank_zero import rank_zero_print
from boltbox.detector.system.text_file import read_text
from boltbox.detector.system.yaml_text import parse_yaml

DEMO_ROOT = Path("datasets/demo")


@dataclass
class DatasetFile:
    """A data set by name: where its splits are, in which label format, and the class names.

    source: what the user gave · root: where its relative paths start · format: see `format_class` ·
    names: in class order · splits: paths of `train`, `val`, `test` as far as they are given ·
    images: further image folders (COCO) · keep_difficult: VOC objects marked difficult are kept ·
    share: of the images of `train` that is `val`, where that is not given · found_names: they come
    from the labels.
    """

    source: str
    root: Path
    format: str
    names: list[str]
    splits: dict[str, list[Path]] = field(default_factory=dict)
    images: list[Path] = field(default_factory=list)
    keep_difficult: bool = False
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
        if source == demo.NAME:
            splits = {s: [DEMO_ROOT / "images" / s] for s in ("train", "val")}
            return cls(source, DEMO_ROOT, "yolo", list(demo.NAMES), splits)._divided(split)
        path = Path(source)
        if isfile(path / "data.yaml"):
            path = path / "data.yaml"
        if isdir(path):
            return cls(str(path), **read_folder(path))._divided(split)
        wanted = "give a data.yaml, a VOC folder, or 'demo'"
        try:
            content = parse_yaml(read_text(path), path)
        except FileNotFoundError:
            raise InputError(f"data.dataset {path}: no such file; {wanted}") from None
        except InputError as e:
            raise InputError(f"data.dataset {e}; {wanted}") from None
        if not isinstance(content, dict):
            raise InputError(f"data.dataset {path}: expected a map with the keys train, val, names")
        share = content.get("split") if split is None else split
        return cls(str(path), **read_content(path, content, format))._divided(share)

    def _divided(self, share: object) -> DatasetFile:
        """The same with a part of `train` as `val`, if that is asked for."""
        if share is None:
            return self
        if not isinstance(share, int | float) or not 0 < share < 1:
            raise InputError(
                f"{self.source}: split is {share!r}; it is the share of the images for validation,"
                " like 0.2"
            )
        if "val" in self.splits or "train" not in self.splits:
            has = "a val split of its own" if "val" in self.splits else "no train split to divide"
            raise InputError(
                f"{self.source}: split {share:g} was given, but it has {has}; leave split out"
            )
        self.share, train = float(share), self.splits["train"]
        self.splits = {"train": train, "val": train, **self.splits}
        return self

    def prepare(self) -> None:
        """In one process only: draw the demo data set if it was asked for and is not there yet; say
        which names were found."""
        if self.source == demo.NAME:
            demo.make_demo(self.root)
        if self.found_names:
            names = ", ".join(self.names[:20])
            rank_zero_print(f"names: {len(self.names)} found in the labels: {names}")

    def open_checked(self, split: str, single_class: bool) -> DetectionDataset:
        """The split for a training or evaluation; what was left out is printed.

        Args:
            single_class: every object becomes class 0.

        Raises:
            InputError: see `open`; or a class without a name.
        """
        dataset = self.open(split)
        if single_class:
            dataset.merge_classes()
        dataset.check_classes()
        for line in dataset.report.lines(split):
            rank_zero_print(line)
        return dataset

    def open(self, split: str, strict: bool = True) -> DetectionDataset:
        """The split, read and checked. Not strict: objects whose class has no name are dropped and
        named like other faults, and no box need be usable.

        Raises:
            InputError: the split is not given, or holds no usable box.
        """
        if split not in self.splits:
            hint = "; --data.split 0.2 sets a fifth of train aside for it, always the same"
            way = hint if split == "val" else ""
            raise InputError(
                f"{self.source}: the split `{split}` is missing; it has"
                f" {', '.join(self.splits)}{way}"
            )
        for path in self.splits[split]:
            if not exists(path):
                raise InputError(f"{self.source}: {split} refers to {path}, which does not exist")
        options = {key: getattr(self, key) for key in ("format", "names", "keep_difficult")}
        options["split"] = self.share

        def read() -> tuple[DetectionDataset, Origins]:
            paths = self.splits[split], self.root, self.images
            place = Split(split, *paths, self.keep_difficult)
            form = format_class(self.format)(place)
            part = None
            if self.share is not None and split != "test":
                part = Part(self.share, split == "val", self.root)
            return SplitReader(form, self.names, strict, part).read(), place.origins

        if not strict:
            return read()[0]
        # what tells a split from all others: where it is
        places = [split, *map(str, (self.root, *self.splits[split], *self.images))]
        dataset = cached(split, places, options, read)
        report = dataset.report
        if not report.boxes:
            lost = f", first left out: {report.left_out[0]}" if report.left_out else ""
            raise InputError(
                f"{self.source}: no usable box in {split} ({report.images} images under"
                f" {self.splits[split][0]}, {report.unlabelled} without a label file of format"
                f" {self.format}{lost})"
            )
        return dataset
