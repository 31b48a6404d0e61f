"""Average precision against a slow sum, the figures of an epoch, and what is printed of them."""

import itertools
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_detections import random_set
from made_labels import labels_of

from boltbox.detector.data.sample import Labels
from boltbox.detector.evaluation.class_metrics import (
    RECALLS,
    ClassMetrics,
    class_metrics,
    precision_at_recall,
)
from boltbox.detector.evaluation.confusion import confusion_matrix
from boltbox.detector.evaluation.metrics import DetectionMetrics, Result
from boltbox.detector.report.table import class_table


def average_precision(recall: np.ndarray, precision: np.ndarray) -> float:
    return float(np.trapezoid(precision_at_recall(recall, precision), RECALLS))


def slow_average_precision(recall: list[float], precision: list[float]) -> float:
    """Area under the envelope, read at 101 recalls by hand."""
    r = [0.0, *recall, 1.0]
    p = [1.0, *precision, 0.0]
    envelope = [max(p[i:]) for i in range(len(p))]
    values = []
    for g in np.linspace(0, 1, 101):
        j = max(i for i in range(len(r)) if r[i] <= g)
        share = (g - r[j]) / (r[j + 1] - r[j]) if j + 1 < len(r) else 0.0
        values.append(envelope[j] + share * (envelope[min(j + 1, len(r) - 1)] - envelope[j]))
    return sum((a + b) / 2 * 0.01 for a, b in itertools.pairwise(values))


@settings(max_examples=200)
@given(st.lists(st.booleans(), min_size=1, max_size=30), st.integers(0, 20))
def test_average_precision_is_the_area(hits: list[bool], missed: int) -> None:
    n = sum(hits) + missed
    if not n:
        return
    found = np.cumsum(hits)
    recall = found / (n + 1e-16)
    precision = found / np.arange(1, len(hits) + 1)
    assert average_precision(recall, precision) == pytest.approx(
        slow_average_precision([*recall], [*precision]), abs=1e-12
    )


@pytest.mark.parametrize(
    ("recall", "precision", "area"),
    [
        ([1.0], [1.0], 0.995),  # 99 hundredths of 1, and a last one that falls from 1 to 0
        ([0.5], [1.0], 0.75),  # 1 up to 0.5, then straight down to 0 at 1
        ([0.0], [0.0], 0.0),  # nothing but false positives
        # 0..0.5: (1 + 0.5) / 2 * 0.5; 0.5..0.99: 0.5 * 0.49; the last: 0.25 * 0.01
        ([0.5, 1.0], [0.5, 0.5], 0.6225),
    ],
)
def test_average_precision_by_hand(
    recall: list[float], precision: list[float], area: float
) -> None:
    assert average_precision(np.array(recall), np.array(precision)) == pytest.approx(
        area, abs=1e-12
    )


def collected(
    detections: list[np.ndarray], truths: list[Labels], order: Any = None, num_classes: int = 3
) -> Result:
    metrics = DetectionMetrics(num_classes)
    for i in range(len(truths)) if order is None else order:
        metrics.update([detections[i]], [truths[i]], [int(i)])
    return metrics.compute()


def confusion(result: Result) -> np.ndarray:
    return confusion_matrix(result.record.confused_pairs(3), 3, range(3))


def exact(result: Result) -> tuple:
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
        *(a.tobytes() for a in (*arrays, result.coco_by_class, confusion(result))),
        len(result.indices),
    )


def test_order_does_not_matter() -> None:
    rng = np.random.default_rng(3)
    detections, truths = random_set(rng, images=12, ties=True)
    wanted = collected(detections, truths)
    assert wanted.summary["mAP50-95"] > 0
    for _ in range(5):
        assert exact(collected(detections, truths, rng.permutation(12))) == exact(wanted)


