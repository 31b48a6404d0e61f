"""COCO's figures against pycocotools."""

import contextlib
import io
import math

import numpy as np
import pytest
from made_detections import random_set
from made_labels import labels_of
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from boltbox.detector.evaluation.coco import COCO_NAMES
from boltbox.detector.evaluation.metrics import DetectionMetrics


def indexed(images, classes, annotations):
    for number, annotation in enumerate(annotations, 1):
        x1, y1, x2, y2 = map(float, annotation["bbox"])
        annotation |= {"id": number, "bbox": [x1, y1, x2 - x1, y2 - y1]}
        annotation.setdefault("area", (x2 - x1) * (y2 - y1))
    coco = COCO()
    coco.dataset = {
        "images": [{"id": i} for i in range(images)],
        "categories": [{"id": c, "name": str(c)} for c in range(classes)],
        "annotations": annotations,
    }
    coco.createIndex()
    return coco


def check_coco(detections, truths, num_classes):
    metrics = DetectionMetrics(num_classes)
    metrics.update(detections, truths, range(len(truths)))
    result = metrics.compute()
    ours = {name: result.summary[f"coco/{name}"] for name in COCO_NAMES}
    true = []
    found = []
    for i, (rows, t) in enumerate(zip(detections, truths, strict=True)):
        for box, kind, crowd, area in zip(t.boxes, t.classes, t.crowd, t.area, strict=True):
            entry = {"image_id": i, "bbox": box, "category_id": int(kind)}
            true.append(entry | {"iscrowd": int(crowd), "area": float(area)})
        for row in rows.tolist():
            entry = {"image_id": i, "bbox": row[:4], "category_id": int(row[5])}
            found.append(entry | {"iscrowd": 0, "score": row[4]})
    size = len(truths), num_classes
    with contextlib.redirect_stdout(io.StringIO()):
        evaluation = COCOeval(indexed(*size, true), indexed(*size, found), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    stats = np.where(evaluation.stats == -1, math.nan, evaluation.stats)
    assert [*ours.values()] == pytest.approx(stats, abs=1e-12, rel=0, nan_ok=True)
    precision = evaluation.eval["precision"][:, :, :, 0, 2].reshape(-1, num_classes).T
    of_class = np.ma.masked_equal(precision, -1).mean(1).filled(math.nan)
    np.testing.assert_allclose(result.coco_by_class, of_class, rtol=0, atol=1e-12)
    return ours


SETS = {
    "one class": {"classes": 1, "most_objects": 8},
    "many": {"classes": 2, "clutter": 200, "images": 3, "crowds": 0.1, "ties": True},
    "everything": {"crowds": 0.2, "ties": True, "empty": 0.3, "areas": True, "images": 8},
}


@pytest.mark.parametrize("kind", SETS)
def test_coco_figures_are_those_of_pycocotools(kind):
    rng = np.random.default_rng(list(SETS).index(kind))
    classes = SETS[kind].get("classes", 3)
    found = []
    for _ in range(15):
        # two classes have no objects
        figures = check_coco(*random_set(rng, **SETS[kind]), num_classes=classes + 2)
        found.append(figures["AP"])
    assert np.nanmedian(found) > 0.05, "sets that say something"


def test_coco_figures_with_more_than_100_detections():
    """Of an image and class only the best 100 count, so a true one among the rest does not,
    and none of the rest counts as wrong."""
    i = np.arange(101)
    spread = np.stack((20 * i, 0 * i, 20 * i + 10, 0 * i + 10, 1 - i / 200, 0 * i), 1)
    spread = spread.astype(np.float32)
    last = [labels_of(spread[-1:, :4], [0], 10, 3000)]
    assert check_coco([spread], last, 1)["AR100"] == 0
    assert check_coco([spread[1:]], last, 1)["AR100"] == 1
    least = np.array([[0, 0, 10, 10, 0.1, 0]], np.float32)
    truths = [labels_of([], [], 10, 3000), labels_of(least[:, :4], [0], 10, 3000)]
    assert check_coco([spread, least], truths, 1)["AP"] == pytest.approx(1 / 101)


def test_coco_figures_where_there_is_nothing():
    """Without any detection, too, the figures of sizes that do not occur do not exist."""
    (found, *_), (true, *_) = random_set(np.random.default_rng(0), images=1, most_objects=8)
    nothing = found[:0]
    no_labels = labels_of([], [], 600, 600)
    crowd = labels_of(true.boxes, true.classes, 600, 600, crowd=np.ones(len(true.boxes)))
    assert math.isnan(check_coco([nothing], [no_labels], 3)["AP"])
    assert math.isnan(check_coco([found], [crowd], 3)["AP"])
    assert check_coco([nothing, found], [true, no_labels], 3)["AP"] == 0
    for width in (10, 50, 200):
        figures = check_coco([nothing], [labels_of([[0, 0, width, width]], [0], 600, 600)], 1)
        of_sizes = (figures["AP_small"], figures["AP_medium"], figures["AP_large"])
        assert sum(map(math.isnan, of_sizes)) == 2
