"""How many wrong labels `review` finds, and what it brings to mend them.

    python -m benchmarks.review find pets runs/pets_15 --rate 0.15 --options "--trainer.max_epochs 25"
    python -m benchmarks.review mend pets runs/pets_15 --rate 0.15 --options "--trainer.max_epochs 25"

The labels of train are spoilt by seed as people err. `find` reviews them and prints average
precision over the errors, and the share of N errors among the first N and 2N suspects. `mend`
prints the AP on val, which is never spoilt, of trainings on the spoilt labels, after as many looks
as there are errors at random places and at suspects, and on the clean labels. A look at an error
mends it. A repeated command continues.
"""

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from jsonargparse import auto_cli

from benchmarks.tables import print_header, print_row
from boltbox.detector.commands.doctor.repair import write_dataset
from boltbox.detector.data.dataset_file import DatasetFile
from boltbox.detector.data.datasets import DetectionDataset
from boltbox.detector.data.sample import Labels
from boltbox.detector.model.boxes import clip_xyxy, iou_xyxy
from boltbox.detector.system.addresses import absolute

KINDS = {
    "badly_placed": 0.45, "missing": 0.25, "wrong_class": 0.15, "no_object": 0.1, "duplicate": 0.05
}  # fmt: skip
ALIKE = {"badly_placed", "missing", "no_object", "duplicate"}  # one may be found as another


class Place(NamedTuple):
    """Where a label is, or should be. A label is (5,): class, xyxy.

    Attributes:
        image: Its number.
        given: The label in the spoilt dataset; None: it is missing.
        right: The right label; None: there is nothing to label.
        error: One of KINDS; "": the label is right.
    """

    image: int
    given: np.ndarray | None
    right: np.ndarray | None
    error: str = ""


