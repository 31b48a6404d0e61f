"""Damaged label files: never a traceback, never a wrong box; what a slow, strict reader rejects is
named."""

import math
import re
import xml.dom.minidom
from contextlib import suppress
from typing import NamedTuple
from xml.parsers.expat import ExpatError

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from made_datasets import NAMES, lay_out, picture, save, voc_object, voc_xml
from made_runs import column

from boltbox.detector.data.cache.labels import CacheFile
from boltbox.detector.data.dataset_file import DatasetFile
from boltbox.detector.system.errors import InputError

HEIGHT = 40
WIDTH = 60
FUZZ = settings(max_examples=40, suppress_health_check=list(HealthCheck))
VALUES = "1e309 -1 nan -inf 1e30 16777217 1e-60 -0 1_0 0x10 1,5 2147483648 0 0.5 1.0000001 1 2 60"
VALUES += ' +0.5 .5 5. null true [] {} [[]] "x" "cat" "a.png" "7" "\\ud800" 1e400 NaN'
TOKENS = VALUES.split() + ["", " ", "\n", "\r", "\0", "\x0c", "\u2028", "\ufeff", "\u0661"]
TOKENS += ["<", ">", "&", "]]>", "<!--", "&x;", '"', "{", "}", "[", "]", ",", "9" * 400]


@st.composite
def corrupted(draw, texts):
    """One of the texts with up to four defects: values replaced, bytes changed, cut out, put in,
    repeated."""
    data = draw(st.sampled_from(texts)).encode()
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        end = start + draw(st.integers(0, 12))
        how = draw(st.sampled_from(["value", "value", "put", "byte", "repeat"]))
        places = list(re.finditer(rb'-?[\d.]+|"\w+"', data))
        if how == "value" and places:
            start, end = draw(st.sampled_from(places)).span()
        part = data[start:end] * 2
        if how in ("value", "put"):
            part = draw(st.sampled_from(TOKENS)).encode()
        elif how == "byte":
            part = draw(st.binary(max_size=4))
        data = data[:start] + part + data[end:]
    return data


class Verdict(NamedTuple):
    """What the strict reader says.

    Attributes:
        boxes: class and xyxy pixels by place and number of the object.
        rejected: places.
        whole: the file cannot be used.
    """

    boxes: dict[tuple[str, int], tuple[int, list[float]]]
    rejected: list[str]
    whole: bool = False

    def add(self, place, name, values):
        """An object of this class; rejected if its box is none."""
        sound = len(values) == 4 and all(abs(value) < 2**24 for value in values)
        if sound and values[2] > values[0] and values[3] > values[1] and name in NAMES:
            self.boxes[place, len(self.boxes)] = (NAMES.index(name), values)
        else:
            self.rejected.append(place)


def numbers(fields):
    """Those of the fields that are finite numbers."""
    values = []
    for field in fields:
        with suppress(ValueError, TypeError, OverflowError):
            values.append(float(field))
    return [value for value in values if math.isfinite(value)]


def strict_yolo(data):
    verdict = Verdict({}, [])
    for k, line in enumerate(re.split(rb"\r\n|\r|\n", data.removeprefix(b"\xef\xbb\xbf")), 1):
        fields = line.decode(errors="replace").split()
        if not fields:
            continue
        first, *rest = numbers(fields) or [-1.0]
        sound = len(rest) + 1 == len(fields) and all(0 <= v <= 1 + 6e-8 for v in rest)
        box = []
        if sound and len(rest) == 4:
            x, y, w, h = rest
            box = [x - w / 2, y - h / 2, x + w / 2, y + h / 2]
        elif sound and len(rest) >= 6 and len(rest) % 2 == 0:
            box = [min(rest[::2]), min(rest[1::2]), max(rest[::2]), max(rest[1::2])]
        pixels = [v * side for v, side in zip(box, (WIDTH, HEIGHT) * 2, strict=False)]
        name = NAMES[int(first)] if first in (0, 1) else None
        verdict.add(f"line {k}", name, pixels)
    return verdict


