"""The command `review`: folds, evidence against a slow loop, probabilities on made predictions,
formats."""

import os
import shutil

import made_labels
import numpy as np
import pytest
from made_datasets import as_coco
from overlaps import overlap

from boltbox.detector.commands.doctor.examine import open_splits
from boltbox.detector.commands.review.evidence import Scene
from boltbox.detector.commands.review.folds import assign_folds, images_of, write_fold
from boltbox.detector.commands.review.suspect import ReviewedImage
from boltbox.detector.commands.review.suspects import find_suspects
from boltbox.detector.data.dataset_file import DatasetFile

NONE = np.zeros((0, 4))
NAMES = ["cat", "dog", "owl"]
SIDE = 200


def labels_of(boxes, classes, crowd=None):
    return made_labels.labels_of(boxes, classes, SIDE, SIDE, crowd=crowd)


def item(name, labels, ignored=NONE):
    return ReviewedImage(name, "train", labels, [name] * len(labels.boxes), ignored)


def random_boxes(rng, count):
    low = rng.uniform(0, 120, (count, 2))
    return np.concatenate((low, low + rng.uniform(20, 80, (count, 2))), 1)


def slow_evidence(boxes, classes, crowd, rows, k):
    """own, other, match and twin of a label, one detection after the other."""
    others = [i for i in range(len(boxes)) if i != k and not crowd[i]]
    own = other = match = best = 0.0
    for *box, score, kind in rows:
        iou = overlap(boxes[k], box)
        rivals = [overlap(boxes[i], box) for i in others if classes[i] == kind]
        if iou >= 0.5 and kind == classes[k]:
            own = max(own, score)
        elif iou >= 0.5:
            other = max(other, score)
        belongs = iou >= 0.1 and iou > max(rivals, default=0)
        if belongs and score * (0.3 + iou) > best:
            best = score * (0.3 + iou)
            match = iou
    same = [overlap(boxes[k], boxes[i]) for i in others if classes[i] == classes[k]]
    return own, other, match, max(same, default=0)


def test_evidence_is_that_of_a_slow_loop():
    rng = np.random.default_rng(0)
    for _ in range(40):
        n = int(rng.integers(1, 7))
        boxes = random_boxes(rng, n).astype(np.float32).astype(float)
        classes = rng.integers(0, 3, n)
        crowd = rng.random(n) < 0.2
        near = boxes[rng.integers(0, n, 12)] + rng.normal(0, 8, (12, 4))
        near[0, 3] = near[0, 1]  # without area
        rows = np.column_stack((near, np.sort(rng.random(12))[::-1], rng.integers(0, 3, 12)))
        scene = Scene(0, labels_of(boxes, classes, crowd), rows, NONE)
        found = scene.found()
        assert [each.number for each in found] == np.flatnonzero(~crowd).tolist()
        for each in found:
            expected = slow_evidence(boxes, classes, crowd, rows, each.number)
            it = each.evidence
            got = (it.own, it.other, it.match, it.twin)
            np.testing.assert_allclose(got, expected, atol=1e-5)
        for each in scene.unlabelled():
            covers = [overlap(each.box, boxes[i]) for i in np.flatnonzero(~crowd)]
            assert max(covers, default=0) < 0.5 + 1e-6
            assert each.box[3] > each.box[1]