def shifted(box: np.ndarray, size: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The box moved, or with other edges, to an IoU of 0.35 to 0.72; small shifts are the most
    frequent."""
    side = np.tile(box[2:] - box[:2], 2)
    goal = 0.72 - 0.37 * (1 - np.sqrt(1 - rng.random()))
    while True:
        moves = rng.normal(0, 0.35, 4) * (rng.random(4) < 0.6)
        if rng.random() < 0.5:
            moves[2:] = moves[:2]
        new = clip_xyxy(box + moves * side, *size)
        if (new[2:] - new[:2] > 0.2 * side[:2]).all() and abs(iou_xyxy(box, new) - goal) < 0.05:
            return new


def spoil(images: list[Labels], classes: int, rate: float, rng: np.random.Generator) -> list[Place]:
    """Spoil a share of the labels.

    Args:
        images: Labels of each image.
        classes: Number of classes.
        rate: Share of the labels.
        rng: Of the errors.
    """
    places: list[Place] = []
    for i, labels in enumerate(images):
        for label in np.column_stack((labels.classes, labels.boxes)):
            places.append(Place(i, label, label))
    spoilt = rng.permutation(len(places))[: round(rate * len(places))].tolist()
    shares = np.array([share * (classes > 1 or k != "wrong_class") for k, share in KINDS.items()])
    errors = rng.choice(list(KINDS), len(spoilt), p=shares / shares.sum()).tolist()
    for k, error in zip(spoilt, errors, strict=True):
        image, _, right, _ = places[k]
        assert right is not None
        given = right.copy()
        size = np.array((images[image].width, images[image].height), float)
        side = right[3:] - right[1:3]
        if error == "wrong_class":
            given[0] = rng.choice([n for n in (right[0] - 1, right[0] + 1) if 0 <= n < classes])
        elif error == "badly_placed":
            given[1:] = shifted(right[1:], size, rng)
        elif error == "duplicate":
            given[1:] = clip_xyxy(right[1:] + rng.normal(0, 0.05, 4) * np.tile(side, 2), *size)
        elif error == "no_object":
            low = rng.random(2) * (size - side).clip(0)
            given[1:] = np.concatenate((low, low + side))
            others = [label for number, label, *_ in places if number == image]
            if any(other is not None and iou_xyxy(given[1:], other[1:]) >= 0.1 for other in others):
                continue
        if error in ("duplicate", "no_object"):
            places.append(Place(image, given, None, error))
        else:
            places[k] = Place(image, None if error == "missing" else given, right, error)
    return places


def changed(
    dataset: DetectionDataset, things: list[tuple[int, np.ndarray]]
) -> list[tuple[str, Labels]]:
    """Paths and labels of the images of a dataset, with other labels.

    Args:
        dataset: Of the images.
        things: The number of its image, and the label.
    """
    images = []
    for i, labels in enumerate(dataset.labels):
        own = [label for image, label in things if image == i]
        n = len(own)
        rows = np.reshape(own, (n, 5))
        boxes = rows[:, 1:].astype(np.float32)
        classes = rows[:, 0].astype(np.int64)
        area = np.full(n, np.inf, np.float32)
        crowd = np.zeros(n, bool)
        new = Labels(boxes, classes, [[]] * n, crowd, area, labels.height, labels.width)
        images.append((dataset.files[i], new))
    return images


def ranking(review: Path, files: list[str], places: list[Place]) -> list[int]:
    """Of each suspect the number of the place whose error it finds, -1: none; without those that
    find one again."""
    content = json.loads(review.read_text())
    ranks: list[int] = []
    for suspect in content["suspects"]:
        image = files.index(content["images"][suspect["image"]]["file"])
        kind = suspect["kind"]
        hits = []
        for number, place in enumerate(places):
            label = place.right if place.given is None else place.given
            if place.image != image or not place.error or label is None:
                continue
            is_alike = place.error == kind or {place.error, kind} <= ALIKE
            if is_alike and iou_xyxy(np.array(suspect["box"]), label[1:]) > 0.3:
                hits.append((place.error != kind, number))
        new = [number for _, number in sorted(hits) if number not in ranks]
        if not hits:
            ranks.append(-1)
        elif new:
            ranks.append(new[0])
    return ranks


def run(command: str, data: Path, folder: Path, options: str) -> None:
    """A command of boltbox in a run folder."""
    line = [sys.executable, "-m", "boltbox", command, "--data.dataset", str(data)]
    subprocess.run([*line, *shlex.split(options), "--run", str(folder)], check=True)


def main(
    part: Literal["find", "mend"],
    dataset: str,
    folder: Path,
    rate: float = 0.15,
    seed: int = 0,
    options: str = "",
) -> None:
    """Spoil the labels of train and review them.

    Args:
        part: What to print.
        dataset: As for data.dataset.
        folder: For all that is written.
        rate: Share of the labels that is spoilt.
        seed: Of the errors.
        options: Of `fit`.
    """
    file = DatasetFile.read(dataset, needs_val=True)
    file.prepare()
    train = file.open("train")
    rng = np.random.default_rng(seed)
    places = spoil(list(train.labels), len(file.names), rate, rng)
    given = [(image, label) for image, label, *_ in places if label is not None]
    spoilt = changed(train, given)
    review = write_dataset(folder / "spoilt", {"train": spoilt}, file.names)
    run("review", review, folder / "review", options)
    files = [str(absolute(path)) for path in train.files]
    ranks = ranking(folder / "review/review.json", files, places)
    errors = {number for number, place in enumerate(places) if place.error}
    n = len(errors)
    if part == "find":
        hits = np.array(ranks) >= 0
        precision = hits.cumsum() / np.arange(1, len(hits) + 1)
        shares = (hits @ precision, hits[:n].sum(), hits[: 2 * n].sum())
        print_header("labels", "errors", "AP", "in the first N", "2N")
        print_row(len(given), n, *(f"{share / n:.3f}" for share in shares))
        return
    looks = {
        "spoilt": set(),
        "random": set(rng.permutation(len(places))[:n].tolist()),
        "suspects": set(ranks[:n]),
        "clean": errors,
    }
    val = file.open("val")
    validated = list(zip(val.files, val.labels, strict=True))
    print_header("looks", "errors mended", "AP")
    for name, seen in looks.items():
        things = []
        for number, place in enumerate(places):
            label = place.right if number in seen else place.given
            if label is not None:
                things.append((place.image, label))
        splits = {"train": changed(train, things), "val": validated}
        mended = write_dataset(folder / name, splits, file.names)
        run("fit", mended, folder / f"fit_{name}", f"{options} --ckpt_path auto")
        metrics = json.loads((folder / f"fit_{name}/metrics.json").read_text())
        print_row(name, f"{len(seen & errors)} of {n}", f"{metrics['coco/AP']:.3f}")


if __name__ == "__main__":
    auto_cli(main)
