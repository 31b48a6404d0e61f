"""Pascal VOC annotations."""

import math
import os
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

from detector.data.cache.origins import Origins
from detector.data.datasets import DetectionDataset, box_problem, read_lines, too_many
from detector.data.images import find_images, image_sizes
from detector.data.part import Part
from detector.data.report import DataReport, Fault, emptied
from detector.data.sample import Labels
from detector.system.errors import InputError
from detector.system.text_file import LARGEST, is_dir, is_file

NO_XML = (ElementTree.ParseError, ValueError, LookupError)  # what the parser raises; the last two for encodings

DEEPEST = 30  # elements within one another
ANNOTATIONS = ("Annotations", "annotations")
_IMAGES = {"jpegimages", "images"}
CORNERS = ("xmin", "ymin", "xmax", "ymax")


class VocDataset(DetectionDataset):
    """Pascal VOC: an xml file an image, see `annotation_places`. Corners are taken as they stand, in pixels.

    Args:
        sources: folders of images, or text files with an image ID a line (anything after it is ignored): the path of an image
            below the folder JPEGImages (or images) of the root, without its suffix.
        names: class names in order.
        root: the folder that holds JPEGImages.
        keep_difficult: keep objects marked difficult; by default they are left out, as is usual in training.
        strict: refuse objects whose name is not among the names; else drop them.
        keep_emptied: images whose objects are all dropped stay, as background; else they are left out.
        part: only these images.
    """

    def __init__(
        self,
        sources: Sequence[Path],
        names: list[str],
        root: Path,
        keep_difficult: bool = False,
        strict: bool = True,
        keep_emptied: bool = False,
        part: Part | None = None,
    ) -> None:
        report, origins = DataReport(), Origins()
        images = {str(path) for source in sources for path in _images_of(source, root, origins)}
        paths = sorted(images, key=lambda path: os.path.splitext(path)[0])
        paths = part.of(paths) if part else paths
        origins.note(paths)
        origins.note(set(map(str, annotation_folders(paths))) - set(origins.paths))
        xmls = [annotation_path(path) for path in paths]
        origins.note(xmls)
        numbers = {name: c for c, name in enumerate(names)}
        files, labels = [], []
        for path, xml, size in zip(paths, xmls, image_sizes(paths), strict=True):
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
            boxes, classes, faults = [], [], []
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
                    faults.append(Fault(str(xml), f"object {k} ({name})", problem))
                else:
                    boxes.append(box)
                    classes.append(numbers[name])
            report.faults += faults
            unusable = [fault for fault in faults if fault.kind != "difficult_object"]  # that one is left out on purpose
            if unusable and not boxes and not keep_emptied:
                report.lost_images.append(emptied(path, unusable))
                continue
            files.append(path)
            labels.append(Labels.of(np.array(boxes), np.array(classes), *size))
        super().__init__(files, labels, names, report, origins)

    @staticmethod
    def find_names(root: Path, sources: Sequence[Path]) -> list[str]:
        """The class names that occur in the annotations, in alphabetical order: in the root's folder of annotations, or where
        there is none, in the annotations of the images of these folders."""
        folders = [root / name for name in ANNOTATIONS if (root / name).is_dir()]
        xmls = {xml for folder in folders for xml in folder.rglob("*.xml")}
        xmls = xmls or {annotation_path(image) for source in sources if is_dir(source) for image in find_images(source)}
        found: set[str] = set()
        for xml in xmls:
            try:
                found |= {item.findtext("name", "").strip() for item in read_objects(xml)}
            except (OSError, *NO_XML):
                continue  # named when the data set is read
        return sorted(found - {""})


def annotation_places(image: str | Path) -> list[Path]:
    """Where the annotation of an image is looked for, in order: for `.../JPEGImages/a/b.jpg` (or images, in any case)
    `.../Annotations/a/b.xml` or `.../Annotations/b.xml`, or annotations for Annotations; beside the image; in a folder
    Annotations or annotations beside the image."""
    xml = Path(image).with_suffix(".xml")
    places = []
    for i in range(len(xml.parts) - 2, -1, -1):
        if xml.parts[i].lower() in _IMAGES:
            folders = [Path(*xml.parts[:i], name) for name in ANNOTATIONS]
            places = [folder.joinpath(*xml.parts[i + 1 :]) for folder in folders] + [folder / xml.name for folder in folders]
            break
    return list(dict.fromkeys([*places, xml, *(xml.parent / name / xml.name for name in ANNOTATIONS)]))


def annotation_path(image: str | Path) -> Path:
    """The first of the places that exists, else the first of all."""
    places = annotation_places(image)
    return next((place for place in places if is_file(place)), places[0])


def annotation_folders(images: Iterable[str | Path]) -> list[Path]:
    """The folders, there or not, in which the annotations of the images are looked for."""
    of_folder = {os.path.dirname(image): image for image in images}  # one image of each folder
    return list(dict.fromkeys(place.parent for image in of_folder.values() for place in annotation_places(image)))


def image_folder(root: Path) -> Path | None:
    """The folder of a root that holds its images."""
    return next((root / name for name in ("JPEGImages", "images", "Images") if (root / name).is_dir()), None)


def _images_of(source: Path, root: Path, origins: Origins) -> list[Path]:
    """Images of a folder, or those whose IDs a text file lists."""
    if is_dir(source):
        origins.note(folder for folder, _, _ in os.walk(source))
        return find_images(source)
    folder = image_folder(root)
    if folder is None:
        raise InputError(f"{root}: format voc wants the folder JPEGImages (or images) here; correct the key `path`")
    origins.note([source, *(found for found, _, _ in os.walk(folder))])
    of_id = {path.relative_to(folder).with_suffix("").as_posix(): path for path in find_images(folder)}
    ids = {line.split()[0] for line in read_lines(source)}
    return [of_id.get(i) or folder / f"{i}.jpg" for i in ids]


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
