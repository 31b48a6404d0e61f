"""Matching, average precision, COCO's figures, confusion matrix, and what is printed of them.

Oracles: pycocotools, and loops that follow the definitions pair by pair.
"""

import contextlib
import io
import itertools
import json
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detector.data.sample import Labels
from detector.evaluation.metrics import (
    COCO_NAMES,
    ClassMetrics,
    DetectionMetrics,
    Result,
    average_precision,
    class_metrics,
    coco_metrics,
    confusion_matrix,
    match,
)
from detector.evaluation.results import class_table, result_json

# Boxes on a coarse lattice overlap, coincide and tie often.
corner, side = st.integers(0, 5), st.integers(1, 4)
box = st.tuples(corner, corner, side, side).map(lambda b: (b[0], b[1], b[0] + b[2], b[1] + b[3]))
objects = st.lists(st.tuples(box, st.integers(0, 2)), max_size=7)
score = st.sampled_from([0.1, 0.25, 0.3, 0.5, 0.5, 0.9])


def columns(rows: list[tuple[tuple[int, ...], int]]) -> tuple[np.ndarray, np.ndarray]:
    """Drawn objects -> (n, 4) float32 boxes, (n,) classes."""
    return np.array([b for b, _ in rows], np.float32).reshape(-1, 4), np.array([c for _, c in rows], np.int64)


def overlap(a: np.ndarray, b: np.ndarray) -> np.float32:
    """Intersection over union of two float32 boxes, one step at a time."""
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    shared = max(width, np.float32(0)) * max(height, np.float32(0))
    return shared / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared + np.float32(1e-7))


def random_set(
    rng: np.random.Generator,
    images: int = 5,
    classes: int = 3,
    most_objects: int = 5,
    clutter: int = 4,
    crowds: float = 0.0,
    ties: bool = False,
    empty: float = 0.0,
    areas: bool = False,
) -> tuple[list[np.ndarray], list[Labels]]:
    """Detections and labels of a few images, detections best first.

    Args:
        clutter: most detections that follow no object.
        crowds: share of objects that are crowd regions.
        ties: few different scores.
        empty: share of images without labels, and likewise without detections.
        areas: COCO areas that are smaller than the boxes' (segments).
    """
    detections, truths = [], []
    for _ in range(images):
        n = 0 if rng.random() < empty else rng.integers(1, most_objects + 1)
        size = np.exp(rng.uniform(np.log(8), np.log(250), (n, 2)))  # on both sides of 32 and 96 px
        low = rng.uniform(0, 300, (n, 2))
        boxes, kinds = np.hstack([low, low + size]), rng.integers(0, classes, n)
        area = size.prod(1) * rng.uniform(0.2, 1, n) if areas else None
        truths.append(Labels.of(boxes, kinds, 600, 600, crowd=rng.random(n) < crowds, area=area))

        copies = np.repeat(np.arange(n), rng.integers(0, 4, n))
        near = boxes[copies] + rng.normal(0, 0.08, (len(copies), 4)) * np.tile(size[copies], 2)
        stray = rng.uniform(0, 500, (rng.integers(0, clutter + 1), 2))
        rows = np.vstack([near, np.hstack([stray, stray + rng.uniform(5, 120, stray.shape)])])
        called = np.concatenate([kinds[copies], rng.integers(0, classes, len(stray))])
        scores = rng.choice([0.2, 0.5, 0.8], len(rows)) if ties else rng.random(len(rows))
        found = np.column_stack([rows, scores, called]).astype(np.float32)
        found = found[np.argsort(-found[:, 4], kind="stable")]
        detections.append(found[:0] if rng.random() < empty else found)
    return detections, truths


# ---- matching


