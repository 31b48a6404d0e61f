"""Suspects: labels that the detectors doubt, each with the probability that it is wrong."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from boltbox.detector.commands.review.evidence import NEAR, Found, Scene
from boltbox.detector.commands.review.probability import class_means, probabilities
from boltbox.detector.commands.review.suspect import ReviewedImage, Suggestion, Suspect
from boltbox.detector.model.boxes import iou_xyxy

WRONG = ("right", "wrong_class", "badly_placed", "no_object", "duplicate")  # kinds by number
MADE = 2000  # errors of each kind, at most
PER_LABEL = 4  # likewise
LEAST = 0.02  # probability of a suspect
IN_PART = 3  # missing objects of an image that may be labelled in part


def made_errors(
    scenes: Sequence[Scene], labels: Sequence[Found], classes: int
) -> tuple[list[Found], list[Found]]:
    """Errors as people make them: another class, shifts and wrong sizes, most of them small, a
    label on background, a label twice; and labels that are left out.

    Args:
        scenes: the images.
        labels: those of all scenes.
        classes: number of classes.

    Returns:
        The wrong labels, and the boxes of those that were left out.
    """
    rng = np.random.default_rng(0)
    errors: list[Found] = []
    dropped: list[Found] = []
    for turn in rng.permutation(PER_LABEL * len(labels))[:MADE].tolist():
        label = labels[turn // PER_LABEL]
        scene = scenes[label.image]
        box = label.box
        index = label.class_index
        k = label.number
        side = np.tile(box[2:] - box[:2], 2)
        dropped += scene.unlabelled(k)
        if classes > 1:
            other = int(index + rng.integers(1, classes)) % classes
            errors.append(scene.judge(box, other, k, 1))
        moves = rng.normal(0, rng.choice((0.1, 0.2, 0.4)), 4) * (rng.random(4) < 0.6)
        if rng.random() < 0.5:
            moves[2:] = moves[:2]
        moved = box + moves * side
        if (moved[2:] > moved[:2]).all() and 0.3 < iou_xyxy(box, moved) < 0.8:
            errors.append(scene.judge(moved, index, k, 2))
        there = scenes[int(rng.integers(len(scenes)))]
        if iou_xyxy(box, there.boxes).max(initial=0) < 0.2:
            errors.append(there.judge(box, index, kind=3))
        again = box + rng.normal(0, 0.06, 4) * side
        errors.append(scene.judge(again, index, kind=4))
    return errors, dropped


def find_suspects(
    images: Sequence[ReviewedImage],
    rows: Sequence[np.ndarray],
    fold_of: np.ndarray,
    names: Sequence[str],
) -> tuple[list[ReviewedImage], list[Suspect], dict[str, np.ndarray]]:
    """Find the labels that are probably wrong or missing.

    Args:
        images: all of them.
        rows: of each image (m, 6) detections by a detector that has not seen it: x1, y1, x2, y2 in
            pixels, score, class; best first.
        fold_of: (n,) fold of each image.
        names: class names.

    Returns:
        The images with suspects, the suspects, most probable first, and the `reliability` of each
        kind.
    """
    scenes: list[Scene] = []
    labels: list[Found] = []
    boxes: list[Found] = []
    for image, of_image in zip(images, rows, strict=True):
        scene = Scene(len(scenes), image.labels, of_image, image.ignored)
        scenes.append(scene)
        labels += scene.found()
        boxes += scene.unlabelled()
    errors, dropped = made_errors(scenes, labels, len(names))
    usual = class_means(labels, len(names))
    chances_of_labels, curves_of_labels = probabilities(labels, errors, fold_of, usual)
    chances_of_boxes, curves_of_boxes = probabilities(boxes, dropped, fold_of, usual)
    curves = curves_of_boxes + curves_of_labels  # `reliability` of each kind
    lines = dict(zip(("missing", *WRONG[1:]), curves, strict=False))
    doubts = []
    for found, chances in zip(labels + boxes, [*chances_of_labels, *chances_of_boxes], strict=True):
        if chances[0] < 1 - LEAST:
            doubts.append(_doubt(found, chances, names))
    return *_chosen(doubts, images), lines


def _doubt(found: Found, chances: np.ndarray, names: Sequence[str]) -> Suspect:
    """A suspect of the most probable kind."""
    other_class, placed = found.better
    evidence = found.evidence
    name = names[found.class_index]
    box = found.box.tolist()
    suggestion = None
    possible = np.array((0, evidence.other > 0, evidence.match > 0, 1, evidence.twin > 0.3))
    kind = WRONG[(chances * possible[: len(chances)]).argmax()]
    if found.number < 0:
        kind = "missing"
        suggestion = Suggestion(box, found.class_index)
        reason = f"{name} is detected with confidence {evidence.own:.2f}, without a label"
    elif kind == "wrong_class":
        suggestion = Suggestion(box, int(other_class[5]))
        better = names[suggestion.class_index]
        reason = (
            f"{better} is detected with confidence {other_class[4]:.2f}, {name} {evidence.own:.2f}"
        )
    elif kind == "badly_placed":
        suggestion = Suggestion(placed[:4].tolist(), found.class_index)
        overlap = iou_xyxy(found.box, placed[:4])
        reason = f"the box detected with confidence {placed[4]:.2f} overlaps by {overlap:.2f}"
    elif kind == "duplicate":
        reason = f"another label of {name} overlaps by {evidence.twin:.2f}"
    elif evidence.own > 0:
        reason = f"{name} is detected there with confidence {evidence.own:.2f} only"
    else:
        reason = f"no {name} is detected there"
    number = None if found.number < 0 else found.number
    chance = float(1 - chances[0])
    return Suspect(0, found.image, kind, chance, number, box, found.class_index, suggestion, reason)


def _chosen(
    doubts: list[Suspect], images: Sequence[ReviewedImage]
) -> tuple[list[ReviewedImage], list[Suspect]]:
    """The most probable suspect of each object, and the images."""
    doubts.sort(key=lambda doubt: -doubt.probability)
    likely = [doubt for doubt in doubts if doubt.probability > 0.5]
    missing = Counter(doubt.image for doubt in likely if doubt.label is None)
    numbers: dict[int, int] = {}
    suspects: list[Suspect] = []
    taken: dict[int, list[Suspect]] = defaultdict(list)
    for doubt in doubts:
        image = doubt.image
        if any(_same_object(doubt, other) for other in taken[image]):
            continue
        taken[image].append(doubt)
        reason = doubt.reason
        in_part = missing[image] >= max(IN_PART, len(images[image].labels.boxes))
        if in_part and doubt.label is None:
            reason += f"; {missing[image]} are missing in this image, is it labelled in part?"
        number = numbers.setdefault(image, len(numbers))
        suspects.append(replace(doubt, id=len(suspects), image=number, reason=reason))
    return [images[image] for image in numbers], suspects


def _same_object(a: Suspect, b: Suspect) -> bool:
    """Whether only one of two suspects of an image can be right."""
    overlap = float(iou_xyxy(np.array(a.box), np.array(b.box)))
    if a.kind == b.kind == "duplicate":
        return overlap > NEAR
    return {a.kind, b.kind} == {"missing", "badly_placed"} and overlap > 0.2
