"""The error analysis against a slow and obvious one, written from the paper."""

import numpy as np
import pytest
from hypothesis import given, settings
from made_evidence import NAMES, drawn_evidence, evidence_of

from boltbox.detector.evaluation.class_metrics import RECALLS, class_metrics, precision_at_recall
from boltbox.detector.evaluation.confusion import confusion_matrix
from boltbox.detector.evaluation.error_kinds import (
    BACKGROUND,
    BOTH,
    CLASS,
    DUPLICATE,
    KINDS,
    LOCALISATION,
    MISSED,
    TRUE_POSITIVE,
    Errors,
    classify,
    count_errors,
    greatest,
    map50_if_fixed,
)
from boltbox.detector.evaluation.prediction_record import PredictionRecord


def overlap(a: np.ndarray, b: np.ndarray) -> float:
    wide = min(a[2], b[2]) - max(a[0], b[0])
    tall = min(a[3], b[3]) - max(a[1], b[1])
    shared = max(wide, 0) * max(tall, 0)
    return shared / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared + 1e-7)


def slow_verdicts(e: PredictionRecord) -> list[tuple[str, int]]:
    """One detection after the other, the surest first: the cause, and the label it has or would
    have."""
    result: list[tuple[str, int]] = [("", -1)] * len(e.score)
    taken: set[int] = set()
    for k in sorted(range(len(e.score)), key=lambda k: -e.score[k]):
        there = [t for t in range(len(e.label_kind)) if e.label_image[t] == e.image[k]]
        own = [
            (overlap(e.box[k], e.label_box[t]), -t) for t in there if e.label_kind[t] == e.kind[k]
        ]
        other = [
            (overlap(e.box[k], e.label_box[t]), -t) for t in there if e.label_kind[t] != e.kind[k]
        ]
        (best, t), (best_other, t_other) = max(own, default=(0, 1)), max(other, default=(0, 1))
        if best >= 0.5 and -t not in taken:
            result[k] = "hit", -t
            taken.add(-t)
        elif best >= 0.5:
            result[k] = "duplicate", -1
        elif best_other >= 0.5:
            result[k] = "wrong class", -t_other
        elif best >= 0.1:
            result[k] = "poor localisation", -t
        else:
            result[k] = "both" if best_other >= 0.1 else "background", -1
    return result


def slow_map50(rows: list[tuple[float, bool, int]], objects: dict[int, int]) -> float:
    """rows: score, hit, class."""
    found = []
    for c, n in objects.items():
        if not n:
            continue
        right = wrong = 0
        recall = []
        precision = []
        for _, hit, _ in sorted((r for r in rows if r[2] == c), key=lambda r: -r[0]):
            right = right + hit
            wrong = wrong + (not hit)
            recall.append(right / n)
            precision.append(right / (right + wrong))
        curve = precision_at_recall(np.array(recall), np.array(precision))
        found.append(float(np.trapezoid(curve, RECALLS)) if recall else 0.0)
    return float(np.mean(found)) if found else 0.0


def slow_map50_if_fixed(e: PredictionRecord) -> dict[str, float]:
    verdicts = slow_verdicts(e)
    objects = {
        c: int((e.label_kind == c).sum()) for c in range(len(NAMES)) if (e.label_kind == c).any()
    }
    plain = [
        (float(s), v == "hit", int(c))
        for s, (v, _), c in zip(e.score, verdicts, e.kind, strict=True)
    ]
    result = {"hit": slow_map50(plain, objects)}
    for cause in ("wrong class", "poor localisation"):
        rows = [row for row, (v, _) in zip(plain, verdicts, strict=True) if v not in ("hit", cause)]
        for label in range(len(e.label_kind)):
            scores = [
                float(e.score[k])
                for k, (v, t) in enumerate(verdicts)
                if v in ("hit", cause) and t == label
            ]
            if scores:
                rows.append((max(scores), True, int(e.label_kind[label])))
        result[cause] = slow_map50(rows, objects)
    for cause in ("both", "duplicate", "background"):
        result[cause] = slow_map50(
            [row for row, (v, _) in zip(plain, verdicts, strict=True) if v != cause], objects
        )
    accounted = {t for v, t in verdicts if v in ("hit", "wrong class", "poor localisation")}
    left = {c: sum(t in accounted for t in np.flatnonzero(e.label_kind == c)) for c in objects}
    result["missed"] = slow_map50(plain, left)
    return result


