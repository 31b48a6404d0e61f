"""`python cli.py convert`: labels of CVAT, labelme and VIA become COCO files, by globox."""

import json
import shlex
from collections.abc import Iterator
from os.path import isfile, relpath
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import yaml

from boltbox.detector.data.file_list import find_images
from boltbox.detector.data.layouts import CONVERTED, check_no_run, split_named
from boltbox.detector.system.atomic_file import write_atomically
from boltbox.detector.system.errors import InputError, in_one_line, need
from boltbox.detector.system.rank_zero import inside, print_fact, program
from boltbox.detector.system.text_file import read_text

globox = need("globox")
NO_CLASS: tuple[Any, ...] = (None, "", {}, [])  # values of an attribute
# globox' Annotation of an image, and the number of its objects, with those that have no box
Images = Iterator[tuple[Any, int]]


def convert(source: Path, out: Path | None = None, label_key: str | None = None) -> None:
    """Make a data.yaml of labels of CVAT for images, labelme or VIA.

    The labels become one COCO file per split, which the names of folders and files tell. Images
    stay where they are.

    Args:
        source: The folder of labels and images, or one file of labels.
        out: A new folder; default: the name of source with _coco, in the current folder.
        label_key: VIA: the attribute of a region that is its class, if there are several.

    Raises:
        InputError: There are no such labels, a file cannot be read, or `out` is not empty.
    """
    if out is None:
        out = Path(f"{source.resolve().stem}_coco")
    if out.is_dir() and any(out.iterdir()):
        raise InputError(f"{out}: it is not empty, and nothing is overwritten; give another --out")
    if source.suffix.lower() == ".zip":
        raise InputError(f"{source}: unpack it, and give the folder: images stay where they are")
    root = source.parent
    files = [source]
    if source.is_dir():
        root = source
        files = sorted(path for path in source.rglob("*") if path.suffix in (".xml", ".json"))
    check_no_run(root)
    images = _images_by_name(root)
    splits: dict[str, dict[str, Any]] = {}  # globox' Annotation by path of the image, by split
    boxes: list[Any] = []
    declared: list[str] = []  # names of classes, which may have no box
    lost = 0
    missing: set[str] = set()
    for file in files:
        for annotation, number in _read_file(file, label_key, declared):
            image = _find_image(annotation.image_id, file, images)
            if image is None:
                missing.add(annotation.image_id)
                continue
            # a label file of one image says the split by its folder only
            label = file.parent if file.stem == image.stem else file
            split = split_named(f"{relpath(label, root)} {inside(str(image.parent), str(root))}")
            name = inside(str(image), str(root))
            same = splits.setdefault(split, {}).setdefault(
                name, globox.Annotation(name, annotation.image_size)
            )
            # a project of VIA may lie beside its export
            new = [box for box in annotation.boxes if box not in same.boxes]
            same.boxes += new
            boxes += new
            lost += number - len(annotation.boxes)
    left_out = (
        f"{lost} objects without a box or a class,"
        f" {len(missing)} images that are not there or share their name"
    )
    if not boxes:
        raise InputError(f"{source}: there is no box of {CONVERTED}; left out: {left_out}")
    names = list(dict.fromkeys(declared + sorted({box.label for box in boxes})))
    _write(splits, names, root, out)
    print_fact("boxes", f"{len(boxes)} of {', '.join(names)}")
    print_fact("left out", left_out)
    print_fact("next", f"{program()} fit --data.dataset {shlex.quote(str(out / 'data.yaml'))}")


def _write(splits: dict[str, dict[str, Any]], names: list[str], root: Path, out: Path) -> None:
    """A COCO file per split, then the data.yaml."""
    numbers = {name: number for number, name in enumerate(names)}
    images_folder = inside(str(root.absolute()), str(out))
    description: dict[str, Any] = {"images": images_folder, "names": names}
    for split, images in splits.items():
        name = split if len(splits) > 1 else "train"
        ids = {image: number for number, image in enumerate(images)}
        annotations = globox.AnnotationSet(images.values())
        coco = annotations.to_coco(label_to_id=numbers, imageid_to_id=ids)
        write_atomically(out / f"{name}.json", json.dumps(coco))
        description[name] = f"{name}.json"
        print_fact(name, f"{len(images)} images")
    text = yaml.safe_dump(description, sort_keys=False, allow_unicode=True)
    write_atomically(out / "data.yaml", text)


