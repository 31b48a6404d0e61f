"""What kind of errors a detector makes, and what each kind costs.

The kinds are TIDE's (Bolya et al. 2020, arXiv 2008.08115): every false positive is put down to one
cause, and the cause is fixed to see how much AP that brings. The code is ours; true positives are
those of the metrics (`metrics.match`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from boltbox.detector.evaluation.class_metrics import average_precision
from boltbox.detector.evaluation.coco import COCO_AREAS
from boltbox.detector.evaluation.prediction_record import PredictionRecord
from boltbox.detector.model.boxes import area_xyxy, pairwise_iou_xyxy

NEAR, FAR = 0.5, 0.1  # IoU from which a box is right, and from which it belongs to an object at all
KINDS = ("hit", "wrong class", "poor localisation", "both", "duplicate", "background")
TRUE_POSITIVE, CLASS, LOCALISATION, BOTH, DUPLICATE, BACKGROUND = range(6)
MISSED = "missed"
SIZES = tuple(COCO_AREAS)
DESCRIPTIONS = {
    "hit": "right class, IoU with its label at least 0.5, and the surest there",
    "wrong class": "on an object of another class (IoU at least 0.5)",
    "poor localisation": "near an object of its class (IoU 0.1 to 0.5)",
    "both": "near an object of another class (IoU 0.1 to 0.5)",
    "duplicate": "right, but a surer detection has the object",
    "background": "no object near (IoU under 0.1)",
    "missed": "an object without a hit that no wrong class and no poor localisation accounts for",
}


@dataclass
class Errors:
    """By detection (n,): verdict, an index into KINDS; target, the row of the label that it
    matches, or would match if its class or box were right (-1: none, as for what is neither);
    nearest, its greatest IoU with any label of the image."""

    verdict: np.ndarray
    target: np.ndarray
    nearest: np.ndarray

    def missed(self, labels: int, counted: np.ndarray) -> np.ndarray:
        """(m,) bool: which of the m labels are missed if only the detections where `counted` (n,)
        is true are there: the most confident ones, as a true positive depends on those of higher
        score alone."""
        accounted = counted & np.isin(self.verdict, (TRUE_POSITIVE, CLASS, LOCALISATION))
        missed = np.ones(labels, bool)
        missed[self.target[accounted]] = False
        return missed


def classify(record: PredictionRecord, true_positives: np.ndarray) -> Errors:
    """Each detection's verdict.

    Of several causes the first one counts: duplicate, wrong class, poor localisation, both,
    background.

    Args:
        true_positives: (n,) bool, at IoU 0.5.
    """
    n = len(record.score)
    errors = Errors(np.full(n, BACKGROUND, np.int8), np.full(n, -1), np.zeros(n, np.float32))
    for i in range(len(record.files)):
        d, t = record.detections_of(i), record.labels_of(i)
        if d.start == d.stop or t.start == t.stop:
            continue
        iou = pairwise_iou_xyxy(record.box[d], record.label_box[t])
        same = record.kind[d, None] == record.label_kind[t]
        own, other = np.where(same, iou, -1), np.where(same, -1, iou)
        best_own, best_other = own.max(1), other.max(1)
        causes = [
            true_positives[d],
            best_own >= NEAR,
            best_other >= NEAR,
            best_own >= FAR,
            best_other >= FAR,
        ]
        errors.verdict[d] = np.select(
            causes, (TRUE_POSITIVE, DUPLICATE, CLASS, LOCALISATION, BOTH), BACKGROUND
        )
        on_own, on_other = (
            np.isin(errors.verdict[d], (TRUE_POSITIVE, LOCALISATION)),
            errors.verdict[d] == CLASS,
        )
        errors.target[d] = np.select(
            (on_own, on_other), (own.argmax(1) + t.start, other.argmax(1) + t.start), -1
        )
        errors.nearest[d] = iou.max(1)
    return errors


def map50_if_fixed(record: PredictionRecord, errors: Errors) -> dict[str, float]:
    """mAP50 as it is ("hit"), and as it would be with each kind of error fixed.

    A wrong class or box is put right; where several detections then match one object, the most
    confident one is kept. Both, duplicates and background go. Missed objects are no longer looked
    for; a class that has no others is left out.
    """
    present, objects = np.unique(record.label_kind, return_counts=True)
    order = np.argsort(-record.score, kind="stable")

    def mean_ap(
        verdict: np.ndarray, kind: np.ndarray, kept: np.ndarray, objects: np.ndarray
    ) -> float:
        rows = order[kept[order]]
        hit, of = verdict[rows] == TRUE_POSITIVE, kind[rows]
        found = [_ap(hit[of == c], n) for c, n in zip(present, objects, strict=True) if n]
        return float(np.mean(found)) if found else 0.0

    everything = np.ones(len(order), bool)
    results = {"hit": mean_ap(errors.verdict, record.kind, everything, objects)}
    for cause in (CLASS, LOCALISATION):
        matched = np.isin(errors.verdict, (TRUE_POSITIVE, cause))
        best_first = order[matched[order]]
        kept = best_first[np.unique(errors.target[best_first], return_index=True)[1]]
        is_kept = np.zeros(len(order), bool)
        is_kept[kept] = True
        kind = record.kind.copy()
        kind[kept] = record.label_kind[errors.target[kept]]
        results[KINDS[cause]] = mean_ap(
            np.where(is_kept, TRUE_POSITIVE, errors.verdict), kind, ~matched | is_kept, objects
        )
    for cause in (BOTH, DUPLICATE, BACKGROUND):
        results[KINDS[cause]] = mean_ap(
            errors.verdict, record.kind, errors.verdict != cause, objects
        )
    missed = errors.missed(len(record.label_kind), everything)
    left = objects - [int((record.label_kind[missed] == c).sum()) for c in present]
    results[MISSED] = mean_ap(errors.verdict, record.kind, everything, left)
    return results


def _ap(hit: np.ndarray, objects: int) -> float:
    """AP of a class; hit (k,) bool, the most confident first."""
    if not len(hit):
        return 0.0
    found = hit.cumsum()
    return average_precision(found / objects, found / np.arange(1, len(hit) + 1))


def size_of(area: np.ndarray) -> np.ndarray:
    """(n,) square pixels of the file -> (n,) index into SIZES, COCO's classes; a border belongs to
    the smaller."""
    return np.searchsorted([high for _, high in COCO_AREAS.values()][:-1], area)


@dataclass
class ErrorCounts:
    """Detections of at least `confidence`, and labels, counted. by_kind: for each of KINDS and
    MISSED the counts (3,) by SIZES, of the detection's box or the missed object · by_class: for
    each of them the counts (C,) by class of the detection or label · map50: see
    `map50_if_fixed`."""

    confidence: float
    by_kind: dict[str, np.ndarray]
    by_class: dict[str, np.ndarray]
    map50: dict[str, float]

    def gain(self, kind: str) -> float:
        """By how much mAP50 would rise."""
        return self.map50[kind] - self.map50["hit"]


def count_errors(record: PredictionRecord, errors: Errors, confidence: float) -> ErrorCounts:
    counted, classes = record.score >= confidence, len(record.names)
    sizes = size_of(area_xyxy(record.box))
    result = ErrorCounts(confidence, {}, {}, map50_if_fixed(record, errors))
    for number, kind in enumerate(KINDS):
        chosen = counted & (errors.verdict == number)
        result.by_kind[kind] = np.bincount(sizes[chosen], minlength=len(SIZES))
        result.by_class[kind] = np.bincount(record.kind[chosen], minlength=classes)
    missed = errors.missed(len(record.label_kind), counted)
    result.by_kind[MISSED] = np.bincount(size_of(record.label_area[missed]), minlength=len(SIZES))
    result.by_class[MISSED] = np.bincount(record.label_kind[missed], minlength=classes)
    return result


def most_confident(
    record: PredictionRecord, chosen: np.ndarray, most: int, of_image: int = 2
) -> list[int]:
    """Rows of the most confident detections among those where `chosen` (n,) is true, at most so
    many of one image."""
    return _spread(
        np.flatnonzero(chosen), lambda k: -float(record.score[k]), record.image, most, of_image
    )


def largest(
    record: PredictionRecord, chosen: np.ndarray, most: int, of_image: int = 2
) -> list[int]:
    """Rows of the labels that take up most of their image, among those where `chosen` (m,) is
    true."""
    share = area_xyxy(record.label_box) / record.sizes[record.label_image].prod(1)
    return _spread(
        np.flatnonzero(chosen), lambda k: -float(share[k]), record.label_image, most, of_image
    )


def _spread(
    rows: np.ndarray, key: Callable[[int], float], image: np.ndarray, most: int, of_image: int
) -> list[int]:
    taken: dict[int, int] = {}
    result: list[int] = []
    for k in sorted(rows.tolist(), key=key):
        if len(result) == most:
            break
        taken[int(image[k])] = taken.get(int(image[k]), 0) + 1
        if taken[int(image[k])] <= of_image:
            result.append(k)
    return result


def label_suspects(record: PredictionRecord, errors: Errors, least: float) -> np.ndarray:
    """(n,) bool: detections of at least that score that speak against the labels: no label near, or
    one of another class that no true positive of such a score has."""
    sure = record.score >= least
    found = np.zeros(len(record.label_kind), bool)
    found[errors.target[sure & (errors.verdict == TRUE_POSITIVE)]] = True
    against = (errors.verdict == CLASS) & ~found[errors.target]
    return sure & ((errors.verdict == BACKGROUND) | against)
