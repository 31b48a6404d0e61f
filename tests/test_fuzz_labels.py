"""Damaged label files: never a traceback, never a silent wrong box. Whatever the reader gives equals what a slow, strict reader
finds in the same bytes, and what that one rejects is named."""

import json
import math
import os
import re
import xml.dom.minidom
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple
from xml.parsers.expat import ExpatError

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from made_datasets import lay_out, picture, save, voc_object, voc_xml

from detector.data.dataset_file import DatasetFile
from detector.data.datasets import DetectionDataset
from detector.system.errors import InputError

HEIGHT, WIDTH = 40, 60
NAMES = ["cat", "dog"]
EXTREMES = [
    *["1e309", "-1e309", "-1", "nan", "NaN", "-inf", "infinity", "1e30", "16777217", "1e-60", "-0", "1_0", "\u0661", "0x10"],
    *["", " ", "1e", "1,5", "1e9", "2147483648", str(10**30), str(2**63 - 1)],
    *["0", "0.5", "1.0000001", "1", "2", "40", "60", "1.5", "+0.5", "5e-1", ".5", "5."],  # sound, but elsewhere
]
TOKENS = [
    *EXTREMES,
    *["\n", "\r\n", "\r", "\0", "\x0c", "\x1c", "\u2028", "\ufeff", "\t"],
    *["<", ">", "&", "]]>", "<!--", "-->", "&x;", '"', "{", "}", "[", "]", ","],
]
FUZZ = settings(max_examples=500, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))
STAMPS = count(1)


@st.composite
def wounds(draw: st.DrawFn, texts: list[str]) -> bytes:
    """One of the texts with up to four wounds: numbers replaced, bytes changed, cut out, put in or repeated, lines repeated."""
    data = draw(st.sampled_from(texts)).encode()
    for _ in range(draw(st.integers(1, 4))):
        how = draw(st.sampled_from(["number", "number", "flip", "cut", "insert", "repeat", "line"]))
        at = draw(st.integers(0, max(len(data) - 1, 0)))
        end = at + draw(st.integers(1, 12))
        if how == "number":
            places = list(re.finditer(rb"-?[\d.]+", data))
            if not places:
                continue
            place = places[draw(st.integers(0, len(places) - 1))]
            data = data[: place.start()] + draw(st.sampled_from(EXTREMES)).encode() + data[place.end() :]
        elif how == "flip":
            data = data[:at] + bytes([draw(st.integers(0, 255))]) + data[at + 1 :]
        elif how == "cut":
            data = data[:at] + data[end:]
        elif how == "insert":
            data = data[:at] + draw(st.one_of(st.sampled_from(TOKENS).map(str.encode), st.binary(max_size=4))) + data[at:]
        elif how == "repeat":
            data = data[:end] + data[at:]
        else:
            lines = data.splitlines(keepends=True)
            k = draw(st.integers(0, max(len(lines) - 1, 0)))
            data = b"".join([*lines[: k + 1], *lines[k:]])
    return data


def number(text: str) -> float | None:
    """A decimal number as people write it, or None."""
    text = text.strip(" \t\r\n")
    return float(text) if re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", text, re.ASCII) else None


class Verdict(NamedTuple):
    """What the strict reader says. boxes: (class, xyxy pixels) by place; rejected: places; whole: the file cannot be used."""

    boxes: dict[Any, tuple[int, list[float]]]
    rejected: list[Any]
    whole: bool = False


def rewrite(path: Path, data: bytes) -> None:
    """With a time of its own: a cache that goes by time and size must not take one example for another."""
    path.write_bytes(data)
    os.utime(path, ns=(next(STAMPS) * 10**6,) * 2)


def opened(folder: Path) -> tuple[DetectionDataset | None, str]:
    """The training split and an empty string, or nothing and the error; also as strict as `fit` is."""
    try:
        strict = DatasetFile.read(str(folder)).open("train")
        strict.check_classes()
        check_promises(strict)
    except InputError:
        pass
    try:
        dataset = DatasetFile.read(str(folder)).open("train", strict=False)
    except InputError as e:
        return None, str(e)
    check_promises(dataset)
    return dataset, ""


