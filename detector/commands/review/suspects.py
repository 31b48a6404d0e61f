"""Suspects: labels that the detectors doubt, each with the probability that it is wrong."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from boltbox.detector.commands.review.evidence import NEAR, Found, Scene
from boltbox.detector.commands.review.folds import Item
from boltbox.detector.commands.review.probability import POOLED, class_means, probabilities
from boltbox.detector.commands.review.suspect import Box, ReviewedImage, Suggestion, Suspect
from boltbox.detector.model.boxes import iou_xyxy, pairwise_iou_xyxy

WRONG = ("right", "wrong_class", "badly_placed", "no_object", "duplicate")  # kinds by number
MADE = 2000  # errors of each kind, at most
PER_LABEL = 4  # likewise
LEAST = 0.02  # probability of a suspect
IN_PART = 3  # missing objects of an image that may be labelled in part


def made_errors(scenes: Sequence[Scene], classes: int) -> Iterator[Found]:
    """Errors as people make them: another class, shifts and wrong sizes, most of them small, a
    label on background, a label twice; and with kind 0 the box of a label that was left out.

    Args:
        scenes: the images.
        classes: number of classes.
    """
    rng = np.random.default_rng(0)
    labels = []
    for scene in scenes:
        labels += [(scene, k) for k in np.flatnonzero(~scene.labels.crowd).tolist()]
    for turn in range(min(MADE, PER_LABEL * len(labels))):
        if turn % len(labels) == 0:
            order = rng.permutation(len(labels))
        scene, k = labels[order[turn % len(labels)]]
        box = scene.boxes[k]
        kind = int(scene.labels.classes[k])
        side = np.tile(box[2:] - box[:2], 2)
        yield from scene.unlabelled(k)
        if classes > 1:
            other = int(kind + rng.integers(1, classes)) % classes
            yield scene.judge(box, other, k)._replace(kind=1)
        moves = rng.normal(0, rng.choice((0.1, 0.2, 0.4)), 4) * (rng.random(4) < 0.6)
        if rng.random() < 0.5:
            moves[2:] = moves[:2]
        moved = box + moves * side
        if (moved[2:] > moved[:2]).all() and 0.3 < iou_xyxy(box, moved) < 0.8:
            yield scene.judge(moved, kind, k)._replace(kind=2)
        there = scenes[int(rng.integers(len(scenes)))]
        room = np.array((there.labels.width, there.labels.height)) - side[:2]
        placed = np.tile(rng.random(2) * room.clip(0), 2)
        placed[2:] += side[:2]
        if pairwise_iou_xyxy(placed[None], there.boxes).max(initial=0) < 0.2:
            yield there.judge(placed, kind)._replace(kind=3)
        again = box + rng.normal(0, 0.06, 4) * side
        yield scene.judge(again, kind)._replace(kind=4)


def find_suspects(
    items: Sequence[Item], rows: Sequence[np.ndarray], fold_of: np.ndarray, names: Sequence[str]
) -> tuple[list[ReviewedImage], list[Suspect], dict[str, np.ndarray]]:
    """Find the labels that are probably wrong or missing.

    Args:
        items: the images.
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
    for item, of_image in zip(items, rows, strict=True):
        scene = Scene(len(scenes), item.labels, of_image, item.ignored)
        scenes.append(scene)
        labels += scene.found()
        boxes += scene.unlabelled()
    errors: list[Found] = []
    dropped: list[Found] = []
    for error in made_errors(scenes, len(names)):
        if error.kind:
            errors.append(error)
        else:
            dropped.append(error._replace(kind=1))
    if not labels:
        return [], [], {}
    usual = class_means(labels, len(names))
    of_labels, of_errors = probabilities(labels, errors, fold_of, usual)
    of_boxes, of_dropped = probabilities(boxes, dropped, fold_of, usual)
    lines = dict(zip(("missing", *WRONG[1:]), of_dropped + of_errors, strict=False))
    trust = len(boxes) / (len(boxes) + POOLED)  # few boxes without a label: objects, if sure
    for box, chances in zip(boxes, of_boxes, strict=True):
        chances[0] = trust * chances[0] + (1 - trust) * (1 - box.evidence.own)
    doubts = []
    for found, chances in zip(labels + boxes, [*of_labels, *of_boxes], strict=True):
        if chances[0] < 1 - LEAST:
            doubts.append(_doubt(found, chances, names))
    return *_chosen(doubts, items), lines


def _doubt(found: Found, chances: np.ndarray, names: Sequence[str]) -> Suspect:
    """A suspect of the most probable kind."""
    other, place = found.better
    evidence = found.evidence
    name = names[found.class_index]
    box = _corners(found.box)
    suggestion = None
    possible = np.array((0, evidence.other > 0, evidence.match > 0, 1, evidence.twin > 0.3))
    kind = WRONG[(chances * possible[: len(chances)]).argmax()]
    if found.number < 0:
        kind = "missing"
        suggestion = Suggestion(box, found.class_index)
        reason = f"{name} is detected with confidence {evidence.own:.2f}, without a label"
    elif kind == "wrong_class":
        suggestion = Suggestion(box, int(other[5]))
        better = names[suggestion.class_index]
        reason = f"{better} is detected with confidence {other[4]:.2f}, {name} {evidence.own:.2f}"
    elif kind == "badly_placed":
        suggestion = Suggestion(_corners(place), found.class_index)
        overlap = iou_xyxy(found.box, place[:4])
        reason = f"the box detected with confidence {place[4]:.2f} overlaps by {overlap:.2f}"
    elif kind == "duplicate":
        reason = f"another label of {name} overlaps by {evidence.twin:.2f}"
    else:
        reason = f"{name} is detected there with confidence {evidence.own:.2f} only"
    number = None if found.number < 0 else found.number
    chance = float(1 - chances[0])
    return Suspect(0, found.image, kind, chance, number, box, found.class_index, suggestion, reason)


def _corners(box: np.ndarray) -> Box:
    x1, y1, x2, y2 = box[:4].tolist()
    return x1, y1, x2, y2


def _chosen(
    doubts: Sequence[Suspect], items: Sequence[Item]
) -> tuple[list[ReviewedImage], list[Suspect]]:
    """The most probable suspect of each object, and the images."""
    taken: dict[int, list[Suspect]] = defaultdict(list)
    for doubt in sorted(doubts, key=lambda doubt: -doubt.probability):
        if not any(_same_object(doubt, other) for other in taken[doubt.image]):
            taken[doubt.image].append(doubt)
    numbers = {image: number for number, image in enumerate(sorted(taken))}
    suspects = []
    for image, here in taken.items():
        missing = sum(doubt.label is None and doubt.probability > NEAR for doubt in here)
        in_part = missing >= max(IN_PART, len(items[image].labels.boxes))
        note = f"; {missing} are missing in this image, is it labelled in part?" if in_part else ""
        for doubt in here:
            reason = doubt.reason + note * (doubt.label is None)
            suspects.append(replace(doubt, image=numbers[image], reason=reason))
    suspects.sort(key=lambda suspect: -suspect.probability)
    images = [items[image].reviewed() for image in numbers]
    return images, [replace(each, id=number) for number, each in enumerate(suspects)]


def _same_object(a: Suspect, b: Suspect) -> bool:
    """Whether only one of two suspects of an image can be right."""
    overlap = float(iou_xyxy(np.array(a.box), np.array(b.box)))
    if a.kind == b.kind == "duplicate":
        return overlap > NEAR
    return {a.kind, b.kind} == {"missing", "badly_placed"} and overlap > 0.2
