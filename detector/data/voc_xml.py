"""Pascal VOC annotations."""

import math
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

from detector.data.datasets import DetectionDataset, box_problem, read_lines
from detector.data.images import SUFFIXES, image_sizes
from detector.data.origins import Origins
from detector.data.report import DataReport, Fault
from detector.data.sample import Labels
from detector.errors import InputError


class VocDataset(DetectionDataset):
    """Pascal VOC: `Annotations/ID.xml`, `JPEGImages/ID.*`, lists of IDs. Corners are taken as they stand, in pixels.

    Args:
        lists: text files with an image ID a line (anything after it is ignored).
        names: class names in order.
        root: the folder that holds Annotations and JPEGImages.
        keep_difficult: keep objects marked difficult; by default they are left out, as is usual in training.
    """

    def __init__(self, lists: Sequence[Path], names: list[str], root: Path, keep_difficult: bool = False) -> None:
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
            xml = root / "Annotations" / f"{image_id}.xml"
            if isinstance(size, str):
                report.lost_images.append(Fault(path, "", size))
                continue
            report.unlabelled += not xml.is_file()
            try:
                objects = ElementTree.parse(xml).getroot().findall("object") if xml.is_file() else []
            except ElementTree.ParseError as e:
                report.lost_images.append(Fault(str(xml), "", f"not valid XML ({e})"))
                continue
            boxes, classes = [], []
            for k, item in enumerate(objects, 1):
                name = item.findtext("name", "").strip()
                difficult = item.findtext("difficult", "0").strip() == "1" and not keep_difficult
                box = _corners(item)
                problem = "marked difficult" if difficult else box_problem(box)
                if problem:
                    report.faults.append(Fault(str(xml), f"object {k} ({name})", problem))
                elif name not in numbers:
                    raise InputError(f"{xml}: object {k} is a '{name}', which is not among the names {names}; add it")
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
                found |= {o.findtext("name", "").strip() for o in ElementTree.parse(xml).getroot().findall("object")}
            except ElementTree.ParseError:
                continue  # named when the data set is read
        return sorted(found - {""})


def _corners(item: ElementTree.Element) -> list[float]:
    """xmin, ymin, xmax, ymax of a VOC object; NaN where missing or not a number."""

    def number(tag: str) -> float:
        try:
            return float(item.findtext(f"bndbox/{tag}", "nan"))
        except ValueError:
            return math.nan

    return [number(tag) for tag in ("xmin", "ymin", "xmax", "ymax")]