def slow_match(boxes: np.ndarray, classes: np.ndarray, true_boxes: np.ndarray, true_classes: np.ndarray) -> np.ndarray:
    """Specification 5.4, sentence by sentence."""
    hits = np.zeros((len(boxes), 10), bool)
    for k in range(10):
        pairs = []
        for d in range(len(boxes)):
            for t in range(len(true_boxes)):
                iou = overlap(boxes[d], true_boxes[t])
                if classes[d] == true_classes[t] and iou >= np.float32(0.5 + 0.05 * k):
                    pairs.append((iou, d, t))
        pairs.sort(key=lambda pair: -pair[0])  # by overlap, descending
        best: dict[int, int] = {}
        for _, d, t in pairs:
            best.setdefault(d, t)  # per detection its best pair
        taken = set()
        for d in sorted(best):  # per label the first in detection order
            if best[d] not in taken:
                hits[d, k] = True
                taken.add(best[d])
    return hits


@settings(max_examples=300, deadline=None)
@given(objects, objects)
def test_match_is_the_specified_loop(found: list, true: list) -> None:
    arguments = (*columns(found), *columns(true))
    assert np.array_equal(match(*arguments), slow_match(*arguments))


def test_match_is_the_specified_loop_on_crowded_images() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        (found,), (true,) = random_set(rng, images=1, classes=2, most_objects=12)
        arguments = (found[:, :4], found[:, 5], true.boxes, true.classes)
        assert np.array_equal(match(*arguments), slow_match(*arguments))


def test_match_gives_no_second_choice() -> None:
    """Both detections prefer the first object; the surer one gets it although it overlaps less, the other one gets nothing."""
    true = np.array([[0, 0, 10, 10], [3, 0, 13, 10]], np.float32)
    found = np.array([[1, 0, 11, 10], [0, 0, 10, 10]], np.float32)  # overlaps .82 .67 and 1 .54
    hits = match(found, np.zeros(2), true, np.zeros(2))
    assert hits[:, 0].tolist() == [True, False]
    assert hits[:, 9].tolist() == [False, True], "at 0.95 the surer one is no candidate"


# ---- average precision


def slow_average_precision(recall: list[float], precision: list[float]) -> float:
    """Area under the envelope, read at 101 recalls by hand."""
    r, p = [0.0, *recall, 1.0], [1.0, *precision, 0.0]
    envelope = [max(p[i:]) for i in range(len(p))]
    values = []
    for g in np.linspace(0, 1, 101):
        j = max(i for i in range(len(r)) if r[i] <= g)
        share = (g - r[j]) / (r[j + 1] - r[j]) if j + 1 < len(r) else 0.0
        values.append(envelope[j] + share * (envelope[min(j + 1, len(r) - 1)] - envelope[j]))
    return sum((a + b) / 2 * 0.01 for a, b in itertools.pairwise(values))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=30), st.integers(0, 20))
def test_average_precision_is_the_area(hits: list[bool], missed: int) -> None:
    n = sum(hits) + missed
    if not n:
        return
    found = np.cumsum(hits)
    recall, precision = found / (n + 1e-16), found / np.arange(1, len(hits) + 1)
    assert average_precision(recall, precision) == pytest.approx(slow_average_precision([*recall], [*precision]), abs=1e-12)


@pytest.mark.parametrize(
    ("recall", "precision", "area"),
    [
        ([1.0], [1.0], 0.995),  # 99 hundredths of 1, and a last one that falls from 1 to 0
        ([0.5], [1.0], 0.75),  # 1 up to 0.5, then straight down to 0 at 1
        ([0.0], [0.0], 0.0),  # nothing but false positives
        ([0.5, 1.0], [0.5, 0.5], 0.6225),  # 0..0.5: (1 + 0.5) / 2 * 0.5; 0.5..0.99: 0.5 * 0.49; the last: 0.25 * 0.01
    ],
)
def test_average_precision_by_hand(recall: list[float], precision: list[float], area: float) -> None:
    assert average_precision(np.array(recall), np.array(precision)) == pytest.approx(area, abs=1e-12)


# ---- COCO's figures