def test_an_image_added_twice_counts_once() -> None:
    detections, truths = random_set(np.random.default_rng(4), images=4)
    twice = collected(detections, truths, [0, 1, 2, 3, 3, 1])
    assert exact(twice) == exact(collected(detections, truths))
    assert twice.indices == [0, 1, 2, 3]


def test_reset_forgets() -> None:
    detections, truths = random_set(np.random.default_rng(5), images=2)
    metrics = DetectionMetrics(3)
    metrics.update([detections[0]], [truths[0]], [0])
    metrics.reset()
    metrics.update([detections[1]], [truths[1]], [1])
    assert exact(metrics.compute()) == exact(collected(detections[1:], truths[1:]))


def test_crowd_regions_are_ignored_in_yolov5s_figures() -> None:
    detections, truths = random_set(np.random.default_rng(6), images=6, crowds=0.4)
    assert sum(t.crowd.sum() for t in truths) > 3
    with_crowds = collected(detections, truths)
    without = collected(detections, [t.keep(~t.crowd) for t in truths])
    for name in ("P", "R", "mAP50", "mAP50-95", "fitness"):
        assert with_crowds.summary[name] == without.summary[name]
    assert np.array_equal(confusion(with_crowds), confusion(without))
    assert with_crowds.by_class.objects.sum() == sum((~t.crowd).sum() for t in truths)
    assert with_crowds.summary["coco/AP"] > without.summary["coco/AP"], (
        "COCO forgives detections in crowds"
    )


def test_labels_count_as_far_as_they_are_in_the_image() -> None:
    """Detections are clipped to the image (specification 5.3), so YOLOv5's figures clip the objects
    as well."""
    outside = labels_of([[-50, 0, 50, 100]], [0], 100, 100)
    result = collected([np.array([[0, 0, 50, 100, 0.9, 0]], np.float32)], [outside], num_classes=1)
    assert result.by_class.ap.min() > 0.99
    assert confusion_matrix(result.record.confused_pairs(1), 1, [0]).tolist() == [[1, 0], [0, 0]]


def test_no_detections_is_zero() -> None:
    detections, truths = random_set(np.random.default_rng(7), images=3)
    result = collected([d[:0] for d in detections], truths)
    assert {
        result.summary[name]
        for name in ("P", "R", "mAP50", "mAP50-95", "fitness", "coco/AP", "coco/AR100")
    } == {0}
    assert confusion(result)[:3].sum() == 0
    assert confusion(result)[3].sum() == sum(len(t.boxes) for t in truths)


def test_no_hit_is_zero() -> None:
    """Precision is 1 above the best score by definition; it is not reported without a single
    hit."""
    miss = np.array([[0, 0, 10, 10, 0.9, 0]], np.float32)
    result = collected([miss], [labels_of([[50, 50, 60, 60]], [0], 100, 100)], num_classes=1)
    assert {result.summary[name] for name in ("P", "R", "mAP50", "mAP50-95", "fitness")} == {0}
    assert confusion_matrix(result.record.confused_pairs(1), 1, [0]).tolist() == [[0, 1], [1, 0]]


def test_no_images_and_no_labels() -> None:
    for result in (
        collected([], []),
        collected([np.array([[0, 0, 9, 9, 0.9, 1]], np.float32)], [labels_of([], [], 9, 9)]),
    ):
        assert {result.summary[name] for name in ("P", "R", "mAP50", "mAP50-95", "fitness")} == {0}
        assert math.isnan(result.summary["coco/AP"])
        assert result.class_maps().tolist() == [0, 0, 0]
        class_table(result.to_json(["a", "b", "c"]))


def test_class_maps() -> None:
    """A class without objects gets the mean of the others, a class with objects and no detections
    0."""
    true = labels_of([[0, 0, 10, 10], [50, 0, 60, 10]], [1, 3], 100, 100)
    result = collected([np.array([[0, 0, 10, 10, 0.9, 1]], np.float32)], [true], num_classes=4)
    assert result.class_maps() == pytest.approx([0.4975, 0.995, 0.4975, 0])


