"""Pascal VOC annotations."""

import math
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

from detector.data.cache.origins import Origins
from detector.data.datasets import DetectionDataset, box_problem, read_lines, too_many
from detector.data.images import SUFFIXES, image_sizes
from detector.data.report import DataReport, Fault
from detector.data.sample import Labels
from detector.errors import InputError
from detector.text_file import LARGEST, is_file

NO_XML = (ElementTree.ParseError, ValueError, LookupError)  # what the parser raises; the last two for encodings

DEEPEST = 30  # elements within one another
CORNERS = ("xmin", "ymin", "xmax", "ymax")


class VocDataset(DetectionDataset):
    """Pascal VOC: `Annotations/ID.xml`, `JPEGImages/ID.*`, lists of IDs. Corners are taken as they stand, in pixels.

    Args:
        lists: text files with an image ID a line (anything after it is ignored).
        names: class names in order.
        root: the folder that holds Annotations and JPEGImages.
        keep_difficult: keep objects marked difficult; by default they are left out, as is usual in training.
        strict: refuse objects whose name is not among the names; else drop them.
    """

    def __init__(
        self, lists: Sequence[Path], names: list[str], root: Path, keep_difficult: bool = False, strict: bool = True
    ) -> None:
        report, origins = DataReport(), Origins()
        if not (root / "JPEGImages").is_dir():
            raise InputError(f"{root}: format voc wants the folder JPEGImages here; correct the key `path`")
        origins.note([*lists, root / "JPEGImages"])
        suffixes = {p.stem: p for p in (root / "JPEGImages").iterdir() if p.suffix.lower() in SUFFIXES}
        ids = sorted({line.split()[0] for file in lists for line in read_lines(file)})
        paths = [str(suffixes.get(i, root / "JPEGImages" / f"{i}.jpg")) for i in ids]
        origins.note(paths)
        origins.note(root / "Annotations" / f"{i}.xml" for i in ids)
        numbers = {name: c for c, name in enumerate(names)}
        files, labels = [], []
        for image_id, path, size in zip(ids, paths, image_sizes(paths), strict=True):
            xml = annotation_path(root, image_id)
            if isinstance(size, str):
                report.lost_images.append(Fault(path, "", size))
                continue
            labelled = is_file(xml)
            report.unlabelled += not labelled
            try:
                objects = read_objects(xml) if labelled else []
                if problem := too_many(len(objects)):
                    report.lost_images.append(Fault(str(xml), "", problem))
                    continue
            except NO_XML as e:
                report.lost_images.append(Fault(str(xml), "", f"not valid XML ({e})"))
                continue
            boxes, classes = [], []
            for k, item in enumerate(objects, 1):
                name = item.findtext("name", "").strip()
                difficult = item.findtext("difficult", "0").strip() == "1" and not keep_difficult
                box = _corners(item)
                problem = "marked difficult" if difficult else _ambiguity(item) or box_problem(box)
                if not problem and name not in numbers:
                    if strict:
                        raise InputError(f"{xml}: object {k} is a '{name}', which is not among the names {names}; add it")
                    problem = f"class name '{name}' is not among the data set's names"
                if problem:
                    report.faults.append(Fault(str(xml), f"object {k} ({name})", problem))
                else:
                    boxes.append(box)
                    classes.append(numbers[name])
            files.append(path)
            labels.append(Labels.of(np.array(boxes), np.array(classes), *size))
        super().__init__(files, labels, names, report, origins)

    @staticmethod
    def find_names(root: Path) -> list[str]:
        """The class names that occur in the annotations, in alphabetical order."""
        found: set[str] = set()
        for xml in (root / "Annotations").glob("*.xml"):
            try:
                found |= {item.findtext("name", "").strip() for item in read_objects(xml)}
            except NO_XML:
                continue  # named when the data set is read
        return sorted(found - {""})


def annotation_path(root: Path, image_id: str) -> Path:
    """Where the annotations of an image are: image_id is its path below JPEGImages without the suffix."""
    return root / "Annotations" / f"{image_id}.xml"


def read_objects(xml: Path) -> list[ElementTree.Element]:
    """The objects of an annotation file; one of NO_XML if it is none."""
    size = xml.stat().st_size
    if size > LARGEST:
        raise ValueError(f"the file has {size / 2**20:.0f} MB, more than the {LARGEST / 2**20:.0f} MB that are read")
    root = ElementTree.parse(xml).getroot()
    level = [root]
    for _ in range(DEEPEST):
        level = list(chain.from_iterable(level))
    if level:
        raise ValueError(f"it is nested more than {DEEPEST} deep")
    if root.tag != "annotation":
        raise ValueError(f"it is about <{root.tag}>, not <annotation>")
    return root.findall("object")


def _ambiguity(item: ElementTree.Element) -> str:
    """Why nobody can tell what an object's name and corners are, or an empty string."""
    for tag in ("name", "bndbox", *(f"bndbox/{corner}" for corner in CORNERS)):
        found = item.findall(tag)
        if len(found) > 1:
            return f"ambiguous: {len(found)} times <{tag}>"
        if found and tag != "bndbox" and len(found[0]):
            return f"ambiguous: <{tag}> holds more than text"
    return ""


def _corners(item: ElementTree.Element) -> list[float]:
    """xmin, ymin, xmax, ymax of a VOC object; NaN where missing or not a number."""

    def number(tag: str) -> float:
        try:
            text = item.findtext(f"bndbox/{tag}", "nan")
            return float(text) if text.isascii() and "_" not in text else math.nan  # Python reads 1_0 as 10
        except ValueError:
            return math.nan

    return [number(tag) for tag in CORNERS]