def pycocotools_figures(
    detections: list[np.ndarray], truths: list[Labels], num_classes: int
) -> tuple[dict[str, float], np.ndarray]:
    """The twelve figures and AP by class, NaN where pycocotools says -1."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    images = [{"id": i} for i in range(len(truths))]
    categories = [{"id": c} for c in range(num_classes)]

    def entries(numbers: list[int], boxes: list[np.ndarray], **more: list) -> list[dict[str, Any]]:
        rows = []
        for k, (i, b) in enumerate(zip(numbers, boxes, strict=True)):
            x1, y1, x2, y2 = (float(v) for v in b)
            row = {"id": k + 1, "image_id": i, "bbox": [x1, y1, x2 - x1, y2 - y1], "area": (x2 - x1) * (y2 - y1), "iscrowd": 0}
            rows.append(row | {name: values[k] for name, values in more.items()})
        return rows

    def data_set(annotations: list[dict[str, Any]]) -> Any:
        coco = COCO()
        coco.dataset = {"images": images, "annotations": annotations, "categories": categories}
        coco.createIndex()
        return coco

    true = entries(
        [i for i, t in enumerate(truths) for _ in t.boxes],
        [b for t in truths for b in t.boxes],
        category_id=[int(c) for t in truths for c in t.classes],
        area=[float(a) for t in truths for a in t.area],
        iscrowd=[int(c) for t in truths for c in t.crowd],
    )
    rows = [(i, row) for i, found in enumerate(detections) for row in found]
    found = entries(
        [i for i, _ in rows],
        [row[:4] for _, row in rows],
        score=[float(row[4]) for _, row in rows],
        category_id=[int(row[5]) for _, row in rows],
    )
    with contextlib.redirect_stdout(io.StringIO()):
        evaluation = COCOeval(data_set(true), data_set(found), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    precision = evaluation.eval["precision"][:, :, :, 0, 2].transpose(2, 0, 1).reshape(num_classes, -1)
    by_class = [p[p > -1].mean() if (p > -1).any() else math.nan for p in precision]
    stats = [math.nan if v == -1 else float(v) for v in evaluation.stats]
    return dict(zip(COCO_NAMES, stats, strict=True)), np.array(by_class)


def check_coco(detections: list[np.ndarray], truths: list[Labels], num_classes: int) -> dict[str, float]:
    ours, by_class = coco_metrics(detections, truths, num_classes)
    theirs, theirs_by_class = pycocotools_figures(detections, truths, num_classes)
    assert ours == pytest.approx(theirs, abs=1e-12, rel=0, nan_ok=True)
    np.testing.assert_allclose(by_class, theirs_by_class, rtol=0, atol=1e-12)
    return ours


SETS: dict[str, dict[str, Any]] = {
    "plain": {},
    "one class": {"classes": 1, "most_objects": 8},
    "crowds": {"crowds": 0.4},
    "ties": {"ties": True},
    "empty images": {"empty": 0.5, "images": 8},
    "areas unlike the boxes": {"areas": True},
    "everything": {"crowds": 0.2, "ties": True, "empty": 0.2, "areas": True},
}


@pytest.mark.parametrize("kind", SETS)
def test_coco_figures_are_those_of_pycocotools(kind: str) -> None:
    rng = np.random.default_rng(list(SETS).index(kind))
    classes = SETS[kind].get("classes", 3)
    sets = [random_set(rng, **SETS[kind]) for _ in range(25)]
    found = [check_coco(*s, num_classes=classes + 2)["AP"] for s in sets]  # two classes have no objects
    assert np.nanmedian(found) > 0.1, "sets that say something"


def test_coco_figures_with_more_than_100_detections() -> None:
    """Of an image and class only the best 100 count, so a true one among the rest does not."""
    detections, truths = random_set(np.random.default_rng(0), images=3, classes=2, clutter=500, most_objects=10)
    assert max(Counter(d[:, 5]).most_common(1)[0][1] for d in detections) > 100
    check_coco(detections, truths, 2)
    spread = np.array([[20 * i, 0, 20 * i + 10, 10, 1 - i / 200, 0] for i in range(101)], np.float32)
    last = [Labels.of(spread[-1:, :4], [0], 10, 3000)]
    assert check_coco([spread], last, 1)["AR100"] == 0
    assert check_coco([spread[1:]], last, 1)["AR100"] == 1


def test_coco_figures_where_there_is_nothing() -> None:
    (found, *_), (true, *_) = random_set(np.random.default_rng(0), images=1, most_objects=8)
    nothing, no_labels = found[:0], Labels.of([], [], 600, 600)
    crowd = Labels.of(true.boxes, true.classes, 600, 600, crowd=np.ones(len(true.boxes)))
    assert math.isnan(check_coco([nothing], [no_labels], 3)["AP"])
    assert math.isnan(check_coco([found], [no_labels], 3)["AP"])
    assert math.isnan(check_coco([found], [crowd], 3)["AP"])
    assert math.isnan(check_coco([nothing], [crowd], 3)["AP"])
    assert check_coco([nothing, nothing], [true, no_labels], 3)["AP"] == 0
    assert check_coco([nothing, found], [true, no_labels], 3)["AP"] == 0


@pytest.mark.parametrize("width", [10, 50, 200])
def test_coco_figures_of_a_size_that_does_not_occur(width: int) -> None:
    """Without any detection, too, the figures of the other two sizes do not exist."""
    true = Labels.of([[0, 0, width, width]], [0], 600, 600)
    figures = check_coco([np.zeros((0, 6), np.float32)], [true], 1)
    assert sum(math.isnan(figures[f"AP_{size}"]) for size in ("small", "medium", "large")) == 2


# ---- confusion matrix


def slow_confusion(boxes: np.ndarray, classes: np.ndarray, true_boxes: np.ndarray, true_classes: np.ndarray) -> np.ndarray:
    """Specification 5.6 for 3 classes: per detection its best object, then per object its best of those detections."""
    matrix = np.zeros((4, 4))
    wishes: dict[int, list[tuple[float, int]]] = {}
    for d in range(len(boxes)):
        ious = [overlap(boxes[d], t) for t in true_boxes]
        if ious and max(ious) > 0.45:
            t = ious.index(max(ious))
            wishes.setdefault(t, []).append((-ious[t], d))
    pairs = {t: min(candidates)[1] for t, candidates in wishes.items()}
    for t, c in enumerate(true_classes):
        matrix[classes[pairs[t]] if t in pairs else 3, c] += 1
    for d, c in enumerate(classes):
        if d not in pairs.values():
            matrix[c, 3] += 1
    return matrix


@settings(max_examples=200, deadline=None)
@given(objects, objects, st.data())
def test_confusion_matrix(found: list, true: list, data: st.DataObject) -> None:
    (boxes, classes), (true_boxes, true_classes) = columns(found), columns(true)
    scores = np.array(data.draw(st.lists(score, min_size=len(found), max_size=len(found))), np.float32)
    matrix = confusion_matrix(boxes, scores, classes.astype(np.float32), true_boxes, true_classes, 3)
    sure = scores > 0.25
    assert matrix.sum(0)[:3].tolist() == np.bincount(true_classes, minlength=3).tolist()
    assert matrix.sum(1)[:3].tolist() == np.bincount(classes[sure], minlength=3).tolist()
    assert matrix[3, 3] == 0
    assert np.array_equal(matrix, slow_confusion(boxes[sure], classes[sure], true_boxes, true_classes))

    theirs = confusion_matrix(boxes, scores, classes, true_boxes, true_classes, 3, skip_unmatched=True)
    if not matrix[:3, :3].any():  # nothing matches: no false positives either
        matrix[:, 3] = 0
    assert np.array_equal(theirs, matrix)


def test_confusion_matrix_thresholds() -> None:
    """Both thresholds are strict, and both are options."""
    found, true = np.array([[0, 0, 10, 10]], np.float32), np.array([[0, 0, 10, 20]], np.float32)  # overlap 1/2
    one, other = np.array([0.5]), np.array([1])

    def counted(**options: float) -> np.ndarray:
        return confusion_matrix(found, one, other * 0, true, other, 2, **options)

    assert counted()[0, 1] == 1
    assert counted(conf=0.5).tolist() == [[0, 0, 0], [0, 0, 0], [0, 1, 0]]
    assert counted(iou=0.5).tolist() == [[0, 0, 1], [0, 0, 0], [0, 1, 0]]


# ---- an epoch


def collected(detections: list[np.ndarray], truths: list[Labels], order: Any = None, num_classes: int = 3) -> Result:
    metrics = DetectionMetrics(num_classes)
    for i in range(len(truths)) if order is None else order:
        metrics.update(int(i), detections[i], truths[i])
    return metrics.compute()


def exact(result: Result) -> tuple:
    """Everything in a result, so that == is equality to the last bit (NaN equal to NaN)."""
    f = result.by_class
    arrays = [np.array([*result.summary.values()]), f.ap, f.precision_curve, f.recall_curve, f.f1, f.objects]
    return [*result.summary], *(a.tobytes() for a in (*arrays, result.coco_by_class, result.confusion)), result.images


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
    assert twice.images == 4


def test_reset_forgets() -> None:
    detections, truths = random_set(np.random.default_rng(5), images=2)
    metrics = DetectionMetrics(3)
    metrics.update(0, detections[0], truths[0])
    metrics.reset()
    metrics.update(1, detections[1], truths[1])
    assert exact(metrics.compute()) == exact(collected(detections[1:], truths[1:]))


def test_crowd_regions_are_ignored_in_yolov5s_figures() -> None:
    detections, truths = random_set(np.random.default_rng(6), images=6, crowds=0.4)
    assert sum(t.crowd.sum() for t in truths) > 3
    with_crowds, without = collected(detections, truths), collected(detections, [t.keep(~t.crowd) for t in truths])
    for name in ("P", "R", "mAP50", "mAP50-95", "fitness"):
        assert with_crowds.summary[name] == without.summary[name]
    assert np.array_equal(with_crowds.confusion, without.confusion)
    assert with_crowds.by_class.objects.sum() == sum((~t.crowd).sum() for t in truths)
    assert with_crowds.summary["coco/AP"] > without.summary["coco/AP"], "COCO forgives detections in crowds"


def test_labels_count_as_far_as_they_are_in_the_image() -> None:
    """Detections are clipped to the image (specification 5.3), so YOLOv5's figures clip the objects as well."""
    outside = Labels.of([[-50, 0, 50, 100]], [0], 100, 100)
    result = collected([np.array([[0, 0, 50, 100, 0.9, 0]], np.float32)], [outside], num_classes=1)
    assert result.by_class.ap.min() > 0.99
    assert result.confusion.tolist() == [[1, 0], [0, 0]]