@settings(max_examples=80)
@given(drawn_evidence())
def test_verdicts_and_gains_are_those_of_the_slow_way(e: PredictionRecord) -> None:
    hits = e.true_positives()
    errors = classify(e, hits[:, 0])
    slow = slow_verdicts(e)
    assert [KINDS[v] for v in errors.verdict] == [v for v, _ in slow]
    assert errors.target.tolist() == [t for _, t in slow]
    fast = map50_if_fixed(e, errors)
    expected = slow_map50_if_fixed(e)
    assert fast.keys() == expected.keys()
    assert all(fast[k] == pytest.approx(expected[k], abs=1e-12) for k in fast)
    figures = class_metrics(hits, e.score, e.kind, e.label_kind)
    if len(figures.classes):
        assert fast["hit"] == pytest.approx(figures.ap[:, 0].mean(), abs=1e-12)


@settings(max_examples=30)
@given(drawn_evidence())
def test_what_is_counted_adds_up(e: PredictionRecord) -> None:
    errors = classify(e, e.true_positives()[:, 0])
    counts = count_errors(e, errors, 0.3)
    found = sum(int(counts[kind].sum()) for kind in KINDS)
    assert found == int((e.score >= 0.3).sum())
    slow = [v for v, s in zip(slow_verdicts(e), e.score, strict=True) if s >= 0.3]
    accounted = {t for v, t in slow if v in ("hit", "wrong class", "poor localisation")}
    assert counts[MISSED].sum() == len(e.label_kind) - len(accounted)


@settings(max_examples=30)
@given(drawn_evidence())
def test_the_area_under_the_curve_is_the_ap(e: PredictionRecord) -> None:
    hits = e.true_positives()
    figures = class_metrics(hits, e.score, e.kind, e.label_kind)
    for curve, ap, c in zip(
        figures.precision_at_recall, figures.ap[:, 0], figures.classes, strict=True
    ):
        assert np.trapezoid(curve, RECALLS) == pytest.approx(ap, abs=1e-12)
        assert (np.diff(curve) <= 1e-12).all() or not (e.kind == c).any()


SCENE = evidence_of(
    [
        (
            [
                (0, 0, 10, 10, 0.9, 0),  # right
                (0, 0, 10, 9, 0.8, 0),  # the same again
                (20, 20, 30, 30, 0.7, 1),  # labelled c
                (0, 25, 10, 35, 0.6, 0),  # IoU 1/3 with the third label
                (30, 0, 38, 8, 0.55, 1),  # nothing is there
                (20, 24, 30, 34, 0.5, 0),  # IoU 0.43 with the one labelled c
            ],
            [(0, 0, 10, 10, 0), (20, 20, 30, 30, 2), (0, 30, 10, 40, 0), (12, 12, 17, 17, 1)],
        ),
        ([(5, 5, 15, 15, 0.95, 2)], []),
    ]
)


def test_each_kind_of_error() -> None:
    errors = classify(SCENE, SCENE.true_positives()[:, 0])
    assert errors.verdict.tolist() == [
        TRUE_POSITIVE,
        DUPLICATE,
        CLASS,
        LOCALISATION,
        BACKGROUND,
        BOTH,
        BACKGROUND,
    ]
    assert errors.target.tolist() == [0, -1, 1, 2, -1, -1, -1]
    assert np.flatnonzero(errors.missed(4, np.ones(7, bool))).tolist() == [3]
    assert np.flatnonzero(errors.missed(4, SCENE.score >= 0.65)).tolist() == [2, 3]


def test_galleries() -> None:
    errors: Errors = classify(SCENE, SCENE.true_positives()[:, 0])
    wrong = errors.verdict != TRUE_POSITIVE
    assert greatest(wrong, SCENE.score, SCENE.image, 4) == [6, 1, 2, 3]
    assert greatest(
        np.array([False, True, True, True]), SCENE.label_area, SCENE.label_image, 2
    ) == [1, 2]


def test_confusion_counts_images_where_nothing_matches() -> None:
    """Rows predicted, columns true, background last."""
    counted = confusion_matrix(SCENE.confused_pairs(3), 3, range(3))
    assert counted[0, 0] == counted[1, 2] == 1
    # twice near, duplicate; nothing there; the second image's
    assert counted[:3, 3].tolist() == [3, 1, 1]
    assert counted[3, :3].tolist() == [1, 1, 0]