def check_promises(dataset: DetectionDataset) -> None:
    for labels in dataset.labels:
        assert np.isfinite(labels.boxes).all()
        assert np.isfinite(labels.area).all()
        assert (labels.boxes[:, 2:] > labels.boxes[:, :2]).all()
        assert ((labels.classes >= 0) & (labels.classes < len(NAMES))).all()
        assert all(np.isfinite(part).all() for parts in labels.polygons for part in parts)


def compare(verdict: Verdict, boxes: list[tuple[int, list[float]]], named: Callable[[Any], bool]) -> None:
    """Every box that came out is one of the verdict's, each used once; every place that gave no box is named."""
    left = dict(verdict.boxes)
    for c, box in boxes:
        match = [place for place, (other, b) in left.items() if other == c and np.allclose(box, b, rtol=3e-7, atol=1e-4)]
        assert match, f"class {c}, {box} is in no line that a strict reader accepts"
        left.pop(next((place for place in match if not named(place)), match[0]))
    assert [place for place in (*verdict.rejected, *left) if not named(place)] == []


def out(dataset: DetectionDataset, stem: str) -> list[tuple[int, list[float]]]:
    """Boxes of the images of a stem."""
    found = []
    for path, labels in zip(dataset.files, dataset.labels, strict=True):
        if Path(path).stem == stem:
            found += list(zip(labels.classes.tolist(), labels.boxes.tolist(), strict=True))
    return found


# YOLO text

YOLO = [
    "0 0.5 0.5 0.25 0.25\n1 0.125 0.25 0.0625 0.5\n0 0.75 0.5 0.5 0.5\n",
    "1 0.1 0.1 0.9 0.1 0.5 0.8\r\n0 0.3 0.3 0.2 0.2\r\n",
    "0 0.31 0.42 0.11 0.08",
]


def strict_yolo(data: bytes) -> Verdict:
    verdict = Verdict({}, [])
    for k, line in enumerate(re.split(rb"\r\n|\r|\n", data.removeprefix(b"\xef\xbb\xbf")), 1):
        try:
            fields = re.split(r"\s+", line.decode().strip())
        except UnicodeDecodeError:
            verdict.rejected.append(k)
            continue
        if fields == [""]:
            continue
        numbers = [v for v in map(number, fields) if v is not None]
        xs, ys = numbers[1::2], numbers[2::2]
        shape = len(fields) == 5 or (len(fields) >= 7 and len(fields) % 2 == 1)
        sound = len(numbers) == len(fields) and shape and all(0 <= v <= 1 + 6e-8 for v in numbers[1:])
        if not sound or numbers[0] not in range(len(NAMES)):
            verdict.rejected.append(k)
            continue
        if len(fields) == 5:
            cx, cy, w, h = numbers[1:]
            box = [cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2]
        else:
            box = [min(xs), min(ys), max(xs), max(ys)]
        if box[2] <= box[0] or box[3] <= box[1]:
            verdict.rejected.append(k)
        else:
            verdict.boxes[k] = int(numbers[0]), [v * side for v, side in zip(box, (WIDTH, HEIGHT) * 2, strict=True)]
    return verdict


@pytest.fixture(scope="module")
def yolo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("yolo")
    save(root / "images/train/a.png", picture(HEIGHT, WIDTH))
    lay_out(root, {"labels/train/": "", "data.yaml": "train: images/train\nnames: [cat, dog]\n"})
    return root


@FUZZ
@given(data=wounds(YOLO))
@example(data=b"\xef\xbb\xbf0 .5 .5 .5 .5\n\r\n")  # the mark of Windows editors
@example(data=b"0 .5 .5 .5 .5\x0c1 .5 .5 .5\n1 .2 .2 .1 .1 \n\n0 .6 .5 .5 .5")  # only line feeds end lines
@example(data=b"0 0.31 0.42 0.15e-11 0.08")  # no width is left of it in float32
@example(data="0 0.5 0.5 0.1 0.\u0665\n1_0 .5 .5 .5 .5\n16777217 .5 .5 .5 .5\n1e-60 .5 .5 .5 .5".encode())
def test_yolo(yolo: Path, data: bytes) -> None:
    rewrite(yolo / "labels/train/a.txt", data)
    dataset, _ = opened(yolo)
    assert dataset is not None, "a label file never costs the data set"
    places = {fault.where for fault in dataset.report.faults}
    compare(strict_yolo(data), out(dataset, "a"), lambda k: f"line {k}" in places)