def test_no_detections_is_zero() -> None:
    detections, truths = random_set(np.random.default_rng(7), images=3)
    result = collected([d[:0] for d in detections], truths)
    assert {result.summary[name] for name in ("P", "R", "mAP50", "mAP50-95", "fitness", "coco/AP", "coco/AR100")} == {0}
    assert result.confusion[:3].sum() == 0
    assert result.confusion[3].sum() == sum(len(t.boxes) for t in truths)


def test_no_hit_is_zero() -> None:
    """Precision is 1 above the best score by definition; it is not reported without a single hit."""
    miss = np.array([[0, 0, 10, 10, 0.9, 0]], np.float32)
    result = collected([miss], [Labels.of([[50, 50, 60, 60]], [0], 100, 100)], num_classes=1)
    assert {result.summary[name] for name in ("P", "R", "mAP50", "mAP50-95", "fitness")} == {0}
    assert result.confusion.tolist() == [[0, 1], [1, 0]]


def test_no_images_and_no_labels() -> None:
    for result in (collected([], []), collected([np.array([[0, 0, 9, 9, 0.9, 1]], np.float32)], [Labels.of([], [], 9, 9)])):
        assert {result.summary[name] for name in ("P", "R", "mAP50", "mAP50-95", "fitness")} == {0}
        assert math.isnan(result.summary["coco/AP"])
        assert result.class_maps(3).tolist() == [0, 0, 0]
        class_table(result_json(result, ["a", "b", "c"]))


