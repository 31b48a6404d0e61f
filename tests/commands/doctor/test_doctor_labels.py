"""Every kind of fault in labels and folders, made by hand in each format, and found where it is."""

import json
from pathlib import Path
from typing import Any

import pytest
from made_datasets import (
    as_coco,
    as_voc,
    as_yolo,
    coco_content,
    lay_out,
    picture,
    save,
    voc_object,
    voc_xml,
)
from PIL import Image

import cli

# What others find in the same data sets: kinds of images and figures have tests of their own.
OURS = {
    "fault": (
        "wrong_column_count not_a_number non_finite negative_value coordinate_above_1 zero_size_box class_not_an_integer "
        "unknown_class box_outside_frame wrong_size ambiguous_object unreadable_labels unusable_split no_boxes no_images "
        "missing_image unreadable_image too_small_image unusable"
    ),
    "warning": (
        "duplicate_box box_past_frame orphan_annotation orphan_label_file unread_image "
        "mostly_unlabelled similar_names"
    ),
    "note": "missing_label_file difficult_object",
}
KINDS = {kind for kinds in OURS.values() for kind in kinds.split()}


def found(
    folder: Path, capsys: pytest.CaptureFixture[str], *options: str
) -> set[tuple[str, str, str, str]]:
    """(severity, kind, name of the file, place) of what `doctor --json` says."""
    line = f"doctor --data.dataset {folder} --data.image_size 64 --json --run {folder}-run"
    with pytest.raises(SystemExit) as leaving:
        cli.main([*line.split(), *options])
    assert leaving.value.code == 1
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert all(f["problem"] and (f["file"] or f["split"]) for f in findings)
    return {
        (f["severity"], f["kind"], Path(f["file"]).name, f["where"])
        for f in findings
        if f["kind"] in KINDS
    }


