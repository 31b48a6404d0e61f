"""What kind of errors a detector makes.

The kinds are TIDE's (Bolya et al. 2020, arXiv 2008.08115): every false positive gets one cause.
True positives are those of the metrics (`matching.match`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from boltbox.detector.evaluation.prediction_record import PredictionRecord
from boltbox.detector.model.boxes import pairwise_iou_xyxy

NEAR = 0.5  # minimum IoU of a right box
FAR = 0.1  # minimum IoU of a box with an object that it belongs to
DESCRIPTIONS = {
    "hit": "right class, IoU at least 0.5",
    "wrong class": "object of another class, IoU at least 0.5",
    "poor localisation": "object of its class, IoU 0.1 to 0.5",
    "both": "object of another class, IoU 0.1 to 0.5",
    "duplicate": "right, but the object has a more confident hit",
    "background": "no object, IoU below 0.1",
    "missed": "object without a hit, a wrong class or a poor localisation",
}
MISSED = "missed"
KINDS = [kind for kind in DESCRIPTIONS if kind != MISSED]
TRUE_POSITIVE, CLASS, LOCALISATION, BOTH, DUPLICATE, BACKGROUND = range(6)  # indices into KINDS


@dataclass(frozen=True)
class Errors:
    """What every detection of a record is.

    Attributes:
        verdict: (n,) index into KINDS.
        target: (n,) row of the label that the detection matches, or would match if its class or box
            were right; -1: none.
    """

    verdict: np.ndarray
    target: np.ndarray

    def missed(self, labels: int, counted: np.ndarray) -> np.ndarray:
        """Which labels are missed if only some detections count.

        Args:
            labels: Number of labels m.
            counted: (n,) bool, the detections that count. These must be the most confident ones,
                since a true positive depends on those of higher score only.

        Returns:
            (m,) bool.
        """
        explains = np.isin(self.verdict, (TRUE_POSITIVE, CLASS, LOCALISATION))
        missed = np.ones(labels, bool)
        missed[self.target[counted & explains]] = False
        return missed


def classify(record: PredictionRecord, true_positives: np.ndarray) -> Errors:
    """Each detection's verdict.

    Of several causes the first one counts: duplicate, wrong class, poor localisation, both,
    background.

    Args:
        record: Detections and labels.
        true_positives: (n,) bool, at IoU 0.5.
    """
    n = len(record.score)
    verdict = np.full(n, BACKGROUND, np.int8)
    target = np.full(n, -1)
    for d, t in record.by_image():
        if d.start == d.stop or t.start == t.stop:
            continue
        iou = pairwise_iou_xyxy(record.box[d], record.label_box[t])
        same_class = record.kind[d, None] == record.label_kind[t]
        same_iou = np.where(same_class, iou, -1)
        other_iou = np.where(same_class, -1, iou)
        best_same = same_iou.max(1)
        best_other = other_iou.max(1)
        causes = {
            TRUE_POSITIVE: true_positives[d],
            DUPLICATE: best_same >= NEAR,
            CLASS: best_other >= NEAR,
            LOCALISATION: best_same >= FAR,
            BOTH: best_other >= FAR,
        }
        verdict[d] = np.select(list(causes.values()), list(causes), BACKGROUND)
        on_same = np.isin(verdict[d], (TRUE_POSITIVE, LOCALISATION))
        label = np.where(on_same, same_iou.argmax(1), other_iou.argmax(1)) + t.start
        target[d] = np.where(on_same | (verdict[d] == CLASS), label, -1)
    return Errors(verdict, target)


def count_errors(record: PredictionRecord, errors: Errors, confidence: float) -> dict[str, int]:
    """Number of detections of each of KINDS, and of MISSED objects.

    Args:
        record: Detections and labels.
        errors: Their verdicts.
        confidence: Minimum confidence of a detection that counts.
    """
    counted = record.score >= confidence
    counts = {kind: int((errors.verdict[counted] == i).sum()) for i, kind in enumerate(KINDS)}
    counts[MISSED] = int(errors.missed(len(record.label_kind), counted).sum())
    return counts
