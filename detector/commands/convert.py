"""`python cli.py convert`: labels that training does not read become COCO files, by globox."""

import csv
import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from os.path import isdir, isfile, relpath
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import yaml

from boltbox.detector.data.images import find_images, image_sizes
from boltbox.detector.data.layouts import CONVERTED, split_named
from boltbox.detector.system.atomic_file import write_atomically
from boltbox.detector.system.errors import InputError, in_one_line, need
from boltbox.detector.system.rank_zero import print_fact, program, rank_zero_print
from boltbox.detector.system.text_file import check_regular, read_text

globox = need("globox")
Content = Any  # what tells whether a file holds labels
FindImage = Callable[[str, Path], Path | None]  # by the name in a label file; None: not there
NO_CLASS: tuple[Any, ...] = (None, "", {}, [])  # values of an attribute
LISTED = 10  # skipped files
# what a file raises that is not of the kind its name says
UNREADABLE = OSError, ValueError, RecursionError, csv.Error, ElementTree.ParseError
Images = Iterator[tuple[Any, int]]  # globox' Annotation of an image, and number of its objects


class Labels:
    """The boxes of all label files.

    Attributes:
        splits: globox' Annotation by path of the image, by split.
        objects: number of objects, those without a box or a class too.
        missing: images that are not there or share their name.
        skipped: files that cannot be read, and why.
    """

    def __init__(self, root: Path, label_key: str | None) -> None:
        self.root = root
        self.label_key = label_key
        self.find_image = _image_finder(root)
        self.splits: dict[str, dict[str, Any]] = defaultdict(dict)
        self.objects = 0
        self.missing: set[str] = set()
        self.skipped: list[str] = []

    def add_folder(self) -> None:
        """The labels of all files of the folder; those that cannot be opened are skipped."""
        for file in sorted(self.root.rglob("*")):
            try:
                content = _read_content(file)
            except InputError as e:
                self.skipped.append(str(e))
            else:
                self.add_file(file, content)

    def add_file(self, file: Path, content: Content) -> None:
        """The labels of one file; none if it is no label file."""
        try:
            for annotation, objects in _read(file, content, self.find_image, self.label_key):
                image = self.find_image(annotation.image_id, file)
                if image is None:
                    self.missing.add(annotation.image_id)
                    continue
                self.objects += objects
                self._add_boxes(annotation, image, file)
        except InputError:
            raise
        except Exception as e:  # of many kinds
            raise _cannot_be_read(file, f"{type(e).__name__}: {in_one_line(e)}") from None

    def _add_boxes(self, annotation: Any, image: Path, file: Path) -> None:
        name = relpath(image, self.root)
        # a label file of one image says the split by its folder only
        label = file.parent if file.stem == image.stem else file
        split = split_named(f"{relpath(label, self.root)} {relpath(image.parent, self.root)}")
        images = self.splits[split]
        if name not in images:
            images[name] = globox.Annotation(name, annotation.image_size)
        images[name].boxes += annotation.boxes

    def boxes(self) -> list[Any]:
        """Those of all images."""
        boxes = []
        for images in self.splits.values():
            for annotation in images.values():
                boxes += annotation.boxes
        return boxes