def found_and_healed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> set[tuple[str, str, str, str]]:
    """The same; and the doctor finds no fault in the copy that `--fix` writes, and the original is
    what it was."""
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    copy = folder.with_name(f"{folder.name}-fixed")
    findings = found(folder, capsys, "--fix", str(copy))
    assert (copy / "repairs.txt").read_text()
    assert before == {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    # and no SystemExit
    cli.main(f"doctor --data.image_size 64 --run {copy}-run --data.dataset {copy}".split())
    assert "0 faults" in capsys.readouterr().out
    return findings


def test_yolo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    as_yolo(tmp_path)  # a 60 x 40, b 37 x 100, c 64 x 64
    lines = {
        1: "0 .5 .5 .5 .5",
        2: "0 .5 .5",
        3: "cat .5 .5 .5 .5",
        4: "0 nan .5 .5 .5",
        5: "0 .5 -.1 .5 .5",
        6: "0 1.5 .5 .5 .5",
        7: "0 .5 .5 0 .5",
        8: "0 .50 .50 .50 .50",
        9: "3 .5 .5 .1 .1",
        10: "0.5 .5 .5 .1 .1",
        11: "",
        12: "1 .9 .5 .5 .5",  # 0.15 * 64 px past the right side
        13: "1 .5 .5 .998 1.0",  # up to the frame
    }
    images = [
        *(
            "images/train/nothing.png",
            "images/train/none.png",
            "images/train/mixed.png",
            "images/train/other.png",
        ),
        *("images/train/clash.png", "images/train/clash.jpg"),
    ]
    for k, name in enumerate(images):
        save(tmp_path / name, picture(32, 48, 10 + k))
    save(tmp_path / "images/train/small.png", picture(6, 6))
    lay_out(
        tmp_path,
        {
            "labels/train/c.txt": "\n".join(lines.values()),
            "labels/train/nothing.txt": "\n",
            "labels/train/mixed.txt": "0 .5 .5 .1 .1\n1 .1 .2 .9 .2 .5 .7",
            "labels/train/other.TXT": "0 .5 .5 .1 .1",
            "labels/train/clash.txt": "1 .5 .5 .1 .1",
            "labels/train/gone.txt": "1 .5 .5 .1 .1",
            "labels/train/deep/lost.txt": "1 .5 .5 .1 .1",
            "labels/train/classes.txt": "cat\ndog",
            "labels/train/notes.json": "{}",
            "images/train/film.gif": "GIF89a",
            "images/train/broken.png": "no picture",
            "images/test.txt": "./train/a.png\n./train/gone.png",
            "data.yaml": "train: images/train\nval: images/val\ntest: images/test.txt\nnames: [cat, dog, ' Dog']\n",
        },
    )
    assert found_and_healed(tmp_path, capsys) == {
        ("fault", "wrong_column_count", "c.txt", "line 2"),
        ("fault", "not_a_number", "c.txt", "line 3"),
        ("fault", "non_finite", "c.txt", "line 4"),
        ("fault", "negative_value", "c.txt", "line 5"),
        ("fault", "coordinate_above_1", "c.txt", "line 6"),
        ("fault", "zero_size_box", "c.txt", "line 7"),
        ("warning", "duplicate_box", "c.txt", "line 8"),
        ("fault", "unknown_class", "c.txt", "line 9"),
        ("fault", "class_not_an_integer", "c.txt", "line 10"),
        ("warning", "box_past_frame", "c.txt", "line 12"),
        ("note", "missing_label_file", "none.png", ""),
        ("note", "missing_label_file", "other.png", ""),
        ("warning", "orphan_label_file", "gone.txt", ""),
        ("warning", "unread_image", "film.gif", ""),
        ("fault", "unreadable_image", "broken.png", ""),
        ("fault", "too_small_image", "small.png", ""),
        ("fault", "missing_image", "gone.png", ""),
        ("fault", "unusable_split", "data.yaml", ""),
        ("warning", "similar_names", "data.yaml", ""),
    }


def test_voc(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    as_voc(tmp_path)
    objects = {
        1: voc_object("cat", 1, 2, 11, 22),
        2: voc_object("cat", 5, 5, 5, 9),
        3: voc_object("cat", "nan", 5, 5, 9),
        4: voc_object("cow"),
        5: voc_object("dog", more="<difficult>1</difficult>"),
        6: voc_object("dog", 30, 2, 61, 22),
        7: voc_object("dog", 60, 2, 70, 22),
        8: voc_object("cat", 1, 2, 11, 22),
        9: voc_object("dog", 1, 2, 11, 22),
        10: voc_object("dog", 0, 0, 60, 40),
    }
    size = "<size><width>{}</width><height>{}</height></size>"
    for k, name in enumerate(
        ("broken.png", "bare.png", "clash.jpg", "clash.png", "free.png", "other.png")
    ):
        save(tmp_path / "JPEGImages" / name, picture(32, 48, 10 + k))
    turned = Image.fromarray(picture(30, 50, 3))
    exif = turned.getexif()
    exif[0x0112] = 6
    turned.save(tmp_path / "JPEGImages/turned.jpg", exif=exif)
    lay_out(
        tmp_path,
        {
            "Annotations/a.xml": voc_xml(
                "<filename>a.jpg</filename>", size.format(60, 40), *objects.values()
            ),
            "Annotations/b.xml": voc_xml(
                size.format(38, 100), "<filename>x/c.png</filename>", voc_object("dog")
            ),
            "Annotations/c.xml": voc_xml(size.format(0, 0)),
            "Annotations/turned.xml": voc_xml(size.format(50, 30), voc_object("dog")),
            "Annotations/broken.xml": "<annotation><object>",
            "Annotations/clash.xml": voc_xml(voc_object("cat")),
            "Annotations/gone.xml": voc_xml(voc_object("cat")),
            "Annotations/other.json": "{}",
            "ImageSets/Main/train.txt": "a\nb\nc\nbroken\nbare\nclash\nturned\nnowhere\nother\n",
            "data.yaml": "train: ImageSets/Main/train.txt\nval: ImageSets/Main/train.txt\nnames: [cat, dog]\n",
        },
    )
    assert found_and_healed(tmp_path, capsys) == {
        ("fault", "zero_size_box", "a.xml", "object 2 (cat)"),
        ("fault", "non_finite", "a.xml", "object 3 (cat)"),
        ("fault", "unknown_class", "a.xml", "object 4 (cow)"),
        ("note", "difficult_object", "a.xml", "object 5 (dog)"),
        ("warning", "box_past_frame", "a.xml", "object 6 (dog)"),
        ("fault", "box_outside_frame", "a.xml", "object 7 (dog)"),
        ("warning", "duplicate_box", "a.xml", "object 8 (cat)"),
        ("fault", "wrong_size", "b.png", ""),
        ("fault", "wrong_size", "turned.jpg", ""),
        ("fault", "unreadable_labels", "broken.xml", ""),
        ("note", "missing_label_file", "bare.png", ""),
        ("note", "missing_label_file", "other.png", ""),
        ("warning", "orphan_label_file", "gone.xml", ""),
        ("fault", "missing_image", "nowhere.jpg", ""),
    }


def test_coco(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content: dict[str, Any] = coco_content()
    # of a.png, 60 x 40
    cat: dict[str, Any] = {"image_id": 30, "category_id": 17, "bbox": [10, 20, 30, 10]}
    annotations = {
        101: cat,
        102: cat | {"bbox": [5, 5, 0, 9]},
        103: cat | {"bbox": [5, 5, 9]},
        104: cat | {"category_id": 5},
        105: cat | {"image_id": 99},
        106: cat | {"bbox": [50, 20, 11, 10]},
        107: cat | {"bbox": [0, 40, 10, 10]},
        108: cat,
        109: cat | {"iscrowd": 1},
        110: cat | {"bbox": [1, 1, 9, 9], "segmentation": [[1, 1, 10, 1, 10, 10]]},
    }
    content["annotations"] = [{"id": k, **a} for k, a in annotations.items()]
    content["annotations"].append({"id": 101, **cat, "image_id": 10, "bbox": [1, 1, 9, 9]})
    content["categories"].append({"id": 5, "name": "cow"})
    content["images"][0] |= {"width": 65}  # c.png, 64 x 64
    content["images"] += [
        {"id": 40, "file_name": "gone.png"},
        {"id": 50, "file_name": "twice.png"},
        {"id": 60, "file_name": "twice.png"},
        {"id": 60, "file_name": "late.png"},
    ]
    as_coco(tmp_path, content)
    for k, name in enumerate(("twice.png", "late.png", "free.png")):
        save(tmp_path / "photos" / name, picture(32, 48, 10 + k))
    assert found_and_healed(tmp_path, capsys) == {
        ("fault", "zero_size_box", "train.json", "annotation 102 (cat)"),
        ("fault", "non_finite", "train.json", "annotation 103 (cat)"),
        ("fault", "unknown_class", "train.json", "annotation 104 (cow)"),
        ("warning", "orphan_annotation", "train.json", "annotation 105"),
        ("warning", "box_past_frame", "train.json", "annotation 106 (cat)"),
        ("fault", "box_outside_frame", "train.json", "annotation 107 (cat)"),
        ("warning", "duplicate_box", "train.json", "annotation 108 (cat)"),
        ("fault", "ambiguous_object", "train.json", ""),
        ("fault", "wrong_size", "c.png", ""),
        ("fault", "missing_image", "gone.png", ""),
    }


@pytest.mark.parametrize(
    ("labels", "wanted"),
    [
        ({"a.txt": "", "b.txt": "", "c.txt": ""}, ("fault", "no_boxes", "", "")),
        ({"a.txt": "1 .5 .5 .5 .5"}, ("warning", "mostly_unlabelled", "", "")),
    ],
)
def test_labels_in_the_wrong_place(
    tmp_path: Path,
    labels: dict[str, str],
    wanted: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
) -> None:
    as_yolo(tmp_path)
    for path in (tmp_path / "labels/train").iterdir():
        path.unlink()
    lay_out(tmp_path, {f"labels/train/{name}": text for name, text in labels.items()})
    lay_out(tmp_path, {"data.yaml": "train: images/train\nval: nowhere\nnames: [cat, dog]\n"})
    assert wanted in found(tmp_path, capsys)


def test_fit_still_refuses_what_the_doctor_reports(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    as_voc(tmp_path)
    lay_out(
        tmp_path,
        {
            "data.yaml": "train: ImageSets/Main/train.txt\nval: ImageSets/Main/train.txt\nnames: [cat]\n"
        },
    )
    assert {f for f in found(tmp_path, capsys) if f[1] == "unknown_class"} == {
        ("fault", "unknown_class", "b.xml", "object 1 (dog)")
    }
    with pytest.raises(SystemExit):
        cli.main(f"fit --data.dataset {tmp_path} --data.image_size 64 --run {tmp_path}/fit".split())
    assert (
        "b.xml: object 1 is of class 'dog', which is not among the 1 names"
        in capsys.readouterr().err
    )
