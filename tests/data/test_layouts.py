"""Data sets as people have them: each tool's layout loads as it is, with the boxes that were put in."""

import json
import os
from pathlib import Path

import label_layouts as layouts
import numpy as np
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Image, List, Value
from made_datasets import lay_out, load, picture, save
from made_runs import column, read, type_line

from boltbox import save_hugging_face
from boltbox.detector.data.dataset_file import DatasetFile
from boltbox.detector.data.file_list import FILE, FileList
from boltbox.detector.data.layouts import labels_beside
from boltbox.detector.system.errors import InputError

LABEL = ClassLabel(names=layouts.NAMES)


def table(folder, names, features, one_by_one=False):
    """Pictures of a folder as a Dataset. one_by_one: `objects` is a list of objects, not a map of
    lists."""
    columns = []
    for name in names:
        found = layouts.objects(name)
        pairs = zip(found["bbox"], found["category"], strict=True)
        columns.append([{"bbox": b, "category": c} for b, c in pairs] if one_by_one else found)
    images = [str(folder / f"{name}.png") for name in names]
    return Dataset.from_dict(
        {"image": images, "objects": columns}, Features(image=Image(), objects=features)
    )


def boxes_of(file, split):
    """Class and xyxy pixels of the objects of each picture."""
    dataset = file.open(split)
    found = {}
    for i, name in enumerate(dataset.files):
        boxes, classes, _ = dataset.labels.counted(i)
        rows = np.column_stack((classes, boxes)).tolist()
        found[Path(name).stem] = sorted(rows)
    return found


def check(file, two_splits, names):
    file.prepare()
    assert file.names == names
    names_of = {"train": list(layouts.PICTURES)}
    if two_splits:
        names_of = {"train": layouts.TRAIN, "val": layouts.VAL}
    for split, pictures in names_of.items():
        found = boxes_of(file, split)
        assert sorted(found) == pictures
        problems = column(file.open(split).faults, "problem")
        assert set(problems) <= {"marked difficult"}
        for name, rows in found.items():
            expected = sorted(map(list, layouts.PICTURES[name][2]))
            np.testing.assert_allclose(np.array(rows), np.array(expected), atol=1e-3, err_msg=name)


@pytest.mark.parametrize("name", layouts.LAYOUTS)
def test_it_loads(name, here):
    layout = layouts.LAYOUTS[name]
    source = layout.write(here / "pets")
    two_splits = len(layout.splits) == 2 or name in ("voc", "voc_trainval")
    check(DatasetFile.read(str(source)), two_splits, layout.names)


def test_most_images_have_no_label_file(tmp_path):
    """Where a folder lists its files in alphabetical order, those come first."""
    names = [f"images/val/{k}.png" for k in range(900)]
    lay_out(tmp_path, dict.fromkeys([*names, "images/val/z.png", "labels/val/z.txt"], ""))
    files = FileList()
    files._folders[str(tmp_path / "images/val")] = dict.fromkeys(
        [*map(os.path.basename, names), "z.png"], FILE
    )
    assert labels_beside(tmp_path / "images/val", tmp_path, files) == "yolo"


def test_hugging_face(tmp_path):
    """A DatasetDict, whose rows are files by their number."""
    given = layouts.LAYOUTS["labelimg"].write(tmp_path / "given")
    numbers = Value("float32")
    of_lists = {"bbox": List(List(numbers)), "category": List(LABEL)}
    of_maps = List({"bbox": List(numbers, length=4), "category": LABEL})
    train = table(given, layouts.TRAIN, of_lists).with_format("numpy")
    val = table(given, layouts.VAL, of_maps, one_by_one=True)
    file = save_hugging_face(DatasetDict(train=train, validation=val), tmp_path / "saved")
    assert (file.parent / "val/000001.png").read_bytes() == (given / "p5.png").read_bytes()
    data = DatasetFile.read(str(file))
    assert data.names == layouts.NAMES
    for split, names in (("train", layouts.TRAIN), ("val", layouts.VAL)):
        expected = [sorted(map(list, layouts.PICTURES[name][2])) for name in names]
        assert list(boxes_of(data, split).values()) == expected


@pytest.mark.parametrize("layout", layouts.CONVERTED.values(), ids=layouts.CONVERTED)
def test_it_converts(layout, here):
    source = layout.write(here / "pets")
    with pytest.raises(InputError, match=rf"labels of CVAT .* convert {source}"):
        DatasetFile.read(str(source))
    type_line(f"convert {source}")
    file = DatasetFile.read("pets_coco")
    check(file, False, layouts.NAMES)


