"""Images that lose every object are no background: left out, and named."""

import json
from pathlib import Path
from typing import Any

import pytest
from made_datasets import (
    as_coco,
    as_voc,
    as_yolo,
    coco_with,
    counts,
    files_of,
    lay_out,
    load,
    lost_images,
    voc_object,
)

import cli
from boltbox.detector.data.datasets import Fault


def doctor(folder: Path, *options: str) -> tuple[int, dict[str, list[dict[str, str]]]]:
    """Exit code; findings by kind."""
    run = folder.with_name(f"{folder.name}-run")
    try:
        cli.main(
            [
                "doctor",
                "--data.dataset",
                str(folder),
                "--data.image_size",
                "64",
                "--run",
                str(run),
                *options,
            ]
        )
        code = 0
    except SystemExit as e:
        code = int(e.code or 0)
    kinds: dict[str, list[dict[str, str]]] = {}
    for finding in json.loads((run / "doctor.json").read_text())["findings"]:
        kinds.setdefault(finding["kind"], []).append(finding)
    return code, kinds


def bad_yolo(root: Path) -> str:
    as_yolo(root)
    lay_out(root, {"labels/train/b.txt": "0 1.5 .5 .5 .5\n0 .5 .5 .5\n"})
    return "line 1, coordinate above 1 (coordinates are fractions of the image)"


def bad_voc(root: Path) -> str:
    as_voc(root)
    item = voc_object("cat", 5, 5, 5, 9)
    lay_out(root, {"Annotations/b.xml": f"<annotation>{item}{item}</annotation>"})
    return "object 1 (cat), zero or negative width or height"


def bad_coco(root: Path) -> str:
    as_coco(
        root,
        coco_with([{}, {"image_id": 10, "bbox": [1, 2, 0, 4]}, {"image_id": 10, "bbox": None}]),
    )
    return "annotation 102 (cat), zero or negative width or height"


@pytest.mark.parametrize("make", [bad_yolo, bad_voc, bad_coco])
def test_left_out_and_named(tmp_path: Path, make: Any) -> None:
    """b lost both of its objects; c has none, and stays as background."""
    first = make(tmp_path)
    for _ in range(2):  # parsed, then from the cache
        dataset = load(tmp_path)
        assert files_of(dataset) == ["a.png", "c.png"]
        image = next(tmp_path.rglob("b.png"))
        assert lost_images(dataset) == [
            Fault(str(image), "", f"none of its objects can be used, first: {first}")
        ]
        assert dataset.faults[0].kind == "unusable_image"
        assert (counts(dataset)[2], len(dataset.faults)) == (1, 3)


def test_what_is_marked_difficult_is_not_lost(tmp_path: Path) -> None:
    as_voc(tmp_path)
    item = voc_object("cat", more="<difficult>1</difficult>")
    lay_out(tmp_path, {"Annotations/b.xml": f"<annotation>{item}</annotation>"})
    assert files_of(load(tmp_path)) == ["a.png", "b.png", "c.png"]


def test_coco_annotations_that_may_be_of_two_images(tmp_path: Path) -> None:
    content = coco_with([{"image_id": 30}, {"image_id": 10}])
    content["images"].append({"id": 10, "file_name": "c.png"})
    content["images"] = [image for image in content["images"] if image["id"] != 20]
    as_coco(tmp_path, content)
    assert files_of(load(tmp_path)) == ["a.png"], (
        "b and c have the id 10: nobody knows whose the box is"
    )


@pytest.mark.parametrize("make", [bad_yolo, bad_voc, bad_coco])
def test_repaired_copy_leaves_them_out(tmp_path: Path, make: Any) -> None:
    make(tmp_path / "data")
    code, kinds = doctor(tmp_path / "data", "--fix", str(tmp_path / "copy"))
    assert code == 1
    assert [Path(f["file"]).name for f in kinds["unusable_image"]] == ["b.png"]
    assert any(
        "left out" in line and "b.png" in line
        for line in (tmp_path / "copy/repairs.txt").read_text().splitlines()
    )
    assert not list((tmp_path / "copy").rglob("b.*"))
    code, kinds = doctor(tmp_path / "copy")
    assert code == 0
    assert sorted(files_of(load(tmp_path / "copy"))) == ["a.png", "c.png"]
