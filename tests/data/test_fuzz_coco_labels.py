"""Damaged COCO files: never a traceback, never a silent wrong box; what a slow, strict reader
rejects is named."""

import json
import math
from collections import Counter
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from corruption import FUZZ, corrupted
from hypothesis import example, given
from hypothesis import strategies as st
from label_verdict import HEIGHT, NAMES, WIDTH, Verdict, compare, opened, out, rewrite
from made_datasets import lay_out, lost_images, picture, save

from boltbox.detector.data.dataset_file import DatasetFile
from boltbox.detector.system.errors import InputError


def coco_base() -> dict[str, Any]:
    return {
        "info": {},
        "images": [
            {"id": 7, "file_name": "a.png", "height": HEIGHT, "width": WIDTH},
            {"id": 9, "file_name": "b.png", "height": HEIGHT, "width": WIDTH},
        ],
        "annotations": [
            {
                "id": 1,
                "image_id": 7,
                "category_id": 3,
                "bbox": [1, 2, 10, 20],
                "area": 200,
                "iscrowd": 0,
            },
            {
                "id": 2,
                "image_id": 9,
                "category_id": 5,
                "bbox": [5.5, 6, 20.25, 30],
                "segmentation": [[6, 7, 20, 8, 15, 30]],
            },
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
    items = (
        node.items()
        if isinstance(node, dict)
        else enumerate(node)
        if isinstance(node, list)
        else ()
    )
    return [path, *(p for key, value in items for p in paths_of(value, (*path, key)))]


@st.composite
def corrupted_json(draw: st.DrawFn) -> bytes:
    """Wrong types and values at up to three places, entries removed or repeated; or the text itself
    corrupted."""
    if draw(st.integers(0, 4)) == 0:
        return draw(corrupted([json.dumps(coco_base(), indent=1)]))
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
    """A number, or a text that is one."""
    try:
        return abs(float(value)) < 2**24
    except (TypeError, ValueError, OverflowError):
        return False


def strict_coco(data: bytes) -> Verdict:
    """Places are (annotation id as text, number in the list)."""
    try:
        content = json.loads(data.decode())
        images = content["images"]
        categories = content["categories"]
        annotations = content.get("annotations", [])
        sound = all(plain(image["id"]) and isinstance(image["file_name"], str) for image in images)
        sound = sound and all(plain(c["id"]) and isinstance(c["name"], str) for c in categories)
        if not sound or not all(
            isinstance(part, list) for part in (images, categories, annotations)
        ):
            raise ValueError("not as COCO says")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return Verdict({}, [], whole=True)
    listed = [image["id"] for image in images]
    verdict = Verdict({}, [])
    for k, a in enumerate(annotations):
        if not isinstance(a, dict):
            verdict.rejected.append((f"at position {k + 1}", k))
            continue
        box = a.get("bbox")
        image = a.get("image_id")
        category = a.get("category_id")
        names = {c["name"] for c in categories if plain(category) and c["id"] == category}
        sound = (
            plain(image) and listed.count(image) == 1 and len(names) == 1 and names <= set(NAMES)
        )
        sound = (
            sound
            and isinstance(box, list)
            and len(box) == 4
            and all(map(finite, box))
            and float(box[2]) > 0
            and float(box[3]) > 0
        )
        if sound:
            x, y, w, h = map(float, box)
            corners = [x, y, x + w, y + h]
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
    faults = Counter(
        fault.where.removeprefix("annotation ").split(" (")[0] for fault in dataset.faults
    )
    lost = bool(lost_images(dataset))
    boxes = [
        box for stem in {Path(path).stem for path in dataset.files} for box in out(dataset, stem)
    ]
    compare(verdict, boxes, lambda place: lost or bool(faults[place[0]]))


def coco_with(**changes: Any) -> bytes:
    return json.dumps({**coco_base(), **changes}).encode()


@FUZZ
@given(data=corrupted_json())
@example(
    data=coco_with(
        categories=[{"id": 3, "name": "cat"}, {"id": 3, "name": "dog"}, {"id": 5, "name": "dog"}]
    )
)
@example(data=coco_with(images=[{"id": 7, "file_name": "a.png"}, {"id": 7, "file_name": "b.png"}]))
@example(data=coco_with(categories=[{"id": math.nan, "name": "cat"}, {"id": "5", "name": "dog"}]))
@example(
    data=coco_with(
        annotations=[{"id": [], "image_id": 7.0, "category_id": True, "bbox": [1, 2, 1e30, 4]}]
    )
)
def test_coco(coco: Path, data: bytes) -> None:
    check_coco(coco, data)


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 100_000,
        b"[" * 900 + b"]" * 900,
        b"",
        b"null",
        b"\xff\xfe[\0]\0",
        b'{"images":' * 5000,
    ],
)
def test_coco_files_made_to_hurt(coco: Path, data: bytes) -> None:
    check_coco(coco, data)
    with pytest.raises(InputError, match=r"train\.json"):
        DatasetFile.read(str(coco)).open("train")
