"""Suspects: labels that the detectors doubt, each with the probability that it is wrong."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from boltbox.detector.commands.review.evidence import (
    NEAR,
    DetectionEvidence,
    LabelEvidence,
    Scene,
)
from boltbox.detector.commands.review.folds import Item
from boltbox.detector.commands.review.probability import probabilities
from boltbox.detector.commands.review.suspect import (
    Box,
    ReviewedImage,
    Suggestion,
    Suspect,
)
from boltbox.detector.model.boxes import iou_xyxy, pairwise_iou_xyxy

WRONG = ("right", "wrong_class", "badly_placed", "no_object", "duplicate")  # kinds by number
MADE = 2000  # errors of each kind, at most
PER_LABEL = 4  # likewise
SHARES = 6  # fields of LabelEvidence; the last one is `fit`
LEAST = 0.02  # probability of a suspect
POOLED = 10  # objects of all classes that are added to those of a class
IN_PART = 3  # missing objects in an image that may be labelled in part


class Error(NamedTuple):
    """An error that was made.

    Attributes:
        image: its number.
        kind: index into WRONG; 0: the label `source` is left out.
        box: (4,) xyxy of the wrong label.
        class_index: of the wrong label.
        source: number of the label that it stands for; -1: it is a further one.
    """

    image: int
    kind: int
    box: np.ndarray
    class_index: int
    source: int


def make_errors(items: Sequence[Item], classes: int, seed: int = 0) -> Iterator[Error]:
    """Errors as people make them: a forgotten object, another class, shifts and wrong sizes, most
    of them small, a label on background, a label twice.

    Args:
        items: the images.
        classes: number of classes.
        seed: of the errors.
    """
    rng = np.random.default_rng(seed)
    labels = []
    for number, item in enumerate(items):
        labels += [(number, k) for k in np.flatnonzero(~item.labels.crowd).tolist()]
    count = min(MADE, PER_LABEL * len(labels))
    for turn in range(count):
        if turn % len(labels) == 0:
            order = rng.permutation(len(labels))
        image, k = labels[order[turn % len(labels)]]
        here = items[image].labels
        box = here.boxes[k].astype(float)
        kind = int(here.classes[k])
        side = np.tile(box[2:] - box[:2], 2)
        yield Error(image, 0, box, kind, k)
        if classes > 1:
            other = (kind + rng.integers(1, classes)) % classes
            yield Error(image, 1, box, int(other), k)
        moves = rng.normal(0, rng.choice((0.1, 0.2, 0.4)), 4) * (rng.random(4) < 0.6)
        if rng.random() < 0.5:
            moves[2:] = moves[:2]
        moved = box + moves * side
        if (moved[2:] - moved[:2] > 0.2 * side[:2]).all() and 0.3 < iou_xyxy(box, moved) < 0.8:
            yield Error(image, 2, moved, kind, k)
        number = int(rng.integers(len(items)))
        there = items[number].labels
        low = rng.random(2) * (np.array([there.width, there.height]) - side[:2]).clip(0)
        placed = np.concatenate((low, low + side[:2]))
        if pairwise_iou_xyxy(placed[None], there.boxes.astype(float)).max(initial=0) < 0.2:
            yield Error(number, 3, placed, kind, -1)
        yield Error(image, 4, box + rng.normal(0, 0.06, 4) * side, kind, -1)


class Found(NamedTuple):
    """A label or a detection without one, as found or after an error was made.

    Attributes:
        image: its number.
        number: of the label or the detection in the image.
        class_index: of the label or the detection.
        evidence: for it.
        kind: of the error that was made, index into WRONG.
        rows: numbers of the detections that a label is compared with, see `LabelFinding`.
    """

    image: int
    number: int
    class_index: int
    evidence: LabelEvidence | DetectionEvidence
    kind: int = 0
    rows: Sequence[int] = ()


class Usual:
    """What is usual for the labels of each class; that of a class with few leans to all others.

    Args:
        labels: as found.
        classes: number of classes.
    """

    def __init__(self, labels: Sequence[Found], classes: int) -> None:
        self.classes = classes
        table = _columns(labels, LabelEvidence, SHARES)
        kinds = _classes(labels)
        self.own = self._means(table[:, 0], kinds)
        self.size = self._means(table[:, -1], kinds)
        is_sure = table[:, 0] > 0
        self.fit = self._means(table[is_sure, SHARES - 1], kinds[is_sure])

    def labels(self, found: Sequence[Found]) -> np.ndarray:
        """(n, f) evidence for labels, and the difference to what is usual."""
        table = _columns(found, LabelEvidence, SHARES)
        kinds = _classes(found)
        table[:, -1] -= self.size[kinds]
        return np.column_stack((table, table[:, SHARES - 1] - self.fit[kinds]))

    def detections(self, found: Sequence[Found]) -> np.ndarray:
        """(n, f) likewise for detections without a label."""
        table = _columns(found, DetectionEvidence, 2)
        kinds = _classes(found)
        table[:, -1] -= self.size[kinds]
        return np.column_stack((table, table[:, 0] - self.own[kinds]))

    def _means(self, values: np.ndarray, kinds: np.ndarray) -> np.ndarray:
        """(c,) mean of each class."""
        mean = values.mean() if len(values) else 0.0
        sums = np.bincount(kinds, values, self.classes) + POOLED * mean
        return sums / (np.bincount(kinds, minlength=self.classes) + POOLED)


def _classes(found: Sequence[Found]) -> np.ndarray:
    return np.array([each.class_index for each in found], int)


def _columns(found: Sequence[Found], kind: Any, shares: int) -> np.ndarray:
    """(n, f) evidence of a kind; the first columns are shares, as log odds."""
    rows = [each.evidence for each in found]
    table = np.array(rows, float).reshape(-1, len(kind._fields))
    share = table[:, :shares].clip(0.01, 0.99)
    table[:, :shares] = np.log(share / (1 - share))
    return table


def find_suspects(
    items: Sequence[Item], rows: Sequence[np.ndarray], fold_of: np.ndarray, names: Sequence[str]
) -> tuple[list[ReviewedImage], list[Suspect]]:
    """Find the labels that are probably wrong or missing.

    Args:
        items: the images.
        rows: of each image (m, 6) detections by a detector that has not seen it: x1, y1, x2, y2 in
            pixels, score, class; best first.
        fold_of: (n,) fold of each image, by the detector.
        names: class names.

    Returns:
        The images with suspects, and the suspects, most probable first.
    """
    if not fold_of.any():
        fold_of = np.arange(len(items)) % 3
    scenes = []
    for item, of_image in zip(items, rows, strict=True):
        scenes.append(Scene(item.labels, of_image, item.ignored))
    labels: list[Found] = []
    detections: list[Found] = []
    for image, scene in enumerate(scenes):
        for k in np.flatnonzero(scene.counted).tolist():
            kind = int(scene.classes[k])
            evidence, *near = scene.label(scene.boxes[k], kind, k)
            labels.append(Found(image, k, kind, evidence, rows=near))
        for row in scene.unlabelled():
            detections.append(Found(image, row, int(scene.kind[row]), scene.detection(row)))
    made: list[Found] = []
    dropped: list[Found] = []
    for error in make_errors(items, len(names)):
        scene = scenes[error.image]
        if error.kind:
            evidence, *_ = scene.label(error.box, error.class_index, error.source)
            made.append(Found(error.image, -1, error.class_index, evidence, error.kind))
            continue
        for row in scene.unlabelled(error.source):
            seen = scene.detection(row, error.source)
            dropped.append(Found(error.image, row, int(scene.kind[row]), seen, 1))
    usual = Usual(labels, len(names))
    of_labels = _judged(labels, made, fold_of, usual.labels)
    of_detections = _judged(detections, dropped, fold_of, usual.detections)
    doubts = []
    for label, chances in zip(labels, of_labels, strict=True):
        doubts.append(_doubt(label, chances, scenes[label.image], names))
    for detection, chances in zip(detections, of_detections, strict=True):
        doubts.append(_missing(detection, chances[1], scenes[detection.image], names))
    return _chosen(doubts, items, names)


def _judged(
    found: Sequence[Found],
    made: Sequence[Found],
    fold_of: np.ndarray,
    table: Callable[[Sequence[Found]], np.ndarray],
) -> np.ndarray:
    """(n, k) the probability of each kind of error."""
    kinds = np.array([each.kind for each in made], int)
    folds = []
    for group in (found, made):
        images = np.array([each.image for each in group], int)
        folds.append(fold_of[images])
    of_found, _ = probabilities(table(found), table(made), kinds, *folds)
    return of_found


def _doubt(label: Found, chances: np.ndarray, scene: Scene, names: Sequence[str]) -> Suspect:
    """A label as a suspect, of the most probable kind."""
    evidence = label.evidence
    assert isinstance(evidence, LabelEvidence)
    possible = np.zeros(len(WRONG), bool)
    possible[1:] = (evidence.other > 0, evidence.score > 0, True, evidence.twin > 0.3)
    kind = WRONG[(chances * possible[: len(chances)]).argmax()]
    other, fit, match = label.rows
    box = scene.boxes[label.number]
    name = names[label.class_index]
    suggestion = None
    reason = f"the best detection of {name} there has confidence {evidence.own:.2f}"
    if kind == "wrong_class":
        better = int(scene.kind[other])
        suggestion = Suggestion(_corners(box), better)
        reason = f"{names[better]} with confidence {evidence.other:.2f}, {name} {evidence.own:.2f}"
    elif kind == "badly_placed":
        row = fit if evidence.fit else match
        suggestion = Suggestion(_corners(scene.rows[row]), label.class_index)
        overlap = evidence.fit if evidence.fit else evidence.match
        reason = (
            f"the box detected with confidence {scene.score[row]:.2f} overlaps by {overlap:.2f}"
        )
    elif kind == "duplicate":
        reason = f"another label of {name} overlaps by {evidence.twin:.2f}"
    return Suspect(
        0, label.image, kind, float(1 - chances[0]), label.number, _corners(box),
        label.class_index, suggestion, reason,
    )  # fmt: skip


def _missing(found: Found, chance: float, scene: Scene, names: Sequence[str]) -> Suspect:
    """A detection without a label as a suspect."""
    box = _corners(scene.rows[found.number])
    kind = found.class_index
    reason = f"{names[kind]} with confidence {scene.score[found.number]:.2f}, without a label"
    return Suspect(
        0, found.image, "missing", float(chance), None, box, kind, Suggestion(box, kind), reason
    )


def _corners(box: np.ndarray) -> Box:
    x1, y1, x2, y2 = box[:4].tolist()
    return x1, y1, x2, y2


def _chosen(
    doubts: Sequence[Suspect], items: Sequence[Item], names: Sequence[str]
) -> tuple[list[ReviewedImage], list[Suspect]]:
    """The most probable suspect of each object."""
    taken: dict[int, list[Suspect]] = defaultdict(list)
    for doubt in sorted(doubts, key=lambda doubt: -doubt.probability):
        if doubt.probability < LEAST:
            break
        if not any(_same_object(doubt, other) for other in taken[doubt.image]):
            taken[doubt.image].append(doubt)
    images: list[ReviewedImage] = []
    suspects = []
    for image in sorted(taken):
        labels = items[image].labels
        missing = [each for each in taken[image] if each.label is None and each.probability > NEAR]
        in_part = len(missing) >= max(IN_PART, len(labels.boxes))
        for doubt in taken[image]:
            reason = doubt.reason
            if in_part and doubt.label is None:
                reason += f", as {len(missing)} here: the image may be labelled in part"
            suspects.append(replace(doubt, image=len(images), reason=reason))
        images.append(items[image].reviewed())
    suspects.sort(key=lambda each: -each.probability)
    return images, [replace(each, id=number) for number, each in enumerate(suspects)]


def _same_object(a: Suspect, b: Suspect) -> bool:
    """Whether only one of two suspects of an image can be right."""
    overlap = float(iou_xyxy(np.array(a.box), np.array(b.box)))
    if a.kind == b.kind == "duplicate":
        return overlap > NEAR
    return {a.kind, b.kind} == {"missing", "badly_placed"} and overlap > 0.2
