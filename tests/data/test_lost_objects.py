"""Images that lose every object are no background: left out, and named. What explains many wrong
boxes is said as one thing."""

import json
from pathlib import Path
from typing import Any

import numpy as np
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
    picture,
    save,
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
        assert dataset.faults[0].kind == "no_usable_object"
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
    assert code == 2
    assert [Path(f["file"]).name for f in kinds["no_usable_object"]] == ["b.png"]
    assert any(
        "left out" in line and "b.png" in line
        for line in (tmp_path / "copy/repairs.txt").read_text().splitlines()
    )
    assert not list((tmp_path / "copy").rglob("b.*"))
    code, kinds = doctor(tmp_path / "copy")
    assert code == 0
    assert sorted(files_of(load(tmp_path / "copy"))) == ["a.png", "c.png"]


# Conclusions


def scaled_voc(root: Path, by: tuple[float, float], tag: bool, count: int = 12) -> None:
    """Images of 60 x 40 px; boxes, and sizes if `tag`, of images `by` times as large."""
    rng = np.random.default_rng(0)
    for k in range(count):
        save(root / f"JPEGImages/{k:02d}.png", picture(40, 60, k))
        boxes = [
            (1, 2, 20, 30),
            (30, 10, 59.5, 39.5),
            rng.uniform((0, 0, 30, 20), (29, 19, 60, 40)),
        ]
        objects = [voc_object("cat", *(v * by[i % 2] for i, v in enumerate(box))) for box in boxes]
        size = (
            f"<size><width>{60 * by[0]:g}</width><height>{40 * by[1]:g}</height></size>"
            if tag
            else ""
        )
        lay_out(
            root, {f"Annotations/{k:02d}.xml": f"<annotation>{size}{''.join(objects)}</annotation>"}
        )
    ids = "".join(f"{k:02d}\n" for k in range(count))
    lay_out(root, {"ImageSets/Main/train.txt": ids, "ImageSets/Main/val.txt": "00\n"})


@pytest.mark.parametrize(
    ("by", "tag", "words"),
    [
        ((2, 2), True, ["another image size", "up to 1.9"]),
        ((0.5, 0.5), True, []),
        ((1.5, 3), True, ["another image size", "up to 2.9"]),
        ((2, 2), False, ["boxes leave their images", "another image size", "up to 1.9"]),
        ((1, 1), True, []),
        ((1, 1), False, []),
    ],
)
def test_boxes_for_another_image_size(
    tmp_path: Path, by: tuple[float, float], tag: bool, words: list[str]
) -> None:
    scaled_voc(tmp_path / "data", by, tag)
    _, kinds = doctor(tmp_path / "data")
    assert ("wrong_size" in kinds) == (tag and by != (1, 1))
    told = [f["problem"] for f in kinds.get("other_image_size", []) if f["split"] == "train"]
    assert len(told) == bool(words)
    assert [word for word in words if word not in told[0]] == []


@pytest.mark.parametrize("wrong", ["width", "sizes"])
def test_wrong_size_tags_alone_are_no_misplaced_boxes(tmp_path: Path, wrong: str) -> None:
    scaled_voc(tmp_path / "data", (1, 1), True)
    for xml in (tmp_path / "data/Annotations").iterdir():
        text = xml.read_text().replace("<width>60<", "<width>100<")
        xml.write_text(text.replace("<height>40<", "<height>90<") if wrong == "sizes" else text)
    _, kinds = doctor(tmp_path / "data")
    assert kinds["wrong_size"]
    assert "other_image_size" not in kinds


def scaled_yolo(root: Path, factors: tuple[float, float]) -> None:
    """Images of 300 x 200 px; fractions multiplied."""
    rng = np.random.default_rng(0)
    for k in range(8):
        save(root / f"images/{k}.png", picture(200, 300, k))
        rows = [(0.2, 0.3, 0.2, 0.2), (0.75, 0.75, 0.5, 0.5), (*rng.uniform(0.4, 0.6, 2), 0.3, 0.2)]
        scaled = [[v * factors[i % 2] for i, v in enumerate(row)] for row in rows]
        lay_out(
            root,
            {
                f"labels/{k}.txt": "".join(
                    "0 " + " ".join(f"{v:.6g}" for v in row) + "\n" for row in scaled
                )
            },
        )
    lay_out(root, {"data.yaml": "train: images\nval: images\nnames: [cat]\n"})


@pytest.mark.parametrize(
    ("factors", "words"),
    [
        ((300, 200), ["24 of 24 boxes", "in pixels, in per cents or for another image size"]),
        ((2, 2), ["16 of 24 boxes", "in pixels, in per cents or for another image size"]),
        ((1, 1), []),
    ],
)
def test_yolo_text_in_another_unit(
    tmp_path: Path, factors: tuple[float, float], words: list[str]
) -> None:
    scaled_yolo(tmp_path / "data", factors)
    _, kinds = doctor(tmp_path / "data")
    told = [f["problem"] for f in kinds.get("other_image_size", []) if f["split"] == "train"]
    assert len(told) == bool(words)
    assert [word for word in words if word not in told[0]] == []


def test_the_conclusion_comes_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scaled_voc(tmp_path / "data", (2, 2), True)
    doctor(tmp_path / "data")
    faults = [line for line in capsys.readouterr().out.splitlines() if line.startswith("fault: ")]
    assert faults[0] == "fault: other_image_size (1)"  # val has too few images to conclude from
    assert len(faults) > 1


def test_identical_images_with_other_boxes(tmp_path: Path) -> None:
    for k, name in enumerate(("a", "b", "c", "d")):
        save(tmp_path / f"data/images/{name}.png", picture(40, 60, 0 if k < 3 else 9))
    pair = ["0 .5 .5 .2 .2\n", "0 .2 .2 .1 .1\n"]
    lines = {
        "a": "".join(pair),
        "b": "".join(pair[::-1]),
        "c": pair[0] + "0 .7 .7 .1 .1\n0 .1 .1 .1 .1\n",
    }
    lay_out(
        tmp_path / "data",
        {f"labels/{name}.txt": lines.get(name, "0 .5 .5 .5 .5\n") for name in "abcd"},
    )
    lay_out(tmp_path / "data", {"data.yaml": "train: images\nval: images\nnames: [cat]\n"})
    _, kinds = doctor(tmp_path / "data")
    assert len(kinds["duplicate_image"]) == 2
    (found,) = kinds["different_labels"]
    assert (found["severity"], Path(found["file"]).name) == ("fault", "c.png")
    assert "with other boxes (3 here, 2 there)" in found["problem"]
