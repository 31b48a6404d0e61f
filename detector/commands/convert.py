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
Find = Callable[[str, Path], Path | None]  # the image that a label file names, if it is there
EMPTY: tuple[Any, ...] = (None, "", {}, [])  # values of an attribute that give no class
LISTED = 10  # skipped files
# what a file raises that is not of the kind its name says
UNREADABLE = OSError, ValueError, RecursionError, csv.Error, ElementTree.ParseError
Found = Iterator[tuple[Any, int]]  # globox' Annotation of an image, and how many objects it has


def convert(source: Path, out: Path | None = None, label_key: str | None = None) -> None:
    """Make a data.yaml of labels of CVAT for images, labelme, VIA or OpenImages.

    The labels become a COCO file for each split, which the names of folders and files tell. Images
    stay where they are.

    Args:
        source: The folder of labels and images, or one file of labels.
        out: A new folder; default: the name of source with _coco, in the current folder.
        label_key: VIA: the attribute of a region that is its class, where there are several.

    Raises:
        InputError: no such file, none of such labels has a box and an image, a file cannot be read,
            or `out` holds a data.yaml.
    """
    out = out or Path(f"{source.resolve().stem}_coco")
    target = out / "data.yaml"
    if isdir(out) and any(out.iterdir()):
        raise InputError(f"{out}: it is not empty, and nothing is overwritten; give another --out")
    if not source.exists():
        raise InputError(f"{source}: no such file or folder")
    root = source if isdir(source) else source.parent
    find = _finder(root)
    splits: dict[str, dict[str, Any]] = defaultdict(dict)  # annotations by image
    missing, objects = set(), 0
    skipped: list[str] = []
    for file in sorted(root.rglob("*")) if isdir(source) else [source]:
        try:
            content = _content(file)
        except UNREADABLE as e:
            problem = in_one_line(e).removeprefix(f"{file}: ")
            unusable = f"{file}: these labels cannot be read ({problem})"
            if file == source:
                raise InputError(unusable) from None
            skipped.append(unusable)
            continue
        try:
            for found, count in _read(file, content, find, label_key):
                image = find(found.image_id, file)
                if not image:
                    missing.add(found.image_id)
                    continue
                objects += count
                label = file.parent if file.stem == image.stem else file
                split = splits[split_named(f"{relpath(label, root)} {relpath(image.parent, root)}")]
                name = relpath(image, root)
                split.setdefault(name, globox.Annotation(name, found.image_size))
                split[name].boxes += found.boxes
        except InputError:
            raise
        except Exception as e:  # of many kinds
            problem = f"{type(e).__name__}: {in_one_line(e)}"
            raise InputError(f"{file}: these labels cannot be read ({problem})") from None
    if len(splits) == 1:
        splits = {"train": splits.popitem()[1]}
    boxes = [box for split in splits.values() for found in split.values() for box in found.boxes]
    left_out = (
        f"{objects - len(boxes)} objects without a box or a class, {len(missing)} images"
        " that are not there or share their name"
    )
    for line in skipped[:LISTED]:
        rank_zero_print(f"skipped: {line}")
    if len(skipped) > LISTED:
        rank_zero_print(f"skipped: {len(skipped) - LISTED} more files that cannot be read")
    if not boxes:
        hint = "; ".join([f"left out: {left_out}", *skipped[:1]])
        raise InputError(f"{source}: there is no box of {CONVERTED}; {hint}")
    numbers = {name: k for k, name in enumerate(sorted({box.label for box in boxes}))}
    described: dict[str, Any] = {"images": relpath(root, out), "names": [*numbers]}
    texts: dict[Path, str] = {}
    for name, split in splits.items():
        ids = {image: k for k, image in enumerate(split)}
        coco = globox.AnnotationSet(split.values()).to_coco(label_to_id=numbers, imageid_to_id=ids)
        texts[out / f"{name}.json"] = json.dumps(coco)
        described[name] = f"{name}.json"
        print_fact(name, f"{len(split)} images")
    texts[target] = yaml.safe_dump(described, sort_keys=False, allow_unicode=True)
    for path, text in texts.items():
        write_atomically(path, text)
    print_fact("boxes", f"{len(boxes)} of {', '.join(numbers)}")
    print_fact("left out", left_out)
    print_fact("next", f"{program()} fit --data.dataset {target}")


def _finder(root: Path) -> Find:
    """Finds near the label file, else by name, with or without suffix, if no other has it."""
    named: dict[str, Path | None] = {}
    for path in find_images(root):
        for name in {path.name, path.stem}:
            named[name] = None if name in named else path

    def find(name: str, file: Path) -> Path | None:
        path = Path(name.replace("\\", "/"))
        near = (file.parent / path, file.parent / "images" / path)
        return next(filter(isfile, near), None) or named.get(path.name)

    return find