def made_review(names, seed=0, images=48):
    """Items with wrong labels, detections of what is really there, and what is wrong: by kind
    (image, label)."""
    rng = np.random.default_rng(seed)
    items = []
    predictions = []
    wrong = {}
    kinds = ["missing", "badly_placed", "no_object", "duplicate"]
    if len(names) > 1:
        kinds.append("wrong_class")
    for image in range(images):
        corners = np.array([(10, 10), (110, 10), (10, 110), (110, 110)])[: rng.integers(2, 5)]
        true = np.concatenate((corners, corners + rng.uniform(40, 80, corners.shape)), 1)
        classes = rng.integers(0, len(names), len(true))
        boxes = true.copy()
        given = classes.copy()
        rows = np.column_stack(
            (true + rng.normal(0, 1.5, true.shape), rng.uniform(0.6, 0.95, len(true)), classes)
        )
        if image % 6 == 0:
            kind = kinds[image // 6 % len(kinds)]
            label = 0
            if kind == "missing":
                boxes = boxes[1:]
                given = given[1:]
                label = None
            elif kind == "badly_placed":
                boxes[0] += (14, 0, 14, 0)
            elif kind == "no_object":
                rows = rows[1:]
            elif kind == "duplicate":
                boxes = np.concatenate((boxes, boxes[:1] + 4))
                given = np.append(given, given[0])
                label = len(boxes) - 1
            else:
                given[0] = (given[0] + 1) % len(names)
            wrong[image] = (kind, label)
        items.append(item(f"{image:03}", labels_of(boxes, given)))
        predictions.append(rows[np.argsort(-rows[:, 4])].astype(np.float32))
    return items, predictions, wrong


def suspects_of(items, predictions, names=NAMES):
    return find_suspects(items, predictions, np.arange(len(items)) % 3, names)[:2]


@pytest.mark.parametrize("names", [NAMES, NAMES[:1]])
def test_the_wrong_labels_come_first(names):
    items, predictions, wrong = made_review(names)
    images, suspects = suspects_of(items, predictions, names)
    assert [each.id for each in suspects] == list(range(len(suspects)))
    found = {}
    for each in suspects[: 2 * len(wrong)]:
        image = int(images[each.image].file)
        if image not in wrong:
            continue
        kind, label = wrong[image]
        assert each.kind == kind
        assert each.label == label or kind == "duplicate"
        found[image] = each
        true = predictions[image]
        if kind in ("no_object", "duplicate"):
            assert each.suggestion is None
        else:
            near = [overlap(each.suggestion.box, row[:4]) for row in true]
            assert max(near) > 0.8
            assert each.suggestion.class_index == true[int(np.argmax(near)), 5]
    assert found.keys() == wrong.keys()


def test_crowds_and_left_out_objects_excuse():
    """No label of a crowd is a suspect; no object is missing there, nor where one was left out."""
    items, predictions, _ = made_review(NAMES)
    row = [[60, 60, 90, 90, 0.95, 0]]
    for image, ignored in ((1, False), (2, True)):
        labels = items[image].labels
        rows = np.array(row, np.float32)
        region = np.array([[50.0, 50, 100, 100]])
        if ignored:
            items[image] = items[image]._replace(ignored=region)
        else:
            boxes = np.concatenate((labels.boxes, region))
            crowd = [False] * len(labels.boxes) + [True]
            more = labels_of(boxes, [*labels.classes, 0], crowd)
            items[image] = item(items[image].file, more)
        predictions[image] = np.concatenate((rows, predictions[image]))
    images, suspects = suspects_of(items, predictions)
    for each in suspects:
        if images[each.image].file in ("001", "002"):
            assert overlap(each.box, row[0][:4]) == 0
            assert each.label is None or not images[each.image].labels[each.label].crowd


def test_evidence_counts_by_what_is_usual_for_the_class():
    """The boxes of dogs never fit those that are detected; one of a cat that fits as badly is more
    suspicious."""
    rng = np.random.default_rng(0)
    items = []
    predictions = []
    for image in range(30):
        boxes = np.array([[10.0, 10, 70, 70], [110, 110, 170, 170]]) + rng.uniform(-5, 5, 4)
        rows = np.column_stack((boxes + rng.normal(0, 1.5, (2, 4)), [0.9, 0.9], [0, 1]))
        rows[1 if image else slice(2), :4] += (14, 0, 14, 0)
        items.append(item(f"{image:03}", labels_of(boxes, [0, 1])))
        predictions.append(rows.astype(np.float32))
    images, suspects = suspects_of(items, predictions, NAMES[:2])
    first, *others = suspects
    assert (images[first.image].file, first.label, first.kind) == ("000", 0, "badly_placed")
    for other in others:
        assert first.probability > 2 * other.probability


def test_nothing_to_review():
    nothing = [item(name, labels_of([], [])) for name in "ab"]
    rows = [np.zeros((0, 6), np.float32)] * 2
    assert suspects_of(nothing, rows)[1] == []


def test_a_fold_holds_the_labels(tmp_path):
    as_coco(tmp_path / "set")
    file = DatasetFile.read(str(tmp_path / "set"))
    datasets, _ = open_splits(file)
    items = images_of(datasets)
    fold_of = assign_folds([each.file for each in items], 2)
    assert sorted(np.bincount(fold_of)) == [1, 2]
    held_out = {items[i].file for i in np.flatnonzero(fold_of == 0)}
    data = write_fold(tmp_path / "fold", items, fold_of == 0, file.names)
    found = {}
    for split, dataset in open_splits(DatasetFile.read(str(data)))[0].items():
        assert dataset.names == file.names
        for path, labels in zip(dataset.files, dataset.labels, strict=True):
            found[path] = labels
            assert (split == "val") == (path in held_out)
    assert found.keys() == {each.file for each in items}
    for each in items:
        np.testing.assert_allclose(found[each.file].boxes, each.labels.boxes, atol=1e-4)
        assert (found[each.file].classes == each.labels.classes).all()
        for place, index in zip(each.places, each.labels.classes, strict=True):
            assert place.endswith(f" ({file.names[index]})")


def test_near_copies_are_in_one_fold(small_data, tmp_path):
    datasets, _ = open_splits(DatasetFile.read(str(small_data)))
    items = images_of(datasets)
    files = [each.file for each in items]
    fold_of = assign_folds(files + files[:6], 3)
    assert (fold_of[-6:] == fold_of[:6]).all()
    assert np.ptp(np.bincount(fold_of)) <= 2
    same_name = [str(tmp_path / str(i) / "rgb.png") for i in range(len(files))]
    for file, copy in zip(files, same_name, strict=True):
        os.renames(shutil.copy(file, tmp_path), copy)
    assert np.ptp(np.bincount(assign_folds(same_name, 3), minlength=3)) <= 2