def convert(source: Path, out: Path | None = None, label_key: str | None = None) -> None:
    """Make a data.yaml of labels of CVAT for images, labelme, VIA or OpenImages.

    The labels become one COCO file per split, which the names of folders and files tell. Images
    stay where they are.

    Args:
        source: The folder of labels and images, or one file of labels.
        out: A new folder; default: the name of source with _coco, in the current folder.
        label_key: VIA: the attribute of a region that is its class, if there are several.

    Raises:
        InputError: no such file, none of such labels has a box and an image, a file cannot be read,
            or `out` holds a data.yaml.
    """
    if out is None:
        out = Path(f"{source.resolve().stem}_coco")
    if isdir(out) and any(out.iterdir()):
        raise InputError(f"{out}: it is not empty, and nothing is overwritten; give another --out")
    if not source.exists():
        raise InputError(f"{source}: no such file or folder")
    if isdir(source):
        labels = Labels(source, label_key)
        labels.add_folder()
    else:
        labels = Labels(source.parent, label_key)
        labels.add_file(source, _read_content(source))
    boxes = labels.boxes()
    left_out = (
        f"{labels.objects - len(boxes)} objects without a box or a class,"
        f" {len(labels.missing)} images that are not there or share their name"
    )
    for line in labels.skipped[:LISTED]:
        rank_zero_print(f"skipped: {line}")
    if len(labels.skipped) > LISTED:
        rank_zero_print(f"skipped: {len(labels.skipped) - LISTED} more files that cannot be read")
    if not boxes:
        hint = "; ".join([f"left out: {left_out}"] + labels.skipped[:1])
        raise InputError(f"{source}: there is no box of {CONVERTED}; {hint}")
    names = sorted({box.label for box in boxes})
    _write(labels, names, out)
    print_fact("boxes", f"{len(boxes)} of {', '.join(names)}")
    print_fact("left out", left_out)
    print_fact("next", f"{program()} fit --data.dataset {out / 'data.yaml'}")


def _write(labels: Labels, names: list[str], out: Path) -> None:
    """A COCO file per split, then the data.yaml."""
    numbers = dict(zip(names, range(len(names)), strict=True))
    description: dict[str, Any] = {"images": relpath(labels.root, out), "names": names}
    for split, images in labels.splits.items():
        name = split if len(labels.splits) > 1 else "train"
        ids = dict(zip(images, range(len(images)), strict=True))
        annotations = globox.AnnotationSet(images.values())
        coco = annotations.to_coco(label_to_id=numbers, imageid_to_id=ids)
        write_atomically(out / f"{name}.json", json.dumps(coco))
        description[name] = f"{name}.json"
        print_fact(name, f"{len(images)} images")
    text = yaml.safe_dump(description, sort_keys=False, allow_unicode=True)
    write_atomically(out / "data.yaml", text)


def _image_finder(root: Path) -> FindImage:
    """Finds images near the label file, else by name, with or without suffix, if it is the only
    one."""
    images: dict[str, Path | None] = {}
    for path in find_images(root):
        for name in {path.name, path.stem}:
            images[name] = None if name in images else path

    def find(name: str, file: Path) -> Path | None:
        path = Path(name.replace("\\", "/"))
        for near in (file.parent / path, file.parent / "images" / path):
            if isfile(near):
                return near
        return images.get(path.name)

    return find


def _cannot_be_read(file: Path, problem: str) -> InputError:
    return InputError(f"{file}: these labels cannot be read ({problem})")


def _read_content(file: Path) -> Content:
    """What tells whether a file holds labels: the root of an xml file, the value of a json file,
    the first row of a csv file; None of any other file.

    Raises:
        InputError: it cannot be read.
    """
    try:
        if file.suffix == ".xml":
            return ElementTree.fromstring(read_text(file))
        if file.suffix == ".json":
            return json.loads(read_text(file))
        if file.suffix == ".csv":
            check_regular(file)
            with open(file, newline="", encoding="utf-8-sig") as lines:
                for header in csv.reader(lines):
                    return header
            raise ValueError("it is empty")
    except UNREADABLE as e:
        raise _cannot_be_read(file, in_one_line(e).removeprefix(f"{file}: ")) from None
    return None


def _read(file: Path, content: Content, find_image: FindImage, label_key: str | None) -> Images:
    """The images of a file of labels; none of any other file."""
    if file.suffix == ".xml":
        yield from _read_cvat(content)
    elif file.suffix == ".csv" and {"ImageID", "LabelName", "XMin"}.issubset(content):
        yield from _read_open_images(file, find_image)
    elif file.suffix == ".json" and isinstance(content, dict):
        entries = content.get("_via_img_metadata", content)
        if {"shapes", "imagePath"} <= entries.keys():
            annotation = globox.Annotation.from_labelme(file, include_poly=True)
            yield annotation, len(content["shapes"])
        elif all(isinstance(entry, dict) and "regions" in entry for entry in entries.values()):
            yield from _read_via(list(entries.values()), label_key)