# Pascal VOC

VOC = [
    voc_xml("<filename>a.png</filename>", voc_object("cat", 1, 2, 11, 22), voc_object("dog", 5.5, 6, 60, 40)),
    '<?xml version="1.0" encoding="utf-8"?>\n'
    + voc_xml(
        voc_object("dog", 3, 4, 9, 8, "<difficult>0</difficult><pose>Left</pose>"), "\n", voc_object("cat", 20, 10, 31, 17)
    ),
    '<!DOCTYPE annotation [<!ENTITY x "7"><!ENTITY y "&x;&x;">]>' + voc_xml(voc_object("cat", "&x;", 1, "&y;", 9)),
]
BOMB = '<!DOCTYPE annotation [<!ENTITY a0 "9">' + "".join(f'<!ENTITY a{k} "{f"&a{k - 1};" * 10}">' for k in range(1, 12)) + "]>"
VOC_WHOLE = [
    BOMB + voc_xml(voc_object("cat", "&a11;")),
    '<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/hostname">]>' + voc_xml(voc_object("cat", "&x;")),
    voc_xml(voc_object("cat", *("<a>" * 20000 + "</a>" * 20000, 1, 2, 3))),
    '<?xml version="1.0" encoding="klingon"?>' + voc_xml(voc_object("cat")),
    '<?xml version="1.0" encoding="utf-16"?>' + voc_xml(voc_object("cat")),
    "",
    "<html><object/></html>",
]


def strict_voc(data: bytes) -> Verdict:
    """By expat and a document tree: one text-only element for each thing, no element twice."""
    try:
        root = xml.dom.minidom.parseString(data).documentElement
    except (ExpatError, ValueError, LookupError):
        return Verdict({}, [], whole=True)
    if root.tagName != "annotation":
        return Verdict({}, [], whole=True)
    verdict = Verdict({}, [])
    for k, item in enumerate(children(root, "object"), 1):
        if (text(item, "difficult") or "0").strip() == "1":
            verdict.rejected.append(k)
            continue
        bounds = children(item, "bndbox")
        corners = [number(text(bounds[0], tag) or "") for tag in ("xmin", "ymin", "xmax", "ymax")] if len(bounds) == 1 else []
        name = (text(item, "name") or "").strip()
        values = [v for v in corners if v is not None and abs(v) < 2**24]
        if len(values) == 4 and values[2] > values[0] and values[3] > values[1] and name in NAMES:
            verdict.boxes[k] = NAMES.index(name), values
        else:
            verdict.rejected.append(k)
    return verdict


def children(node: Any, tag: str) -> list[Any]:
    return [child for child in node.childNodes if child.nodeType == child.ELEMENT_NODE and child.tagName == tag]


def text(node: Any, tag: str) -> str | None:
    """The text of the only child of that name, which has nothing but text; else None."""
    found = children(node, tag)
    if len(found) != 1 or any(child.nodeType == child.ELEMENT_NODE for child in found[0].childNodes):
        return None
    return "".join(child.data for child in found[0].childNodes if child.nodeType in (child.TEXT_NODE, child.CDATA_SECTION_NODE))


