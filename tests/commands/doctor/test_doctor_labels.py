"""Every kind of fault in labels, made by hand in each format, found where it is, and repaired."""

from pathlib import Path

import numpy as np
import pytest
from made_datasets import (
    as_coco,
    as_voc,
    as_yolo,
    by_name,
    coco_content,
    lay_out,
    load,
    picture,
    save,
    voc_object,
    voc_xml,
)
from made_labels import labels_of
from made_runs import contents, findings_of, type_line
from PIL import Image

from boltbox.detector.commands.doctor.images import same_objects


def table(text):
    """Its rows; the last columns may be empty."""
    rows = set()
    for line in text.strip().splitlines():
        severity, kind, name, place = (line.split(maxsplit=3) + ["", ""])[:4]
        rows.add((severity, kind, name, place))
    return rows


def doctor(folder, options=""):
    """Severity, kind, file and place of each finding."""
    findings = findings_of(folder, folder.with_name(f"{folder.name}-run"), options)
    for f in findings:
        assert f["problem"]
        assert f["file"] or f["split"]
    return {(f["severity"], f["kind"], Path(f["file"]).name, f["where"]) for f in findings}


def healed(folder):
    """The same, and by image the class and box of each object in the copy that `--fix` writes. It
    has no fault, and the original is what it was."""
    before = contents(folder)
    copy = folder.with_name(f"{folder.name}-fixed")
    findings = doctor(folder, f"--fix {copy}")
    assert before == contents(folder)
    type_line(f"doctor --data.image_size 64 --run {copy}-run --data.dataset {copy}")
    rows = {}
    for name, labels in by_name(load(copy)).items():
        table = np.column_stack((labels.classes, labels.boxes))
        rows[name] = table.round(2).tolist()
    repairs = (copy / "repairs.txt").read_text()
    for severity, _, name, place in findings:
        if severity == "fault" and place:
            assert Path(name).stem in repairs
    return findings, rows


def test_yolo(tmp_path):
    as_yolo(tmp_path)  # a 60 x 40, b 37 x 100, c 64 x 64
    lines = [
        "0 .5 .5 .5 .5",
        "0 .5 .5",
        "0 1.5 .5 .5 .5",
        "0 .5 .5 0 .5",
        "0 .50 .50 .50 .50",
        "3 .5 .5 .1 .1",
        "1 .9 .5 .5 .5",  # 0.15 * 64 px past the right side
        "1 .5 .5 .998 1.0",  # up to the frame
        "0 .2 .2 .03 .1",  # 1.92 px wide
        "0 .1 .1 .1 .3 .3 .3",
    ]
    images = tmp_path / "images/train"
    for k, name in enumerate(("none.png", "clash.jpg", "clash.png")):
        save(images / name, picture(32, 48, 10 + k))
    save(images / "small.png", picture(6, 6))
    save(images / "twin.png", picture(100, 37, 1))  # b without its labels
    lay_out(
        tmp_path,
        {
            "labels/train/c.txt": "\n".join(lines),
            "labels/train/clash.txt": "1 .5 .5 .125 .125",
            "labels/train/gone.txt": "1 .5 .5 .1 .1",
            "labels/train/classes.txt": "cat\ndog",
            "images/train/broken.png": "no picture",
            "images/train/gone.avif": "",
            "images/test.txt": "./train/a.png\n./train/gone.png",
            "data.yaml": "train: images/train\nval: images/val\ntest: images/test.txt\n"
            "names: [cat, dog]\n",
        },
    )
    found, rows = healed(tmp_path)
    assert found == table(
        """
        fault malformed_label c.txt line 2
        fault malformed_label c.txt line 3
        fault zero_size_box c.txt line 4
        warning duplicate_box c.txt line 5
        fault unknown_class c.txt line 6
        warning box_past_frame c.txt line 7
        warning tiny_box c.txt line 9
        note missing_label_file none.png
        note missing_label_file twin.png
        fault different_labels twin.png
        warning orphan_labels gone.txt
        fault unusable_image broken.png
        fault unusable_image small.png
        fault unusable_image gone.png
        fault unusable_split data.yaml
        warning class_without_examples
        warning duplicate_across_splits a.png
        """
    )  # a.png, the test split, has a cat
    expected = [
        [0, 16, 16, 48, 48],
        [1, 41.6, 16, 64, 48],
        [1, 0.06, 0, 63.94, 64],
        [0, 11.84, 9.6, 13.76, 16],
        [0, 6.4, 6.4, 19.2, 19.2],
    ]
    np.testing.assert_allclose(rows["c.png"], expected, rtol=0, atol=0.011)
    assert rows["none.png"] == []
    assert rows["clash.jpg"] == rows["clash_2.png"] == [[1, 21, 14, 27, 18]]