def test_class_maps() -> None:
    """A class without objects gets the mean of the others, a class with objects and no detections 0."""
    true = Labels.of([[0, 0, 10, 10], [50, 0, 60, 10]], [1, 3], 100, 100)
    result = collected([np.array([[0, 0, 10, 10, 0.9, 1]], np.float32)], [true], num_classes=4)
    assert result.class_maps(4) == pytest.approx([0.4975, 0.995, 0.4975, 0])


def test_class_figures_take_detections_in_any_order() -> None:
    rng = np.random.default_rng(8)
    hits = rng.random((40, 1)) > np.linspace(0.3, 0.9, 10)
    scores, classes, true = rng.permutation(40) / 40, rng.integers(0, 3, 40), np.repeat([0, 1, 2], 20)
    wanted = class_metrics(hits, scores, classes, true)
    order = rng.permutation(40)
    shuffled = class_metrics(hits[order], scores[order], classes[order], true)
    for name in ClassMetrics.__dataclass_fields__:
        assert np.array_equal(getattr(wanted, name), getattr(shuffled, name)), name
    found = [(hits[:, 0] & (classes == c) & (scores >= wanted.best_confidence)).sum() for c in range(3)]
    assert np.abs(wanted.true_positives - found).max() <= 1, "hits above the confidence that is reported"