def _images_by_name(root: Path) -> dict[str, Path | None]:
    """Images by name with and without suffix; None where several have it."""
    images: dict[str, Path | None] = {}
    for path in find_images(root):
        for name in {path.name, path.stem}:
            images[name] = None if name in images else path
    return images


def _find_image(name: str, file: Path, images: dict[str, Path | None]) -> Path | None:
    """The image near the label file, else the only one of this name."""
    path = Path(name.replace("\\", "/"))
    for near in (file.parent / path, file.parent / "images" / path):
        if isfile(near):
            return near
    return images.get(path.name)


def _read_file(file: Path, label_key: str | None, declared: list[str]) -> list[tuple[Any, int]]:
    """The images of a file of labels; none of any other file. The classes that it declares are
    added to `declared`."""
    text = read_text(file)
    try:
        if file.suffix == ".xml":
            return list(_read_cvat(ElementTree.fromstring(text), file.parent, declared))
        content = json.loads(text)
        if not isinstance(content, dict):
            return []
        if {"shapes", "imagePath"} <= content.keys():
            return [_read_labelme(content)]
        entries = list(content.get("_via_img_metadata", content).values())
        if all(isinstance(entry, dict) and "regions" in entry for entry in entries):
            return list(_read_via(entries, label_key))
        return []
    except Exception as e:  # of many kinds
        problem = f"{type(e).__name__}: {in_one_line(e)}"
        raise InputError(f"{file}: these labels cannot be read ({problem})") from None


def _read_labelme(content: dict[str, Any]) -> tuple[Any, int]:
    size = (content["imageWidth"], content["imageHeight"])
    annotation = globox.Annotation(content["imagePath"], size)
    for shape in content["shapes"]:
        if shape["shape_type"] in ("rectangle", "polygon"):
            annotation.add(_box_around(shape["label"], shape["points"]))
    return annotation, len(content["shapes"])


def _read_cvat(root: ElementTree.Element, folder: Path, declared: list[str]) -> Images:
    """Rotated boxes are left out: globox reads them as if they were upright. Images of subsets,
    which may share their names, lie in folders of these."""
    for label in root.iterfind("meta/*/labels/label"):
        if label.find("parent") is None:  # else it is a part of a skeleton
            declared.append(label.findtext("name", ""))
    for node in root.iter("image"):
        place = Path("images", node.get("subset", ""), node.attrib["name"])
        if isfile(folder / place):
            node.set("name", str(place))
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
        annotation = globox.Annotation(entry["filename"])
        for region in entry["regions"]:
            label = region["region_attributes"].get(key)
            shape = region["shape_attributes"]
            if isinstance(label, dict | list) and label:
                raise ValueError(f"{key} is a set of checkboxes; an object has one class")
            if label in NO_CLASS:
                continue
            if shape["name"] == "rect":
                x = shape["x"]
                y = shape["y"]
                points = [(x, y), (x + shape["width"], y + shape["height"])]
            elif shape["name"] == "polygon":
                points = list(zip(shape["all_points_x"], shape["all_points_y"], strict=True))
            else:
                continue
            annotation.add(_box_around(label, points))
        yield annotation, len(entry["regions"])


def _class_attribute(entries: list[dict[str, Any]]) -> str:
    """The attribute of VIA's regions that has values, "" if none has."""
    keys: set[str] = set()
    for entry in entries:
        for region in entry["regions"]:
            for key, value in region["region_attributes"].items():
                if value not in NO_CLASS:
                    keys.add(key)
    if len(keys) > 1:
        choices = " or ".join(sorted(keys))
        raise ValueError(f"the class may be {choices}; give one as --label_key")
    return "".join(keys)


def _box_around(label: Any, points: Any) -> Any:
    """globox' BoundingBox of a polygon, points xy in pixels."""
    return globox.BoundingBox.from_labelme({"label": label, "points": points})
