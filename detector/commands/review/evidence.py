"""What a detector that has not seen an image says about its labels, as numbers."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from boltbox.detector.data.sample import Labels
from boltbox.detector.model.boxes import area_xyxy, pairwise_iou_xyxy

NEAR = 0.5  # IoU of a detection and the object that it finds
BESIDE = 0.1  # IoU of a detection and a label that may belong together
NONE = np.array([[0.0, 0, 0, 0, 0, -1]])  # a detection that finds nothing
BORDER = 2  # pixels


class LabelEvidence(NamedTuple):
    """Of a label. A detection belongs to it unless it overlaps another label of the detection's
    class more.

    Attributes:
        own: highest score of its class, of detections with an IoU of NEAR.
        other: highest score of another class, likewise.
        some: highest score of detections with an IoU of 0.3.
        score: of the detection, of any class, that belongs to it.
        match: IoU with that detection.
        fit: IoU with the detection of its class that belongs to it.
        twin: IoU with the next label of its class.
        twin_fit: how much better that one fits the detection.
        neighbours: number of labels with an IoU of BESIDE.
        edge: whether the box ends at the edge of the image.
        size: logarithm of its share of the image.
    """

    own: float
    other: float
    some: float
    score: float
    match: float
    fit: float
    twin: float
    twin_fit: float
    neighbours: int
    edge: bool
    size: float


class DetectionEvidence(NamedTuple):
    """Of a detection without a label.

    Attributes:
        score: of the detection.
        rival: highest score of another class, of detections with an IoU of NEAR.
        cover: highest IoU with a label.
        cover_same: highest IoU with a label of its class.
        inside: largest share of it that is in a label.
        holds: largest share of a label that is in it.
        unclaimed: highest IoU with a label, less for labels that a detection of their class fits.
        better: highest IoU with a detection of a higher score.
        edge: whether the box ends at the edge of the image.
        size: logarithm of its share of the image.
    """

    score: float
    rival: float
    cover: float
    cover_same: float
    inside: float
    holds: float
    unclaimed: float
    better: float
    edge: bool
    size: float


class LabelFinding(NamedTuple):
    """Evidence for a label, and the number of the detection that is meant by `other`, by `fit` and
    by `match`."""

    evidence: LabelEvidence
    other: int
    fit: int
    match: int


class Scene:
    """The labels and the detections of an image.

    Args:
        labels: of the image; crowd regions are no objects.
        rows: (m, 6) detections: x1, y1, x2, y2 in pixels, score, class; best first.
        ignored: (k, 4) boxes in which nothing is missing, beside the crowd regions.

    Attributes:
        boxes: (n, 4) of the labels.
        classes: (n,) of the labels.
        counted: (n,) whether a label is an object.
        rows: (m + 1, 6) the detections and NONE.
        kind: (m + 1,) their classes.
    """

    def __init__(self, labels: Labels, rows: np.ndarray, ignored: np.ndarray) -> None:
        self.boxes = labels.boxes.astype(float)
        self.classes = labels.classes
        self.counted = ~labels.crowd
        self.size = np.array([labels.width, labels.height], float)
        self.rows = np.concatenate((rows.astype(float), NONE))
        self.score = self.rows[:, 4]
        self.kind = self.rows[:, 5].astype(int)
        self.overlap = pairwise_iou_xyxy(self.rows[:, :4], self.rows[:, :4])
        self.iou = pairwise_iou_xyxy(self.boxes, self.rows[:, :4])
        self.same = self.iou * (self.classes[:, None] == self.kind)
        self.claimed = (self.same * self.score).max(1, initial=0)
        regions = np.concatenate((self.boxes[labels.crowd], ignored.reshape(-1, 4)))
        self.is_ignored = _shares(self.rows[:, :4], regions).max(1, initial=0) > NEAR

    def label(self, box: np.ndarray, class_index: int, source: int = -1) -> LabelFinding:
        """The evidence for a label.

        Args:
            box: (4,) xyxy.
            class_index: of the label.
            source: number of the label in the image that it stands for; -1: it is a further one.
        """
        others = self._without(source)
        iou = pairwise_iou_xyxy(box[None], self.rows[:, :4])[0]
        is_own = self.kind == class_index
        belongs = (iou > self.same[others].max(0, initial=0)) & (iou >= BESIDE)
        weight = self.score * (0.3 + iou) * belongs
        match = int(weight.argmax())
        fit = int((weight * is_own).argmax())
        good_fit = iou[fit] * bool(weight[fit] * is_own[fit])
        is_match = bool(weight[match])
        found = self.score * (iou >= NEAR)
        other = int((found * ~is_own).argmax())
        labels = pairwise_iou_xyxy(box[None], self.boxes)[0] * others
        twins = labels * (self.classes == class_index)
        has_twin = twins.max(initial=0) > 0.3 and good_fit > 0
        evidence = LabelEvidence(
            own=(found * is_own).max(),
            other=(found * ~is_own).max(),
            some=(self.score * (iou >= 0.3)).max(),
            score=self.score[match] * is_match,
            match=iou[match] * is_match,
            fit=good_fit,
            twin=twins.max(initial=0),
            twin_fit=self.iou[twins.argmax(), fit] - good_fit if has_twin else 0.0,
            neighbours=int((labels > BESIDE).sum()),
            edge=self._at_edge(box),
            size=self._share(box),
        )
        return LabelFinding(evidence, other, fit, match)

    def unlabelled(self, dropped: int = -1) -> list[int]:
        """Detections without a label, the best of each place, best first.

        Args:
            dropped: number of a label; then only the best detection of its object, if it has no
                other label.
        """
        free = self.iou[self._without(dropped)].max(0, initial=0) < NEAR
        free &= (self.score > 0) & ~self.is_ignored
        if dropped >= 0:
            free &= self.iou[dropped] >= NEAR
            return np.flatnonzero(free)[:1].tolist()
        chosen: list[int] = []
        for row in np.flatnonzero(free).tolist():
            if (self.overlap[row, chosen] < NEAR).all():
                chosen.append(row)
        return chosen

    def detection(self, row: int, dropped: int = -1) -> DetectionEvidence:
        """The evidence for a detection without a label.

        Args:
            row: its number.
            dropped: number of a label that is left out; -1: none.
        """
        others = self._without(dropped)
        box = self.rows[row, :4]
        near = self.overlap[row]
        is_rival = (near > NEAR) & (self.kind != self.kind[row])
        unclaimed = self.iou[:, row] * (1 - self.claimed)
        return DetectionEvidence(
            score=self.score[row],
            rival=(self.score * is_rival).max(),
            cover=self.iou[others, row].max(initial=0),
            cover_same=self.same[others, row].max(initial=0),
            inside=_shares(box[None], self.boxes[others]).max(initial=0),
            holds=_shares(self.boxes[others], box[None]).max(initial=0),
            unclaimed=unclaimed[others].max(initial=0),
            better=(near * (self.score > self.score[row])).max(),
            edge=self._at_edge(box),
            size=self._share(box),
        )

    def _without(self, number: int) -> np.ndarray:
        """(n,) which labels are objects, without one of them."""
        others = self.counted.copy()
        if number >= 0:
            others[number] = False
        return others

    def _at_edge(self, box: np.ndarray) -> bool:
        return bool((box[:2] < BORDER).any() or (box[2:] > self.size - BORDER).any())

    def _share(self, box: np.ndarray) -> float:
        return float(np.log(max(area_xyxy(box), 1) / self.size.prod()))


def _shares(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """(n, 4) and (m, 4) boxes -> (n, m) the share of a that is in b."""
    low = np.maximum(a[:, None, :2], b[:, :2])
    high = np.minimum(a[:, None, 2:], b[:, 2:])
    return (high - low).clip(0).prod(2) / area_xyxy(a).clip(1e-6)[:, None]
