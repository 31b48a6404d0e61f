"""The figures of an epoch, and what is printed of them."""

import json
import math
import tracemalloc

import numpy as np
import pytest
import torch
from made_detections import random_set
from made_labels import labels_of
from made_runs import column

from boltbox.detector.evaluation.class_metrics import (
    class_metrics,
)
from boltbox.detector.evaluation.confusion import confusion_matrix
from boltbox.detector.evaluation.metrics import DetectionMetrics
from boltbox.detector.report.charts import draw_confusion
from boltbox.detector.report.table import class_table


def collected(detections, truths, order=None, num_classes=3):
    metrics = DetectionMetrics(num_classes)
    for i in range(len(truths)) if order is None else order:
        metrics.update([detections[i]], [truths[i]], [int(i)])
    return metrics.compute()


def confusion(result):
    return confusion_matrix(result.record.confused_pairs(3), 3, range(3))


def figures(result):
    return list(map(result.summary.get, ("P", "R", "mAP50", "mAP50-95", "fitness")))


def exact(result):
    """Everything in a result, so that == is equality to the last bit (NaN equal to NaN)."""
    f = result.by_class
    arrays = [
        np.array([*result.summary.values()]),
        f.ap,
        f.precision_curve,
        f.recall_curve,
        f.objects,
    ]
    return (
        [*result.summary],
        *map(np.ndarray.tobytes, (*arrays, result.coco_by_class, confusion(result))),
        len(result.indices),
    )


def test_order_and_repetition_do_not_matter():
    """Nor does what was there before a reset."""
    rng = np.random.default_rng(3)
    detections, truths = random_set(rng, images=12, ties=True)
    expected = collected(detections, truths)
    assert expected.summary["mAP50-95"] > 0
    for _ in range(3):
        order = [*rng.permutation(12), 3, 3, 1]
        assert exact(collected(detections, truths, order)) == exact(expected)
    assert collected(detections, truths, order).indices == [*range(12)]
    metrics = DetectionMetrics(3)
    metrics.update(detections[:1], truths[:1], [12])
    metrics.reset()
    for first, loss in ((0, 1.0), (6, 2.0), (0, 1.0)):
        batch = slice(first, first + 6)
        images = range(first, first + 6)
        metrics.update(detections[batch], truths[batch], images, {"box": torch.tensor(loss)})
    assert metrics.seen == 12
    result = metrics.compute()
    assert exact(result) == exact(expected)
    assert result.losses == {"box": 1.5}


def test_crowd_regions_are_ignored_in_yolov5s_figures():
    detections, truths = random_set(np.random.default_rng(6), images=6, crowds=0.4)
    assert sum(map(np.sum, column(truths, "crowd"))) > 3
    with_crowds = collected(detections, truths)
    without = collected(detections, [t.keep(~t.crowd) for t in truths])
    assert figures(with_crowds) == figures(without)
    assert np.array_equal(confusion(with_crowds), confusion(without))
    assert with_crowds.by_class.objects.sum() == sum((~t.crowd).sum() for t in truths)
    assert with_crowds.summary["coco/AP"] > without.summary["coco/AP"], (
        "COCO forgives detections in crowds"
    )


def test_labels_count_as_far_as_they_are_in_the_image():
    """Detections are clipped to the image (specification 5.3), so YOLOv5's figures clip the objects
    as well."""
    outside = labels_of([[-50, 0, 50, 100]], [0], 100, 100)
    result = collected([np.array([[0, 0, 50, 100, 0.9, 0]], np.float32)], [outside])
    assert result.by_class.ap.min() > 0.99
    assert confusion(result)[0, 0] == confusion(result).sum() == 1


def test_nothing_found_is_zero():
    """No detection; no right one, though precision is 1 above the best score by definition; no
    image; no label."""
    detections, truths = random_set(np.random.default_rng(7), images=3)
    row = np.array([[0, 0, 10, 10, 0.9, 1]], np.float32)
    no_detections = collected([d[:0] for d in detections], truths)
    no_hit = collected([row], [labels_of([[50, 50, 60, 60]], [1], 100, 100)])
    for result in (no_detections, no_hit):
        assert {*figures(result), result.summary["coco/AP"]} == {0}
    assert confusion(no_detections)[3].sum() == sum(map(len, column(truths, "boxes")))
    for result in (collected([], []), collected([row], [labels_of([], [], 99, 99)])):
        assert {*figures(result)} == {0}
        assert math.isnan(result.summary["coco/AP"])
        assert result.class_maps().tolist() == [0, 0, 0]
        class_table(result.to_json(NAMES))