def test_folders_become_splits(here, capsys):
    """Of the first version of VIA, which has maps of regions; polygons, and classes that are
    numbers; of CVAT in a file; what has no box."""
    for split in ("train", "val"):
        layouts.CONVERTED["via"].write(here / "pets" / split)
        file = here / "pets" / split / "via_region_data.json"
        content = read(file)
        for entry in content.values():
            for region in entry["regions"]:
                shape = region["shape_attributes"]
                x, y, w, h = (shape[key] for key in ("x", "y", "width", "height"))
                xs = [x, x + w / 2, x + w, x]
                ys = [y, y + h, y, y + h / 4]
                region["shape_attributes"] = {
                    "name": "polygon",
                    "all_points_x": xs,
                    "all_points_y": ys,
                }
                label = layouts.NAMES.index(region["region_attributes"]["label"])
                region["region_attributes"]["label"] = label
            entry["regions"] = {str(k): region for k, region in enumerate(entry["regions"])}
        for path in (file, file.with_name("via_project.json")):  # the same
            path.write_text(json.dumps({"_via_img_metadata": content}))
    layouts.CONVERTED["cvat"].write(here / "pets/test")
    file = here / "pets/test/annotations.xml"
    text = file.read_text().replace("</image>", '<box label="cat" xtl="1" ytl="1" xbr="9" ybr="9" rotation="30"/>'
        '<polygon label="bird" points="1,2;9.5,4;3,20"/><tag label="indoor"/></image>', 1)  # fmt: skip
    file.write_text(text.replace('name="p1.png"', 'name="gone.png"'))
    type_line("convert pets --out out")
    assert "left out:  1 objects without a box or a class, 1 images" in capsys.readouterr().out
    file = DatasetFile.read("out/data.yaml")
    assert file.names == ["0", "1", "bird", *layouts.NAMES]
    expected = {name: sorted(map(list, rows)) for name, (*_, rows) in layouts.PICTURES.items()}
    assert boxes_of(file, "train") == boxes_of(file, "val") == expected
    found = boxes_of(file, "test")
    assert found["p0"] == [[2, 1, 2, 9.5, 20], [3, *expected["p0"][0][1:]]]
    assert len(found) == 5


def test_subsets_of_cvat(here):
    """Their images may share a name; classes without a box keep their places."""
    names = ["zebra", "cat", "bird"]
    labels = "".join(f"<label><name>{name}</name></label>" for name in names)
    part = "<label><name>1</name><parent>zebra</parent></label>"  # of a skeleton
    text = f"<meta><task><labels>{labels}{part}</labels></task></meta>"
    for k in ("Train", "Validation"):
        save(here / f"pets/images/{k}/a.png", picture(40, 60))
        text += f'<image subset="{k}" name="a.png" width="60" height="40">'
        text += '<box label="cat" xtl="1" ytl="1" xbr="9" ybr="9"/></image>'
    lay_out(here, {"pets/annotations.xml": f"<annotations>{text}</annotations>"})
    type_line("convert pets")
    assert DatasetFile.read("pets_coco").names == names
    for split in ("train", "val"):
        assert len(load("pets_coco", split)) == 1


def test_hugging_face_corners_and_errors(tmp_path):
    given = layouts.LAYOUTS["labelimg"].write(tmp_path / "given")
    good = table(given, ["p0"], {"bbox": List(List(Value("float32"))), "category": List(LABEL)})
    file = save_hugging_face(good, tmp_path / "corners", bbox_format="xyxy")
    row = read(file.parent / "train/metadata.jsonl")
    assert row["objects"] == {"bbox": [[4, 8, 32 - 4, 32 - 8]], "category": [0]}
    odd = table(given, ["p2"], {"category": List(LABEL)})
    errors = [
        (good, file.parent, "xywh", r"data\.yaml"),
        (good, "a", "coco", "bbox_format is 'coco'"),
        (DatasetDict(unlabelled=good), "a", "xywh", "unlabelled"),
        (good.remove_columns("objects"), "a", "xywh", "train"),
        (odd, "a", "xywh", "train"),
    ]
    for rows, folder, bbox_format, told in errors:
        with pytest.raises(InputError, match=told):
            save_hugging_face(rows, tmp_path / folder, bbox_format)
    (given / "p0.png").unlink()
    with pytest.raises(InputError, match="train, row 0"):
        save_hugging_face(good, tmp_path / "b")
