"""What a detector that has not seen an image says about its labels, as numbers."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from boltbox.detector.data.sample import Labels
from boltbox.detector.model.boxes import area_xyxy, iou_xyxy, overlap_xyxy, pairwise_iou_xyxy

NEAR = 0.5  # IoU of a detection and the object that it finds
BESIDE = 0.1  # IoU of a detection and a label that may belong together
BORDER = 2  # pixels
NONE = np.array([[0.0, 0, 0, 0, 0, -1]])  # a detection that finds nothing


class Evidence(NamedTuple):
    """For a label, or for a box that has none. A detection belongs to it unless it overlaps another
    label of the detection's class more.

    Attributes:
        own: highest score of its class, of detections with an IoU of NEAR.
        other: highest score of another class, likewise.
        score: of the detection, of any class, that belongs to it.
        match: IoU with that detection.
        twin: IoU with the next label of its class.
        edge: whether the box ends at the edge of the image.
        size: logarithm of its share of the image.
    """

    own: float
    other: float
    score: float
    match: float
    twin: float
    edge: float
    size: float


class Found(NamedTuple):
    """A label or a box without one, as found or after an error was made.

    Attributes:
        image: its number.
        number: of the label in the image, or of that which it stands for; -1: it has none.
        box: (4,) xyxy.
        class_index: of the label or the box.
        evidence: for it.
        better: (2, 6) the detection of `other`, and the best-placed one: of its class, if one
            belongs to it, else that of `match`.
        kind: of the error that was made; 0: as found.
    """

    image: int
    number: int
    box: np.ndarray
    class_index: int
    evidence: Evidence
    better: np.ndarray
    kind: int


class Scene:
    """The labels and the detections of an image.

    Args:
        image: its number.
        labels: of the image; crowd regions are no objects.
        rows: (m, 6) detections: x1, y1, x2, y2 in pixels, score, class; best first.
        ignored: (k, 4) boxes in which nothing is missing, beside the crowd regions.
    """

    def __init__(self, image: int, labels: Labels, rows: np.ndarray, ignored: np.ndarray) -> None:
        self.image = image
        self.labels = labels
        self.boxes = labels.boxes.astype(float)
        rows = rows[area_xyxy(rows) > 0]  # no label has a box of another kind
        self.rows = np.concatenate((rows.astype(float), NONE))
        self.kind = self.rows[:, 5].astype(int)
        self.iou = pairwise_iou_xyxy(self.boxes, self.rows[:, :4])
        self.same = self.iou * (labels.classes[:, None] == self.kind)
        regions = np.concatenate((self.boxes[labels.crowd], ignored))
        overlap = overlap_xyxy(self.rows[:, None, :4], regions).max(1, initial=0)
        self.is_ignored = overlap > NEAR * area_xyxy(self.rows)

    def found(self) -> list[Found]:
        """The labels of the image."""
        classes = self.labels.classes.tolist()
        numbers = np.flatnonzero(~self.labels.crowd).tolist()
        return [self.judge(self.boxes[k], classes[k], k) for k in numbers]

    def unlabelled(self, dropped: int = -1) -> list[Found]:
        """The best detection of each place without a label.

        Args:
            dropped: number of a label; then only that of its object, if it has no other label.
        """
        covers = self.iou[self._without(dropped)].max(0, initial=0)
        free = (covers < NEAR) & (self.rows[:, 4] > 0) & ~self.is_ignored
        if dropped >= 0:
            free &= self.iou[dropped] >= NEAR
        chosen: list[int] = []
        for row in np.flatnonzero(free).tolist():
            if iou_xyxy(self.rows[row, :4], self.rows[chosen, :4]).max(initial=0) < NEAR:
                chosen.append(row)
        error = 0
        if dropped >= 0:
            chosen = chosen[:1]
            error = 1
        boxes = self.rows[:, :4]
        return [self.judge(boxes[row], int(self.kind[row]), dropped, error) for row in chosen]

    def judge(self, box: np.ndarray, class_index: int, number: int = -1, kind: int = 0) -> Found:
        """The evidence for a label or a box.

        Args:
            box: (4,) xyxy.
            class_index: of the label.
            number: of the label that is not there, or that it stands for; -1: none.
            kind: of the error that was made.
        """
        others = self._without(number)
        score = self.rows[:, 4]
        is_own = self.kind == class_index
        iou = iou_xyxy(box, self.rows[:, :4])
        belongs = (iou >= BESIDE) & (iou > self.same[others].max(0, initial=0))
        weight = score * (0.3 + iou) * belongs
        near = score * (iou >= NEAR)
        other = near * ~is_own
        best = int(weight.argmax())
        own = weight * is_own
        place = int(own.argmax()) if own.any() else best
        match = iou[best] * belongs[best]
        twins = iou_xyxy(box, self.boxes) * others * (self.labels.classes == class_index)
        size = np.array([self.labels.width, self.labels.height])
        evidence = Evidence(
            own=(near * is_own).max(),
            other=other.max(),
            score=score[best] * (match > 0),
            match=match,
            twin=twins.max(initial=0),
            edge=float(min(*box[:2], *(size - box[2:])) < BORDER),
            size=np.log(max(area_xyxy(box), 1) / size.prod()),
        )
        better = self.rows[[int(other.argmax()), place]]
        return Found(self.image, number, box, class_index, evidence, better, kind)

    def _without(self, number: int) -> np.ndarray:
        """(n,) which labels are objects, without one of them."""
        others = ~self.labels.crowd
        if number >= 0:
            others[number] = False
        return others
