"""Damaged Pascal VOC files: never a traceback, never a silent wrong box; what a slow, strict reader
rejects is named."""

import xml.dom.minidom
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Any
from xml.parsers.expat import ExpatError

import pytest
from corruption import FUZZ, corrupted
from hypothesis import example, given
from label_verdict import HEIGHT, NAMES, WIDTH, Verdict, compare, number, opened, out, rewrite
from made_datasets import lay_out, lost_images, picture, save, voc_object, voc_xml

from boltbox.detector.data.dataset_file import DatasetFile
from boltbox.detector.system.errors import InputError

VOC = [
    voc_xml(
        "<filename>a.png</filename>",
        voc_object("cat", 1, 2, 11, 22),
        voc_object("dog", 5.5, 6, 60, 40),
    ),
    '<?xml version="1.0" encoding="utf-8"?>\n'
    + voc_xml(
        voc_object("dog", 3, 4, 9, 8, "<difficult>0</difficult><pose>Left</pose>"),
        "\n",
        voc_object("cat", 20, 10, 31, 17),
    ),
    '<!DOCTYPE annotation [<!ENTITY x "7"><!ENTITY y "&x;&x;">]>'
    + voc_xml(voc_object("cat", "&x;", 1, "&y;", 9)),
]
BOMB = (
    '<!DOCTYPE annotation [<!ENTITY a0 "9">'
    + "".join(f'<!ENTITY a{k} "{f"&a{k - 1};" * 10}">' for k in range(1, 12))
    + "]>"
)
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
    """By expat and a document tree; of an element that comes twice the first counts."""
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
        corners = []
        for tag in ("xmin", "ymin", "xmax", "ymax"):
            found = [text(bound, tag) for bound in bounds]
            corners.append(number(next((value for value in found if value is not None), "")))
        name = (text(item, "name") or "").strip()
        values = [v for v in corners if v is not None and abs(v) < 2**24]
        if len(values) == 4 and values[2] > values[0] and values[3] > values[1] and name in NAMES:
            verdict.boxes[k] = NAMES.index(name), values
        else:
            verdict.rejected.append(k)
    return verdict


def children(node: Any, tag: str) -> list[Any]:
    return [
        child
        for child in node.childNodes
        if child.nodeType == child.ELEMENT_NODE and child.tagName == tag
    ]


def text(node: Any, tag: str) -> str | None:
    """The text of the first child of that name, up to an element in it; None if there is none."""
    found = children(node, tag)
    if not found:
        return None
    parts = takewhile(lambda child: child.nodeType != child.ELEMENT_NODE, found[0].childNodes)
    return "".join(
        child.data
        for child in parts
        if child.nodeType in (child.TEXT_NODE, child.CDATA_SECTION_NODE)
    )


@pytest.fixture(scope="module")
def voc(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("voc")
    for stem in "ab":
        save(root / f"JPEGImages/{stem}.png", picture(HEIGHT, WIDTH))
    lay_out(
        root,
        {"ImageSets/Main/train.txt": "a\nb\n", "Annotations/b.xml": voc_xml(voc_object("cat"))},
    )
    lay_out(root, {"data.yaml": "train: ImageSets/Main/train.txt\nnames: [cat, dog]\n"})
    return root


def check_voc(root: Path, data: bytes) -> None:
    path = root / "Annotations/a.xml"
    rewrite(path, data)
    dataset, _ = opened(root)
    assert dataset is not None, "a label file never costs the data set"
    assert len(out(dataset, "b")) == 1
    lost = str(path) in {fault.file for fault in lost_images(dataset)}
    verdict = strict_voc(data)
    assert lost or not verdict.whole, "what is no annotation is read as one"
    assert not (lost and out(dataset, "a"))
    places = {int(fault.where.split()[1]) for fault in dataset.faults if fault.where}
    compare(verdict, out(dataset, "a"), lambda k: lost or k in places)
    without_names = (root / "data.yaml").read_text().replace("names: [cat, dog]\n", "")
    lay_out(root, {"nameless/data.yaml": f"path: {root}\n{without_names}"})
    with suppress(InputError):
        assert DatasetFile.read(str(root / "nameless")).names


@FUZZ
@given(data=corrupted(VOC))
@example(
    data=voc_xml(
        voc_object("cat", more="<name>dog</name>"), voc_object("cat", more="<bndbox/>")
    ).encode()
)
@example(
    data=voc_xml(
        voc_object("cat", "1</xmin><xmin>5"), voc_object("cat", "<b/>1"), voc_object("cat", "1_0")
    ).encode()
)
@example(
    data=voc_xml(
        voc_object("cat", 1, 2, 3e7, 22), voc_object("cat", 16777214, 2, 16777214.4, 22)
    ).encode()
)
def test_voc(voc: Path, data: bytes) -> None:
    check_voc(voc, data)


@pytest.mark.parametrize("k", range(len(VOC_WHOLE)))
def test_voc_files_made_to_hurt(voc: Path, k: int) -> None:
    check_voc(voc, VOC_WHOLE[k].encode())