# ---- what is printed


NAMES = ["cat", "hot air balloon", "dog"]


def a_result(classes: list[int]) -> Result:
    """Small objects of these classes, each found but for the last."""
    true = Labels.of([[20 * c, 0, 20 * c + 10, 10] for c in classes], classes, 100, 100)
    found = np.column_stack([true.boxes, np.linspace(0.9, 0.5, len(classes)), true.classes])[: max(len(classes) - 1, 1)]
    return collected([found.astype(np.float32)], [true])


def test_class_table() -> None:
    head, everything, *rows = class_table(result_json(a_result([0, 2]), NAMES)).splitlines()
    assert head.split() == ["class", "objects", "P", "R", "mAP50", "mAP50-95", "coco/AP"]
    assert everything.split()[:2] == ["all", "2"]
    assert everything.split()[4:] == ["0.497", "0.497", "0.500"]  # 0.995 / 2, and COCO's 1 / 2
    assert [row.split()[:2] for row in rows] == [["cat", "1"], ["dog", "1"]], "classes that have objects"
    assert rows[0].split()[4:] == ["0.995", "0.995", "1.000"]
    assert rows[1].split()[4:] == ["0.000", "0.000", "0.000"]
    wide = class_table(result_json(a_result([0, 1, 2]), NAMES)).splitlines()
    assert len({len(line) for line in wide}) == 1, "columns stand under each other, however long a name is"
    assert len(class_table(result_json(a_result([1]), NAMES)).splitlines()) == 2, "one class: not the same line twice"


def test_result_json() -> None:
    result = a_result([0, 2])
    content = result_json(result, NAMES)
    assert json.loads(json.dumps(content, allow_nan=False)) == content
    assert content["images"] == 1
    assert content["mAP50-95"] == result.summary["mAP50-95"] > 0
    assert math.isnan(result.summary["coco/AP_large"])
    assert content["coco/AP_large"] is None, "there are no large objects"
    assert content["coco/AP_small"] == pytest.approx(0.5)
    assert [row["name"] for row in content["per_class"]] == ["cat", "dog"]
    assert [row["coco/AP"] for row in content["per_class"]] == pytest.approx([1, 0])
    assert content["best_confidence"] == result.by_class.best_confidence
