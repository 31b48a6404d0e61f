"""Real data sets: what is read from them, and the faults they have."""

import numpy as np
import pytest
from made_datasets import counts, files_of, lay_out, load
from made_runs import column
from shared import shared

BCCD = "data/bccd/BCCD"


@pytest.mark.parametrize(
    ("name", "split", "expected", "faults"),
    [  # images, boxes, images without objects, images without a label file
        (BCCD, "train", (205, 2804, 0, 0), {"object 4 (RBC)"}),
        (BCCD, "val", (87, 1137, 0, 0), {"object 13 (RBC)"}),
        (BCCD, "test", (72, 945, 0, 0), set()),
        # two label files, of 12 lines, are there whose images are not
        ("data/coco128_val128", "train", (128, 929, 2, 2), set()),
        ("data/coco128_val128", "val", (128, 898, 0, 0), set()),
        # FAULTS.tsv counts them: boxes of no size, one empty and one missing label file
        ("data/real_faults", "train", (10, 216, 2, 1), {"line 13", "line 4", "line 15"}),
        ("data/real_faults", "val", (4, 122, 0, 0), {"line 17"}),
    ],
)
def test_counts(name, split, expected, faults):
    dataset = load(shared(name), split)
    assert counts(dataset) == expected
    assert set(column(dataset.faults, "where")) == faults


def test_publaynet_as_coco_equals_yolo(tmp_path):
    """Its json speaks of all twenty images; they lie in two folders."""
    root = f"path: {shared('data/publaynet20')}\n"
    folders = "[images/train, images/val]\n"
    names = "names: [text, title, list, table, figure]\n"
    lay_out(
        tmp_path,
        {
            "yolo.yaml": f"{root}train: {folders}{names}",
            "coco.yaml": f"{root}train: samples.coco.json\nimages: {folders}",
        },
    )
    yolo = load(tmp_path / "yolo.yaml")
    coco = load(tmp_path / "coco.yaml")
    assert coco.names == yolo.names
    assert counts(coco) == counts(yolo) == (20, 193, 0, 0)
    assert coco.faults == yolo.faults == []
    theirs = dict(zip(files_of(yolo), yolo.labels, strict=True))
    for name, labels in zip(files_of(coco), coco.labels, strict=True):
        assert labels.classes.tolist() == theirs[name].classes.tolist()
        # six decimals in the label files
        np.testing.assert_allclose(labels.boxes, theirs[name].boxes, rtol=0, atol=2e-3)
        for parts in labels.polygons:
            assert len(parts) > 0