def test_voc(tmp_path):
    as_voc(tmp_path)
    objects = [
        voc_object("cat", 1, 2, 11, 22),
        voc_object("cat", 5, 5, 5, 9),
        voc_object("cat", "nan", 5, 5, 9),
        voc_object("cow"),
        voc_object("dog", more="<difficult>1</difficult>"),
        voc_object("dog", 30, 2, 61, 22),
        voc_object("dog", 60, 2, 70, 22),
        voc_object("cat", 1, 2, 11, 22),
        voc_object("dog", 1, 2, 11, 22),
    ]
    size = "<size><width>{}</width><height>{}</height></size>"
    for k, name in enumerate(("broken.png", "bare.png")):
        save(tmp_path / "JPEGImages" / name, picture(32, 48, 10 + k))
    turned = Image.fromarray(picture(30, 50, 3))
    exif = turned.getexif()
    exif[0x0112] = 6
    turned.save(tmp_path / "JPEGImages/turned.jpg", exif=exif)
    lay_out(
        tmp_path,
        {
            "Annotations/a.xml": voc_xml(size.format(60, 40), *objects),
            "Annotations/b.xml": voc_xml(size.format(38, 100), voc_object("dog", 1, 1, 30, 30)),
            "Annotations/c.xml": voc_xml(voc_object("dog", 70, 70, 80, 80)),
            "Annotations/turned.xml": voc_xml(size.format(50, 30), voc_object("dog")),
            "Annotations/broken.xml": "<annotation><object>",
            "Annotations/gone.xml": voc_xml(voc_object("cat")),
            "ImageSets/Main/train.txt": "a\nb\nc\nbroken\nbare\nturned\nnowhere\n",
            "data.yaml": "train: ImageSets/Main/train.txt\nnames: [cat, dog]\n",
        },
    )
    found, rows = healed(tmp_path)
    assert found == table(
        """
        fault zero_size_box a.xml object 2 (cat)
        fault malformed_label a.xml object 3 (cat)
        fault unknown_class a.xml object 4 (cow)
        note difficult_object a.xml object 5 (dog)
        warning box_past_frame a.xml object 6 (dog)
        fault box_outside_frame a.xml object 7 (dog)
        warning duplicate_box a.xml object 8 (cat)
        fault box_outside_frame c.xml object 1 (dog)
        fault wrong_size b.png
        fault wrong_size turned.jpg
        fault malformed_label broken.xml
        note missing_label_file bare.png
        warning orphan_labels gone.xml
        fault unusable_image nowhere.jpg
        """
    )
    assert rows == {
        "a.png": [[0, 1, 2, 11, 22], [1, 30, 2, 60, 22], [1, 1, 2, 11, 22]],
        "b.png": [[1, 1, 1, 30, 30]],
        "bare.png": [],
        "turned.jpg": [[1, 1, 2, 11, 22]],
    }


def test_coco(tmp_path):
    content = coco_content()
    # of a.png, 60 x 40
    cat = {"image_id": 30, "category_id": 17, "bbox": [10, 20, 30, 10]}
    triangle = [1.5, 2, 30, 2, 30, 20]
    annotations = [
        cat | {"area": 99.5, "segmentation": [triangle]},
        cat | {"bbox": [5, 5, 0, 9]},
        cat | {"bbox": [5, 5, 9]},
        cat | {"category_id": 5},
        cat | {"image_id": 99},
        cat | {"bbox": [50, 20, 11, 10], "area": 110},
        cat | {"bbox": [0, 40, 10, 10]},
        cat,
        cat | {"iscrowd": 1},
    ]
    content["annotations"] = [a | {"id": 101 + k} for k, a in enumerate(annotations)]
    content["categories"].append({"id": 5, "name": "cow"})
    content["images"][0] |= {"width": 65}  # c.png, 64 x 64
    content["images"].append({"id": 40, "file_name": "gone.png"})
    as_coco(tmp_path, content)
    found, rows = healed(tmp_path)
    assert found == table(
        """
        fault zero_size_box train.json annotation 102 (cat)
        fault malformed_label train.json annotation 103 (cat)
        fault unknown_class train.json annotation 104 (cow)
        warning orphan_labels train.json annotation 105
        warning box_past_frame train.json annotation 106 (cat)
        fault box_outside_frame train.json annotation 107 (cat)
        warning duplicate_box train.json annotation 108 (cat)
        fault wrong_size c.png
        fault unusable_image gone.png
        warning class_without_examples
        """
    )
    assert rows["a.png"] == [[0, 10, 20, 40, 30], [0, 50, 20, 60, 30], [0, 10, 20, 40, 30]]
    labels = load(tmp_path.with_name(f"{tmp_path.name}-fixed")).labels[0]
    assert labels.crowd.tolist() == [False, False, True]
    assert labels.area.tolist() == [99.5, 100, 300]
    polygons = [[part.ravel().tolist() for part in parts] for parts in labels.polygons]
    assert polygons == [[triangle], [], []]


@pytest.mark.parametrize(
    ("labels", "kind"),
    [
        ({"a": "", "b": "", "c": ""}, ("fault", "unusable_split")),
        ({"a": "1 .5 .5 .5 .5"}, ("warning", "mostly_unlabelled")),
    ],
)
def test_labels_in_the_wrong_place(tmp_path, labels, kind):
    as_yolo(tmp_path)
    for path in (tmp_path / "labels/train").iterdir():
        path.unlink()
    lay_out(tmp_path, {f"labels/train/{name}.txt": text for name, text in labels.items()})
    lay_out(tmp_path, {"data.yaml": "train: images/train\nval: nowhere\nnames: [cat, dog]\n"})
    assert kind + ("", "") in doctor(tmp_path)


PAIR = [(0, 10, 10, 30, 30), (1, 40, 40, 60, 60)]


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (PAIR[::-1], True),
        ([(0, 10, 10, 30, 31), (1, 42, 40, 62, 60)], True),  # IoU 0.95 and 0.82
        ([(0, 10, 10, 30, 30), (1, 43, 40, 63, 60)], False),  # IoU 0.74
        ([(1, 10, 10, 30, 30), (0, 40, 40, 60, 60)], False),
        (PAIR + PAIR[:1], False),
    ],
)
def test_same_objects(other, same):
    ours, theirs = map(np.array, (PAIR, other))
    a = labels_of(ours[:, 1:], ours[:, 0], 99, 99)
    b = labels_of(theirs[:, 1:], theirs[:, 0], 99, 99)
    assert same_objects(a, b) == same_objects(b, a) == same
