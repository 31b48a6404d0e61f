"""Images with xml files as Kaggle has them: no lists, no names, no split."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from made_datasets import NAMES, SCENES, lay_out, picture, save, voc_object, voc_xml

import cli
from boltbox.detector.data.datamodule import DetectionData
from boltbox.detector.data.dataset_file import DatasetFile
from boltbox.detector.system.errors import InputError

COUNT = 20


def scenes(root: Path, image: str, xml: str, count: int = COUNT) -> None:
    """Images with the objects of SCENES; `image` and `xml` are paths with a {} for the name."""
    objects = [o for _, _, found in SCENES.values() for o in found]
    for k in range(count):
        save(root / image.format(f"im{k:02d}"), picture(100, 64, k))
        c, *box = objects[k % len(objects)]
        lay_out(root, {xml.format(f"im{k:02d}"): voc_xml(voc_object(NAMES[c], *box))})


def parts(file: DatasetFile) -> dict[str, list[str]]:
    return {
        split: [Path(f).stem for f in file.open(split, strict=False).files] for split in file.splits
    }


@pytest.mark.parametrize(
    ("image", "xml"),
    [
        ("images/{}.png", "annotations/{}.xml"),
        ("images/{}.png", "Annotations/{}.xml"),
        ("JPEGImages/{}.png", "Annotations/{}.xml"),
        ("images/deep/{}.png", "annotations/{}.xml"),
        ("images/deep/{}.png", "annotations/deep/{}.xml"),
        ("{}.png", "{}.xml"),
        ("{}.png", "annotations/{}.xml"),
        ("images/{}.png", "images/{}.xml"),
    ],
)
def test_folder_with_a_split(tmp_path: Path, image: str, xml: str) -> None:
    scenes(tmp_path, image, xml)
    file = DatasetFile.read(str(tmp_path), split=0.2)
    assert (file.format, file.names) == ("voc", ["cat", "dog"])
    train, val = parts(file).values()
    assert (len(train), len(val)) == (16, 4)
    assert sorted(train + val) == [f"im{k:02d}" for k in range(COUNT)]
    assert all(
        len(labels.boxes) == 1 for split in file.splits for labels in file.open(split).labels
    )


def test_the_split_is_the_same_elsewhere_and_later(tmp_path: Path) -> None:
    scenes(tmp_path / "a", "images/{}.png", "annotations/{}.xml")
    first = parts(DatasetFile.read(str(tmp_path / "a"), split=0.25))
    shutil.copytree(tmp_path / "a", tmp_path / "b/c")
    assert parts(DatasetFile.read(str(tmp_path / "b/c"), split=0.25)) == first
    scenes(tmp_path / "a", "images/more_{}.png", "annotations/more_{}.xml", 1)
    grown = parts(DatasetFile.read(str(tmp_path / "a"), split=0.25))
    assert len(set(first["val"]) ^ set(grown["val"])) <= 1
    assert first["val"] != sorted(first["train"] + first["val"])[:5], (
        "not the first ones of the alphabet"
    )


@pytest.mark.parametrize(("key", "option"), [("split: 0.2", None), ("", 0.2)])
def test_data_yaml_without_names_format_and_val(
    tmp_path: Path, key: str, option: float | None, capsys
) -> None:
    scenes(tmp_path, "images/{}.png", "annotations/{}.xml")
    lay_out(tmp_path, {"data.yaml": f"train: images\n{key}\n"})
    data = DetectionData(str(tmp_path), image_size=64, workers=0, split=option)
    data.prepare_data()
    data.setup("fit")
    assert [len(data.datasets[split]) for split in ("train", "val")] == [16, 4]
    told = capsys.readouterr().out
    assert "names: 2 found in the labels: cat, dog" in told


def test_yolo_and_coco_are_divided_too(tmp_path: Path) -> None:
    from made_datasets import as_coco, as_yolo

    for k, write in enumerate((as_yolo, as_coco)):
        write(tmp_path / str(k))
        found = parts(DatasetFile.read(str(tmp_path / str(k)), split=0.3))
        assert sorted(found["train"] + found["val"]) == ["a", "b", "c"]
        assert len(found["val"]) == 1


def train_folder(root: Path) -> None:
    scenes(root, "train/{}.png", "train/{}.xml")
    scenes(root, "valid/v{}.png", "valid/v{}.xml", 3)


def test_folders_that_are_splits(tmp_path: Path) -> None:
    train_folder(tmp_path)
    found = parts(DatasetFile.read(str(tmp_path)))
    assert (len(found["train"]), found["val"]) == (COUNT, ["vim00", "vim01", "vim02"])


def kaggle(root: Path) -> None:
    scenes(root, "images/{}.png", "annotations/{}.xml", 5)


def far_xml(root: Path) -> None:
    scenes(root, "images/{}.png", "xmls/{}.xml", 5)
    lay_out(root, {"data.yaml": "train: images\nval: images\nnames: [cat, dog]\n"})


def called_yolo(root: Path) -> None:
    kaggle(root)
    lay_out(root, {"data.yaml": "train: images\nval: images\nnames: [cat, dog]\nformat: yolo\n"})


@pytest.mark.parametrize(
    ("lay", "options", "words"),
    [
        (kaggle, ["--data.split", "2"], ["split is 2", "like 0.2"]),
        (
            train_folder,
            ["--data.split", "0.2"],
            ["has train, val", "leave split out"],
        ),
        (
            called_yolo,
            [],
            ["no usable box in train", "5 without a label file of format yolo"],
        ),
        (far_xml, [], ["5 without a label file of format yolo"]),
    ],
)
def test_what_is_said(
    tmp_path: Path,
    lay: Callable[[Path], None],
    options: list[str],
    words: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    lay(tmp_path)
    with pytest.raises(SystemExit) as leaving:
        cli.main(
            [
                "fit",
                "--data.dataset",
                str(tmp_path),
                "--data.image_size",
                "64",
                "--run",
                str(tmp_path / "run"),
                *options,
            ]
        )
    assert leaving.value.code == 2
    told = capsys.readouterr().err
    assert [word for word in words if word not in told] == []


def test_coco_folder_with_lists_stays_yolo(tmp_path: Path) -> None:
    """COCO's own folder `annotations` holds json files."""
    save(tmp_path / "images/train/a.png", picture(40, 60))
    lay_out(tmp_path, {"labels/train/a.txt": "0 .5 .5 .5 .5", "annotations/instances.json": "{}"})
    lay_out(
        tmp_path,
        {"train.txt": "./images/train/a.png\n", "data.yaml": "train: train.txt\nnames: [cat]\n"},
    )
    file = DatasetFile.read(str(tmp_path))
    assert file.format == "yolo"
    assert len(file.open("train").labels.boxes) == 1


def test_doctor_and_repaired_copy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kaggle(tmp_path / "data")
    line = ["doctor", "--data.image_size", "64", "--run", str(tmp_path / "run")]
    options = ["--data.dataset", str(tmp_path / "data"), "--data.split", "0.4"]
    cli.main([*line, *options, "--fix", str(tmp_path / "copy")])
    assert "0 faults" in capsys.readouterr().out
    file = DatasetFile.read(str(tmp_path / "data"), 0.4)
    assert parts(DatasetFile.read(str(tmp_path / "copy"))) == parts(file)


def test_wrong_split_is_an_error(tmp_path: Path) -> None:
    kaggle(tmp_path)
    for share in (0.0, 1.0, -0.1):
        with pytest.raises(InputError, match="split is"):
            DatasetFile.read(str(tmp_path), share)