def test_class_maps():
    """A class without objects gets the mean of the others, a class with objects and no detections
    0."""
    true = labels_of([[0, 0, 10, 10], [50, 0, 60, 10]], [1, 3], 100, 100)
    result = collected([np.array([[0, 0, 10, 10, 0.9, 1]], np.float32)], [true], num_classes=4)
    assert result.class_maps() == pytest.approx([0.4975, 0.995, 0.4975, 0])


def test_thresholds_are_those_of_the_best_f1():
    """Against a count at every confidence. Without a false positive all up to the least sure true
    positive are as good: the middle one; a class that is never right has 0.25."""
    scores = np.array([0.9, 0.8, 0.6, 0.5, 0.3, 0.7, 0.4])
    right = np.array([True, True, False, True, False, True, False])
    classes = np.array([0, 0, 0, 0, 0, 2, 3])
    found = class_metrics(
        np.tile(right[:, None], 10), scores, classes, np.array([0, 0, 0, 0, 2, 3])
    ).thresholds(5)

    def f1(conf):
        kept = (classes == 0) & (scores > conf)
        return 2 * right[kept].sum() / (kept.sum() + 4)

    assert f1(found[0]) == max(map(f1, np.linspace(0, 1, 1000))) == pytest.approx(0.75)
    assert found[1:] == pytest.approx([0.25, 0.35, 0.25, 0.25], abs=1e-3)


NAMES = ["cat", "hot air balloon", "dog"]


def a_result(classes):
    """Small objects of these classes, each found but for the last."""
    true = labels_of([[20 * c, 0, 20 * c + 10, 10] for c in classes], classes, 100, 100)
    found = np.column_stack([true.boxes, np.linspace(0.9, 0.5, len(classes)), true.classes])[
        : max(len(classes) - 1, 1)
    ]
    return collected([found.astype(np.float32)], [true])


def test_class_table():
    head, everything, *rows = class_table(a_result([0, 2]).to_json(NAMES)).splitlines()
    assert head.split() == ["class", "objects", "P", "R", "mAP50", "mAP50-95", "coco/AP"]
    assert everything.split()[:2] == ["all", "2"]
    assert everything.split()[4:] == ["0.497", "0.497", "0.500"]  # 0.995 / 2, and COCO's 1 / 2
    assert rows[0].split()[::6] == ["cat", "1.000"]
    assert rows[1].split()[::6] == ["dog", "0.000"]
    assert len(class_table(a_result([1]).to_json(NAMES)).splitlines()) == 2, "one class, one line"


def test_result_json():
    result = a_result([0, 2])
    content = result.to_json(NAMES)
    assert json.loads(json.dumps(content, allow_nan=False)) == content
    assert content["images"] == 1
    assert content["mAP50-95"] == result.summary["mAP50-95"] > 0
    assert content["coco/AP_large"] is None, "there are no large objects"
    assert content["coco/AP_small"] == pytest.approx(0.5)
    assert column(content["per_class"], "name") == ["cat", "dog"]
    assert column(content["per_class"], "coco/AP") == pytest.approx([1, 0])
    assert content["best_confidence"] == result.by_class.best_confidence


MANY = [f"class {k}" for k in range(10_000)]


def test_the_metrics_take_memory_by_what_was_seen(tmp_path):
    """A matrix of all classes would take 800 MB, and COCO's table of precisions 970 MB."""
    metrics = DetectionMetrics(len(MANY))
    boxes = np.array([[0, 0, 9, 9], [20, 20, 40, 40]], np.float32)
    for i in range(4):
        found = np.column_stack((boxes, [0.9, 0.8], [9999 - i, 5000])).astype(np.float32)
        metrics.update([found], [labels_of(boxes, [9999, 5000], 64, 64)], [i])
    tracemalloc.start()
    result = metrics.compute()
    confused = result.record.confused_pairs(len(MANY))
    draw_confusion(confused, MANY, tmp_path / "matrix.png")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100e6
    assert result.summary["coco/AP50"] > 0.5
    assert np.isnan(result.coco_by_class).sum() == 9998
    assert len(confused) == 8
