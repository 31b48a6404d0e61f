"""What kind of errors a detector makes, and what each kind costs.

The kinds are TIDE's (Bolya et al. 2020, arXiv 2008.08115): every false positive is put down to one
cause, and the cause is fixed to see how much AP that brings. The code is ours; true positives are
those of the metrics (`class_metrics.match`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from boltbox.detector.evaluation.class_metrics import class_metrics
from boltbox.detector.evaluation.coco import COCO_AREAS
from boltbox.detector.evaluation.prediction_record import PredictionRecord
from boltbox.detector.model.boxes import area_xyxy, pairwise_iou_xyxy

NEAR, FAR = 0.5, 0.1  # IoU from which a box is right, and from which it belongs to an object at all
SIZES = tuple(COCO_AREAS)
DESCRIPTIONS = {
    "hit": "right class, IoU with its label at least 0.5, and the most confident there",
    "wrong class": "on an object of another class (IoU at least 0.5)",
    "poor localisation": "near an object of its class (IoU 0.1 to 0.5)",
    "both": "near an object of another class (IoU 0.1 to 0.5)",
    "duplicate": "right, but a more confident detection has the object",
    "background": "no object near (IoU under 0.1)",
    "missed": "an object without a hit that no wrong class and no poor localisation accounts for",
}
*KINDS, MISSED = DESCRIPTIONS
TRUE_POSITIVE, CLASS, LOCALISATION, BOTH, DUPLICATE, BACKGROUND = range(len(KINDS))


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
    for d, t in record.by_image():
        if d.start == d.stop or t.start == t.stop:
            continue
        iou = pairwise_iou_xyxy(record.box[d], record.label_box[t])
        same = record.kind[d, None] == record.label_kind[t]
        own, other = np.where(same, iou, -1), np.where(same, -1, iou)
        best_own, best_other, near = own.max(1), other.max(1), iou.max(1)
        causes = [true_positives[d], best_own >= NEAR, best_other >= NEAR, best_own >= FAR]
        kinds = (TRUE_POSITIVE, DUPLICATE, CLASS, LOCALISATION, BOTH)
        verdict = np.select([*causes, best_other >= FAR], kinds, BACKGROUND)
        on_own = np.isin(verdict, (TRUE_POSITIVE, LOCALISATION))
        target = np.where(on_own, own.argmax(1), other.argmax(1)) + t.start
        errors.target[d] = np.where(on_own | (verdict == CLASS), target, -1)
        errors.verdict[d], errors.nearest[d] = verdict, near
    return errors


def map50_if_fixed(record: PredictionRecord, errors: Errors) -> dict[str, float]:
    """mAP50 as it is ("hit"), and as it would be with each kind of error fixed.

    A wrong class or box is put right; where several detections then match one object, the most
    confident one is kept. Both, duplicates and background go. Missed objects are no longer looked
    for; a class that has no others is left out.
    """
    verdict, labels = errors.verdict, record.label_kind
    everything, hit = np.ones(len(verdict), bool), verdict == TRUE_POSITIVE

    def map50(
        hit: np.ndarray, kept: np.ndarray, kind: np.ndarray = record.kind, true: np.ndarray = labels
    ) -> float:
        ap = class_metrics(hit[kept, None], record.score[kept], kind[kept], true).ap
        return float(ap.mean()) if ap.size else 0.0

    results = {"hit": map50(hit, everything)}
    order = np.argsort(-record.score, kind="stable")
    for cause in (CLASS, LOCALISATION):
        matched = hit | (verdict == cause)
        best_first = order[matched[order]]
        best = best_first[np.unique(errors.target[best_first], return_index=True)[1]]
        right, kind = np.zeros(len(verdict), bool), record.kind.copy()
        right[best], kind[best] = True, labels[errors.target[best]]
        results[KINDS[cause]] = map50(right, ~matched | right, kind)
    for cause in (BOTH, DUPLICATE, BACKGROUND):
        results[KINDS[cause]] = map50(hit, verdict != cause)
    missed = errors.missed(len(labels), everything)
    results[MISSED] = map50(hit, everything, true=labels[~missed])
    return results


def count_errors(
    record: PredictionRecord, errors: Errors, confidence: float
) -> dict[str, np.ndarray]:
    """For each of KINDS and MISSED how many detections of at least that confidence, or missed
    objects, there are by SIZES (3,) in square pixels of the file; a border belongs to the
    smaller."""
    counted, area = record.score >= confidence, area_xyxy(record.box)
    areas = {kind: area[counted & (errors.verdict == i)] for i, kind in enumerate(KINDS)}
    areas[MISSED] = record.label_area[errors.missed(len(record.label_kind), counted)]
    borders = [low for low, _ in COCO_AREAS.values()][1:]
    return {k: np.bincount(np.searchsorted(borders, a), minlength=3) for k, a in areas.items()}


def greatest(chosen: np.ndarray, value: np.ndarray, image: np.ndarray, most: int) -> list[int]:
    """Rows of the greatest values (n,) among those where `chosen` (n,) is true: first one of each
    image, then the others; image: the number of each row's."""
    order = np.argsort(-value, kind="stable")
    order = order[chosen[order]]
    first = np.unique(image[order], return_index=True)[1]
    is_first = np.isin(np.arange(len(order)), first)
    return np.concatenate([order[is_first], order[~is_first]])[:most].tolist()