def test_thresholds_are_those_of_the_best_f1() -> None:
    """Against a count at every confidence. Without a false positive all up to the least sure true
    positive are as good: the middle one; a class that is never right has 0.25."""
    scores = np.array([0.9, 0.8, 0.6, 0.5, 0.3, 0.7, 0.4])
    right = np.array([True, True, False, True, False, True, False])
    classes = np.array([0, 0, 0, 0, 0, 2, 3])
    found = class_metrics(
        np.tile(right[:, None], 10), scores, classes, np.array([0, 0, 0, 0, 2, 3])
    ).thresholds(5)

    def f1(conf: float) -> float:
        kept = (classes == 0) & (scores > conf)
        return 2 * right[kept].sum() / (kept.sum() + 4)

    assert f1(found[0]) == max(map(f1, np.linspace(0, 1, 1000))) == pytest.approx(0.75)
    assert found[1:] == pytest.approx([0.25, 0.35, 0.25, 0.25], abs=1e-3)


def test_class_figures_take_detections_in_any_order() -> None:
    rng = np.random.default_rng(8)
    hits = rng.random((40, 1)) > np.linspace(0.3, 0.9, 10)
    scores = rng.permutation(40) / 40
    classes = rng.integers(0, 3, 40)
    true = np.repeat([0, 1, 2], 20)
    wanted = class_metrics(hits, scores, classes, true)
    order = rng.permutation(40)
    shuffled = class_metrics(hits[order], scores[order], classes[order], true)
    for name in ClassMetrics.__dataclass_fields__:
        assert np.array_equal(getattr(wanted, name), getattr(shuffled, name)), name


NAMES = ["cat", "hot air balloon", "dog"]


def a_result(classes: list[int]) -> Result:
    """Small objects of these classes, each found but for the last."""
    true = labels_of([[20 * c, 0, 20 * c + 10, 10] for c in classes], classes, 100, 100)
    found = np.column_stack([true.boxes, np.linspace(0.9, 0.5, len(classes)), true.classes])[
        : max(len(classes) - 1, 1)
    ]
    return collected([found.astype(np.float32)], [true])


def test_class_table() -> None:
    head, everything, *rows = class_table(a_result([0, 2]).to_json(NAMES)).splitlines()
    assert head.split() == ["class", "objects", "P", "R", "mAP50", "mAP50-95", "coco/AP"]
    assert everything.split()[:2] == ["all", "2"]
    assert everything.split()[4:] == ["0.497", "0.497", "0.500"]  # 0.995 / 2, and COCO's 1 / 2
    assert [row.split()[:2] for row in rows] == [["cat", "1"], ["dog", "1"]], (
        "classes that have objects"
    )
    assert rows[0].split()[4:] == ["0.995", "0.995", "1.000"]
    assert rows[1].split()[4:] == ["0.000", "0.000", "0.000"]
    wide = class_table(a_result([0, 1, 2]).to_json(NAMES)).splitlines()
    assert len({len(line) for line in wide}) == 1, (
        "columns stand under each other, however long a name is"
    )
    assert len(class_table(a_result([1]).to_json(NAMES)).splitlines()) == 2, (
        "one class: not the same line twice"
    )


def test_result_json() -> None:
    result = a_result([0, 2])
    content = result.to_json(NAMES)
    assert json.loads(json.dumps(content, allow_nan=False)) == content
    assert content["images"] == 1
    assert content["mAP50-95"] == result.summary["mAP50-95"] > 0
    assert math.isnan(result.summary["coco/AP_large"])
    assert content["coco/AP_large"] is None, "there are no large objects"
    assert content["coco/AP_small"] == pytest.approx(0.5)
    assert [row["name"] for row in content["per_class"]] == ["cat", "dog"]
    assert [row["coco/AP"] for row in content["per_class"]] == pytest.approx([1, 0])
    assert content["best_confidence"] == result.by_class.best_confidence