def strict_voc(data):
    """By expat and a document tree; of an element that comes twice the first counts."""
    verdict = Verdict({}, [])
    try:
        root = xml.dom.minidom.parseString(data).documentElement
    except (ExpatError, ValueError, LookupError):
        return verdict._replace(whole=True)
    for k, item in enumerate(children(root, "object"), 1):
        values = []
        for tag in ("xmin", "ymin", "xmax", "ymax"):
            texts = [text(bound, tag) for bound in children(item, "bndbox")]
            values.append(next((t for t in texts if t is not None), ""))
        box = numbers(values) if (text(item, "difficult") or "").strip() != "1" else []
        verdict.add(f"object {k}", (text(item, "name") or "").strip(), box)
    return verdict._replace(whole=root.tagName != "annotation")


def children(node, tag):
    return [child for child in node.childNodes if getattr(child, "tagName", "") == tag]


def text(node, tag):
    """The text of the first child of that name, up to an element in it; None if there is none."""
    found = children(node, tag)
    if not found:
        return None
    words = ""
    for child in found[0].childNodes:
        if child.nodeType == child.ELEMENT_NODE:
            break
        words += child.data if hasattr(child, "wholeText") else ""
    return words


def compare(dataset, verdict):
    """Every box that came out is one of the verdict's; every place that gave none is named, or its
    image is left out."""
    places = {fault.where.split(" (")[0] for fault in dataset.faults}
    assert "" in places or not verdict.whole, "what is no label file is read as one"
    left = dict(verdict.boxes)
    for labels in dataset.labels:
        assert np.isfinite(labels.area).all()
        assert (labels.boxes[:, 2:] > labels.boxes[:, :2]).all()
        for parts in labels.polygons:
            for part in parts:
                assert np.isfinite(part).all()
        for c, box in zip(labels.classes.tolist(), labels.boxes.tolist(), strict=True):
            match = []
            for place, (other, values) in left.items():
                if other == c and np.allclose(box, values, rtol=3e-7, atol=1e-4):
                    match.append(place)
            assert match, f"class {c}, {box} is nowhere in the file"
            # of equal ones, the one that is not named
            left.pop(min(match, key=lambda place: place[0] in places))
    unnamed = set(column(left, 0)) | set(verdict.rejected)
    assert "" in places or unnamed <= places


YOLO = "0 0.5 0.5 0.25 0.25\n1 0.1 0.1 0.9 0.1 0.5 0.8\r\n0 0.75 0.5 0.5 0.5\n"
VOC = voc_xml("<filename>a.png</filename>", voc_object("cat"), voc_object("dog", 5.5, 6, 60, 40))
ENTITIES = '<!DOCTYPE annotation [<!ENTITY x "7"><!ENTITY y "&x;&x;">]>'
FORMATS = {
    "yolo": (strict_yolo, "labels/a.txt", [YOLO]),
    "voc": (strict_voc, "Annotations/a.xml", [VOC, ENTITIES + voc_xml(voc_object("cat", "&x;"))]),
    "coco": (None, "train.json", []),
}
TRAIN = {"yolo": "images", "voc": "list.txt", "coco": "train.json"}


@pytest.fixture(scope="module")
def roots(tmp_path_factory):
    folders = {}
    for name in FORMATS:
        root = tmp_path_factory.mktemp(name)
        save(root / "images/a.png", picture(HEIGHT, WIDTH))
        yaml = f"path: {root}\ntrain: {TRAIN[name]}\nformat: {name}\n"
        lay_out(root, {"nameless.yaml": yaml, "data.yaml": f"{yaml}names: [cat, dog]\n"})
        lay_out(root, {"labels/": "", "Annotations/": "", "list.txt": "a\n"})
        folders[name] = root
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CacheFile, "load", lambda *_, **__: None)
        patch.setattr(CacheFile, "save", lambda *_: "")
        yield folders