def _read_cvat(root: ElementTree.Element) -> Images:
    """Rotated boxes are left out: globox reads them as if they were upright."""
    for node in root.iter("image"):
        objects = len(node) - len(node.findall("tag"))
        for box in node.findall("box[@rotation]"):
            node.remove(box)
        annotation = globox.Annotation.from_cvat(node)
        for polygon in node.findall("polygon"):
            points = [map(float, p.split(",")) for p in polygon.attrib["points"].split(";")]
            annotation.add(_box_around(polygon.attrib["label"], points))
        yield annotation, objects


def _read_via(entries: list[dict[str, Any]], label_key: str | None) -> Images:
    """VGG Image Annotator: rectangles and polygons."""
    for entry in entries:
        if isinstance(entry["regions"], dict):  # version 1
            entry["regions"] = list(entry["regions"].values())
    key = label_key if label_key else _class_attribute(entries)
    for entry in entries:
        regions = entry["regions"]
        labelled = []
        polygons = []
        for region in regions:
            label = region["region_attributes"].get(key)
            if label in NO_CLASS:
                continue
            if isinstance(label, dict | list):
                raise ValueError(f"{key} is a set of checkboxes; an object has one class")
            labelled.append(region | {"region_attributes": {key: str(label)}})
            shape = region["shape_attributes"]
            if shape["name"] == "polygon":
                points = zip(shape["all_points_x"], shape["all_points_y"], strict=True)
                polygons.append(_box_around(str(label), points))
        annotation = globox.Annotation.from_via_json(
            entry | {"regions": labelled}, label_key=key, confidence_key=""
        )
        annotation.boxes += polygons
        yield annotation, len(regions)


def _class_attribute(entries: list[dict[str, Any]]) -> str:
    """The attribute of VIA's regions that has values, "" if none has."""
    keys: set[str] = set()
    keys_of_zeros: set[str] = set()  # the only class may be 0
    for entry in entries:
        for region in entry["regions"]:
            for key, value in region["region_attributes"].items():
                if value:
                    keys.add(key)
                elif value not in NO_CLASS:
                    keys_of_zeros.add(key)
    if not keys:
        keys = keys_of_zeros
    if len(keys) > 1:
        choices = " or ".join(sorted(keys))
        raise ValueError(f"the class may be {choices}; give one as --label_key")
    return "".join(keys)


def _box_around(label: str, points: Any) -> Any:
    """globox' BoundingBox of a polygon, points xy in pixels."""
    return globox.BoundingBox.from_labelme({"label": label, "points": points})


def _read_open_images(file: Path, find_image: FindImage) -> Images:
    """An object at a time; boxes are fractions of the image."""
    names: dict[str, str] = {}
    for path in file.parent.glob("class-descriptions*.csv"):
        check_regular(path)
        names |= globox.AnnotationSet.parse_mid_file(path)
    size_of = cache(lambda image: image_sizes([image])[0])
    with open(file, newline="", encoding="utf-8-sig") as lines:
        for row in csv.DictReader(lines):
            annotation = globox.Annotation(row["ImageID"])
            image = find_image(row["ImageID"], file)
            size = size_of(image) if image else ""
            if isinstance(size, tuple):  # else it is not a readable image
                height, width = size
                label = names.get(row["LabelName"], row["LabelName"])
                low = (float(row["XMin"]) * width, float(row["YMin"]) * height)
                high = (float(row["XMax"]) * width, float(row["YMax"]) * height)
                annotation.add(_box_around(label, [low, high]))
            yield annotation, 1