@pytest.fixture(scope="module")
def voc(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("voc")
    for stem in "ab":
        save(root / f"JPEGImages/{stem}.png", picture(HEIGHT, WIDTH))
    lay_out(root, {"ImageSets/Main/train.txt": "a\nb\n", "Annotations/b.xml": voc_xml(voc_object("cat"))})
    lay_out(root, {"data.yaml": "train: ImageSets/Main/train.txt\nnames: [cat, dog]\n"})
    return root


def check_voc(root: Path, data: bytes) -> None:
    path = root / "Annotations/a.xml"
    rewrite(path, data)
    dataset, _ = opened(root)
    assert dataset is not None, "a label file never costs the data set"
    assert len(out(dataset, "b")) == 1
    lost = str(path) in {fault.file for fault in dataset.report.lost_images}
    verdict = strict_voc(data)
    assert lost or not verdict.whole, "what is no annotation is read as one"
    assert not (lost and out(dataset, "a"))
    places = {int(fault.where.split()[1]) for fault in dataset.report.faults}
    compare(verdict, out(dataset, "a"), lambda k: lost or k in places)
    without_names = (root / "data.yaml").read_text().replace("names: [cat, dog]\n", "")
    lay_out(root, {"nameless/data.yaml": f"path: {root}\n{without_names}"})
    with suppress(InputError):
        assert DatasetFile.read(str(root / "nameless")).names


@FUZZ
@given(data=wounds(VOC))
@example(data=voc_xml(voc_object("cat", more="<name>dog</name>"), voc_object("cat", more="<bndbox/>")).encode())
@example(data=voc_xml(voc_object("cat", "1</xmin><xmin>5"), voc_object("cat", "<b/>1"), voc_object("cat", "1_0")).encode())
@example(data=voc_xml(voc_object("cat", 1, 2, 3e7, 22), voc_object("cat", 16777214, 2, 16777214.4, 22)).encode())
def test_voc(voc: Path, data: bytes) -> None:
    check_voc(voc, data)


@pytest.mark.parametrize("k", range(len(VOC_WHOLE)))
def test_voc_files_made_to_hurt(voc: Path, k: int) -> None:
    check_voc(voc, VOC_WHOLE[k].encode())


# COCO json


def coco_base() -> dict[str, Any]:
    return {
        "info": {},
        "images": [
            {"id": 7, "file_name": "a.png", "height": HEIGHT, "width": WIDTH},
            {"id": 9, "file_name": "b.png", "height": HEIGHT, "width": WIDTH},
        ],
        "annotations": [
            {"id": 1, "image_id": 7, "category_id": 3, "bbox": [1, 2, 10, 20], "area": 200, "iscrowd": 0},
            {"id": 2, "image_id": 9, "category_id": 5, "bbox": [5.5, 6, 20.25, 30], "segmentation": [[6, 7, 20, 8, 15, 30]]},
            {
                "id": 3,
                "image_id": 7,
                "category_id": 5,
                "bbox": [0, 0, 60, 40],
                "area": 1.5,
                "iscrowd": 1,
                "segmentation": {"size": [1]},
            },
        ],
        "categories": [{"id": 3, "name": "cat"}, {"id": 5, "name": "dog"}],
    }


ODD: list[Any] = [
    None,
    True,
    False,
    -1,
    0,
    1,
    3,
    7,
    9,
    5.0,
    7.0,
    2.5,
    1e309,
    -1e309,
    math.nan,
    1e30,
    10**30,
    10**400,
    2**24 + 1,
]
ODD += [
    "",
    "x",
    "7",
    "cat",
    "a.png",
    "\ud800",
    "\0",
    "../b.png",
    [],
    {},
    [1],
    [[]],
    [None],
    {"id": 7},
    [1, 2, 3],
    [1, 2, "3", 4],
]
ODD += [
    [True, 2, 3, 4],
    [1, 2, 1e309, 4],
    [1, 2, 10**400, 4],
    [[1, 2, 3, 4, 5, "x"]],
    [[1, 2, 3, 4, 5, math.nan]],
    [5],
    "abcdefgh",
    [["a"] * 6],
]


def paths_of(node: Any, path: tuple = ()) -> list[tuple]:
    """Every place in a structure."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [path, *(p for key, value in items for p in paths_of(value, (*path, key)))]


@st.composite
def wounded_json(draw: st.DrawFn) -> bytes:
    """Wrong types and values at up to three places, entries removed or repeated; or wounds of the text."""
    if draw(st.integers(0, 4)) == 0:
        return draw(wounds([json.dumps(coco_base(), indent=1)]))
    content: Any = coco_base()
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(paths_of(content)[1:] or [()]))
        if not path:
            break
        parent = content
        for key in path[:-1]:
            parent = parent[key]
        how = draw(st.sampled_from(["replace", "replace", "replace", "remove", "repeat"]))
        if how == "replace":
            parent[path[-1]] = deepcopy(draw(st.sampled_from(ODD)))
        elif how == "remove":
            del parent[path[-1]]
        elif isinstance(parent, list):
            parent.append(deepcopy(parent[path[-1]]))
    return json.dumps(content).encode()


def plain(value: Any) -> bool:
    """A number or a text; what ids are."""
    return isinstance(value, int | float | str) and not isinstance(value, bool)


def finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**24


def strict_coco(data: bytes) -> Verdict:
    """Places are (annotation id as text, number in the list)."""
    try:
        content = json.loads(data.decode())
        images, categories, annotations = content["images"], content["categories"], content.get("annotations", [])
        sound = all(plain(image["id"]) and isinstance(image["file_name"], str) for image in images)
        sound = sound and all(plain(c["id"]) and isinstance(c["name"], str) for c in categories)
        if not sound or not all(isinstance(part, list) for part in (images, categories, annotations)):
            raise ValueError("not as COCO says")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return Verdict({}, [], whole=True)
    listed = [image["id"] for image in images]
    verdict = Verdict({}, [])
    for k, a in enumerate(annotations):
        if not isinstance(a, dict):
            verdict.rejected.append((f"at position {k + 1}", k))
            continue
        box, image, category = a.get("bbox"), a.get("image_id"), a.get("category_id")
        names = {c["name"] for c in categories if plain(category) and c["id"] == category}
        sound = plain(image) and listed.count(image) == 1 and len(names) == 1 and names <= set(NAMES)
        sound = sound and isinstance(box, list) and len(box) == 4 and all(map(finite, box)) and box[2] > 0 and box[3] > 0
        if sound:
            corners = [float(v) for v in (box[0], box[1], box[0] + box[2], box[1] + box[3])]
            verdict.boxes[str(a.get("id")), k] = NAMES.index(names.pop()), corners
        else:
            verdict.rejected.append((str(a.get("id")), k))
    return verdict


@pytest.fixture(scope="module")
def coco(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("coco")
    for stem in "ab":
        save(root / f"photos/{stem}.png", picture(HEIGHT, WIDTH))
    lay_out(root, {"data.yaml": "train: train.json\nimages: photos\nnames: [cat, dog]\n"})
    lay_out(root, {"nameless/data.yaml": f"path: {root}\ntrain: train.json\nimages: photos\n"})
    return root


def check_coco(root: Path, data: bytes) -> None:
    rewrite(root / "train.json", data)
    dataset, error = opened(root)
    with suppress(InputError):
        assert DatasetFile.read(str(root / "nameless")).names
    verdict = strict_coco(data)
    if dataset is None:
        assert "train.json" in error
        return
    assert not verdict.whole, "what is no COCO file is read as one"
    faults = Counter(fault.where.removeprefix("annotation ").split(" (")[0] for fault in dataset.report.faults)
    lost = bool(dataset.report.lost_images)
    boxes = [box for stem in {Path(path).stem for path in dataset.files} for box in out(dataset, stem)]
    compare(verdict, boxes, lambda place: lost or bool(faults[place[0]]))


def coco_with(**changes: Any) -> bytes:
    return json.dumps({**coco_base(), **changes}).encode()


@FUZZ
@given(data=wounded_json())
@example(data=coco_with(categories=[{"id": 3, "name": "cat"}, {"id": 3, "name": "dog"}, {"id": 5, "name": "dog"}]))
@example(data=coco_with(images=[{"id": 7, "file_name": "a.png"}, {"id": 7, "file_name": "b.png"}]))
@example(data=coco_with(categories=[{"id": math.nan, "name": "cat"}, {"id": "5", "name": "dog"}]))
@example(data=coco_with(annotations=[{"id": [], "image_id": 7.0, "category_id": True, "bbox": [1, 2, 1e30, 4]}]))
def test_coco(coco: Path, data: bytes) -> None:
    check_coco(coco, data)


@pytest.mark.parametrize(
    "data", [b"[" * 100_000, b"[" * 900 + b"]" * 900, b"", b"null", b"\xff\xfe[\0]\0", b'{"images":' * 5000]
)
def test_coco_files_made_to_hurt(coco: Path, data: bytes) -> None:
    check_coco(coco, data)
    with pytest.raises(InputError, match=r"train\.json"):
        DatasetFile.read(str(coco)).open("train")