def check(name, root, data):
    strict, file, _ = FORMATS[name]
    (root / file).write_bytes(data)
    for yaml in ("data.yaml", "nameless.yaml"):
        with suppress(InputError):
            DatasetFile.read(str(root / yaml)).open("train")
    dataset = opened(root)
    if isinstance(dataset, str):
        assert name == "coco", "a label file never costs the dataset"
        assert file in dataset
    else:
        compare(dataset, strict(data))


def opened(root):
    """The dataset, or the error."""
    try:
        return DatasetFile.read(str(root / "data.yaml")).open("train", strict=False)
    except InputError as e:
        return str(e)


BAD_LINES = """0
0 .5 .5 .5 .5 .9
0 .1 .1 .5 .1 .5 .5 .1
cat .5 .5 .5 .5
0,.5,.5,.5,.5
0 nan .5 .5 .5
0 .5 -.1 .5 .5
-1 .5 .5 .5 .5
0 1.001 .5 .5 .5
0 .1 .1 .5 .1 .5 12
0 .5 .5 0 .5
0 .1 .1 .5 .1 .9 .1
0.5 .5 .5 .5 .5
0 .5 .5 .5 .5
0 .50 .5 5e-1 .5
-0 .5 .5 .5 .5
"""


@FUZZ
@given(data=corrupted(FORMATS["yolo"][2]))
@example(data=BAD_LINES.encode())
@example(data=b"\xef\xbb\xbf0 .5 .5 .5 .5\n\r\n0 0.31 0.42 0.15e-11 0.08")  # no width in float32
@example(data=b"0 .5 .5 .5 .5\x0c1 .5 .5 .5\n1 .2 .2 .1 .1 \n\n0 .6 .5 .5 .5")
@example(data="0 .5 .5 .1 0.\u0665\n1_0 .5 .5 .5 .5\n16777217 .5 .5 .5 .5\n1e-60 0 0 1 1".encode())
def test_yolo(roots, data):
    check("yolo", roots["yolo"], data)


BAD_OBJECTS = [
    voc_object("cat", 5, 5, 5, 9),
    voc_object("cat", 9, 5, 5, 9),
    voc_object("cat", "left", 5, 5, 9),
    voc_object("cat", "nan", 5, 5, 9),
    "<object><name>cat</name></object>",
]


@FUZZ
@given(data=corrupted(FORMATS["voc"][2]))
@example(data=voc_xml(*BAD_OBJECTS).encode())
@example(data=voc_xml(voc_object("cat", more="<name>dog</name><bndbox/>")).encode())
@example(data=voc_xml(voc_object("cat", "1</xmin><xmin>5"), voc_object("cat", "<b/>1")).encode())
@example(data=voc_xml(voc_object("cat", 1, 2, 3e7), voc_object("cat", 16777214)).encode())
def test_voc(roots, data):
    check("voc", roots["voc"], data)


BOMB = '<!DOCTYPE annotation [<!ENTITY a0 "9">'
BOMB += "".join(f'<!ENTITY a{k} "{f"&a{k - 1};" * 10}">' for k in range(1, 12)) + "]>"
SYSTEM = '<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/hostname">]>'


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("voc", BOMB + voc_xml(voc_object("cat", "&a11;"))),
        ("voc", SYSTEM + voc_xml(voc_object("cat", "&x;"))),
        ("voc", voc_xml(voc_object("cat", "<a>" * 20000 + "</a>" * 20000))),
        ("voc", '<?xml version="1.0" encoding="klingon"?>' + VOC),
        ("voc", '<?xml version="1.0" encoding="utf-16"?>' + VOC),
        ("voc", ""),
        ("voc", "<html><object/></html>"),
        ("coco", "[" * 100_000),
        ("coco", "null"),
        ("coco", "\ufffe[\0]\0"),
        ("coco", '{"images":' * 5000),
    ],
    ids=lambda x: x[:9],
)
def test_files_made_to_hurt(roots, name, data):
    check(name, roots[name], data.encode())
