"""Real data sets: what is read from them, and the faults they have."""

from pathlib import Path

import numpy as np
import pytest
import yaml
from made_datasets import counts, files_of, load
from shared import shared


@pytest.mark.parametrize(
    ("split", "images", "boxes", "faults"),
    [  # Platelets, RBC, WBC
        ("train", 205, [209, 2381, 214], [("BloodImage_00343.xml", "object 4 (RBC)")]),
        ("val", 87, [83, 967, 87], [("BloodImage_00338.xml", "object 13 (RBC)")]),
        ("test", 72, [69, 805, 71], []),
    ],
)
def test_bccd(split: str, images: int, boxes: list[int], faults: list[tuple[str, str]]) -> None:
    dataset = load(shared("data/bccd") / "BCCD", split)
    assert dataset.names == ["Platelets", "RBC", "WBC"]
    assert len(dataset) == images
    assert dataset.class_counts().tolist() == boxes
    assert (
        len(dataset.labels.boxes) == sum(boxes) == {"train": 2804, "val": 1137, "test": 945}[split]
    )
    assert [(Path(f.file).name, f.where) for f in dataset.faults] == faults


def test_coco128() -> None:
    root = shared("data/coco128_val128")
    val = load(root, "val")
    assert (counts(val), val.faults) == ((128, 898, 0, 0), [])
    train = load(root, "train")
    # 941 label lines less the 12 of the two files, 000000000656 and 000000000659, whose images are
    # not there
    assert (counts(train), train.faults) == ((128, 929, 2, 2), [])


def test_publaynet_as_coco_equals_yolo(tmp_path: Path) -> None:
    """Its json speaks of all twenty images; they lie in two folders."""
    root = shared("data/publaynet20")
    content = {
        "path": str(root),
        "train": ["images/train", "images/val"],
        "names": ["text", "title", "list", "table", "figure"],
    }
    (tmp_path / "yolo.yaml").write_text(yaml.safe_dump(content))
    as_coco_too = {
        "path": str(root),
        "train": "samples.coco.json",
        "images": ["images/train", "images/val"],
    }
    (tmp_path / "coco.yaml").write_text(yaml.safe_dump(as_coco_too))
    yolo = load(tmp_path / "yolo.yaml")
    coco = load(tmp_path / "coco.yaml")
    assert coco.names == yolo.names == content["names"]
    assert counts(coco) == counts(yolo) == (20, 193, 0, 0)
    assert coco.faults == yolo.faults == []
    assert coco.class_counts().tolist() == [137, 34, 7, 6, 9]
    theirs = dict(zip(files_of(yolo), yolo.labels, strict=True))
    for name, labels in zip(files_of(coco), coco.labels, strict=True):
        assert labels.classes.tolist() == theirs[name].classes.tolist()
        # six decimals in the label files
        np.testing.assert_allclose(labels.boxes, theirs[name].boxes, rtol=0, atol=2e-3)
        assert all(len(parts) > 0 for parts in labels.polygons)


def test_real_faults() -> None:
    """FAULTS.tsv counts them: boxes of no size 3 and 1, one empty and one missing label file,
    labels without their image."""
    root = shared("data/real_faults")
    train = load(root)
    val = load(root, "val")
    images, _, background, unlabelled = counts(train)
    assert (images, background, unlabelled, len(train.faults)) == (10, 2, 1, 3)
    images, _, background, unlabelled = counts(val)
    assert (images, background, unlabelled, len(val.faults)) == (4, 0, 0, 1)
    assert {f.problem for f in train.faults + val.faults} == {"zero width or height"}