def _content(file: Path) -> Any:
    """What tells whether a file holds labels: the root of an xml file, the value of a json file,
    the first row of a csv file; None of any other file. Raises one of UNREADABLE."""
    if file.suffix == ".xml":
        return ElementTree.fromstring(read_text(file))
    if file.suffix == ".json":
        return json.loads(read_text(file))
    if file.suffix == ".csv":
        check_regular(file)
        with open(file, newline="", encoding="utf-8-sig") as lines:
            header = next(csv.reader(lines), None)
        if header is None:
            raise InputError(f"{file}: it is empty")
        return header
    return None


def _read(file: Path, content: Any, find: Find, label_key: str | None) -> Found:
    """The images of a file of labels; none of any other file."""
    if file.suffix == ".xml":
        yield from _read_cvat(content)
    elif file.suffix == ".csv" and {"ImageID", "LabelName", "XMin"} <= {*content}:
        yield from _read_open_images(file, find)
    elif file.suffix == ".json":
        entries = content.get("_via_img_metadata", content) if isinstance(content, dict) else {}
        if {"shapes", "imagePath"} <= entries.keys():
            found = globox.Annotation.from_labelme(file, include_poly=True)
            yield found, len(content["shapes"])
        elif all(isinstance(entry, dict) and "regions" in entry for entry in entries.values()):
            yield from _read_via([*entries.values()], label_key)


def _read_cvat(root: ElementTree.Element) -> Found:
    """Rotated boxes are left out: globox reads them as if they were upright."""
    for node in root.iter("image"):
        objects = len(node) - len(node.findall("tag"))
        for box in node.findall("box[@rotation]"):
            node.remove(box)
        found = globox.Annotation.from_cvat(node)
        for polygon in node.findall("polygon"):
            points = [map(float, p.split(",")) for p in polygon.attrib["points"].split(";")]
            found.add(_around(polygon.attrib["label"], points))
        yield found, objects


def _read_via(entries: list[dict[str, Any]], label_key: str | None) -> Found:
    of_entry = [entry["regions"] for entry in entries]
    of_entry = [[*r.values()] if isinstance(r, dict) else r for r in of_entry]  # VIA 1
    given = [r["region_attributes"].items() for regions in of_entry for r in regions]
    values = [item for attributes in given for item in attributes]
    keys = sorted({key for key, value in values if value})
    if not keys:  # the only class may be 0
        keys = sorted({key for key, value in values if value not in EMPTY})
    if not label_key and len(keys) > 1:
        raise ValueError(f"the class may be {' or '.join(keys)}; give one as --label_key")
    key = label_key or "".join(keys)
    for entry, regions in zip(entries, of_entry, strict=True):
        usable = []
        for region in regions:
            label = region["region_attributes"].get(key)
            if isinstance(label, dict | list) and label:
                raise ValueError(f"{key} is a set of checkboxes; an object has one class")
            if label not in EMPTY:
                usable.append({**region, "region_attributes": {key: str(label)}})
        content = {**entry, "regions": usable}
        found = globox.Annotation.from_via_json(content, label_key=key, confidence_key="")
        for region in usable:
            shape = region["shape_attributes"]
            if shape["name"] == "polygon":
                points = zip(shape["all_points_x"], shape["all_points_y"], strict=True)
                found.add(_around(region["region_attributes"][key], points))
        yield found, len(regions)


def _around(label: str, points: Any) -> Any:
    """globox' BoundingBox of a polygon, points xy in pixels."""
    return globox.BoundingBox.from_labelme({"label": label, "points": points})


def _read_open_images(file: Path, find: Find) -> Found:
    """An object at a time."""
    names: dict[str, str] = {}
    for path in file.parent.glob("class-descriptions*.csv"):
        check_regular(path)
        names |= globox.AnnotationSet.parse_mid_file(path)
    size_of = cache(lambda image: image_sizes([image])[0])
    with open(file, newline="", encoding="utf-8-sig") as lines:
        for row in csv.DictReader(lines):
            found, image = globox.Annotation(row["ImageID"]), find(row["ImageID"], file)
            size = size_of(image) if image else ""
            if isinstance(size, tuple):
                label = names.get(row["LabelName"], row["LabelName"])
                x, y = ([float(row[axis + end]) for end in ("Min", "Max")] for axis in "XY")
                points = [(x[k] * size[1], y[k] * size[0]) for k in (0, 1)]
                found.add(_around(label, points))
            yield found, 1
