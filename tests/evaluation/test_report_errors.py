"""The error analysis against a slow and obvious one, written from the paper."""

import numpy as np
from hypothesis import given, settings
from made_evidence import drawn_evidence, evidence_of

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
    classify,
    count_errors,
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


@settings(max_examples=80)
@given(drawn_evidence())
def test_verdicts_are_those_of_the_slow_way(e: PredictionRecord) -> None:
    errors = classify(e, e.true_positives()[:, 0])
    slow = slow_verdicts(e)
    assert [KINDS[v] for v in errors.verdict] == [v for v, _ in slow]
    assert errors.target.tolist() == [t for _, t in slow]
    confident = [pair for pair, s in zip(slow, e.score, strict=True) if s >= 0.3]
    found = {t for v, t in confident if v in ("hit", "wrong class", "poor localisation")}
    counts = count_errors(e, errors, 0.3)
    assert counts.pop(MISSED) == len(e.label_kind) - len(found)
    assert counts == {kind: sum(v == kind for v, _ in confident) for kind in KINDS}


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


def test_confusion_counts_images_where_nothing_matches() -> None:
    """Rows predicted, columns true, background last."""
    counted = confusion_matrix(SCENE.confused_pairs(3), 3, range(3))
    assert counted[0, 0] == counted[1, 2] == 1
    # twice near, duplicate; nothing there; the second image's
    assert counted[:3, 3].tolist() == [3, 1, 1]
    assert counted[3, :3].tolist() == [1, 1, 0]
