"""Detections in each image by a detector that was not trained on it.

The images are divided into folds; a training on all other images predicts those of a fold.
"""

import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import yaml

from boltbox.detector.commands.doctor.images import near_copies, read_images
from boltbox.detector.commands.doctor.repair import write_coco
from boltbox.detector.commands.evolve.trainings import POLL_INTERVAL, QUIET, Training, stop
from boltbox.detector.commands.review.suspect import ReviewedImage, ReviewedLabel
from boltbox.detector.data.datasets import DetectionDataset
from boltbox.detector.data.inputs.sources import Sources
from boltbox.detector.data.sample import Labels
from boltbox.detector.inference.predictor import Predictor
from boltbox.detector.system.atomic_file import write_atomically
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.rank_zero import progress

CONF = 0.01
MAX_DET = 300
BATCH = 16  # images


class Item(NamedTuple):
    """An image to review.

    Attributes:
        file: absolute path.
        split: train, val or test.
        labels: as training reads them.
        places: of the labels: file, and line or object in it.
        ignored: (k, 4) boxes of objects that training leaves out, like difficult ones.
    """

    file: str
    split: str
    labels: Labels
    places: Sequence[str]
    ignored: np.ndarray

    def reviewed(self) -> ReviewedImage:
        """The image as review.json has it."""
        labels = []
        for k, place in enumerate(self.places):
            x1, y1, x2, y2 = self.labels.boxes[k].tolist()
            crowd = bool(self.labels.crowd[k])
            kind = int(self.labels.classes[k])
            labels.append(ReviewedLabel((x1, y1, x2, y2), kind, crowd, place))
        size = (self.labels.width, self.labels.height)
        return ReviewedImage(self.file, self.split, *size, self.labels.digest(), labels)


def items_of(datasets: Mapping[str, DetectionDataset]) -> list[Item]:
    """The images of a dataset, each once, by file.

    Args:
        datasets: by split.
    """
    items: dict[str, Item] = {}
    for split, dataset in datasets.items():
        ignored: dict[str, list[Sequence[float]]] = defaultdict(list)
        for fault in dataset.faults:
            if fault.box is not None:
                ignored[fault.image].append(fault.box)
        for i, (start, end) in enumerate(pairwise(dataset.labels.starts.tolist())):
            file = dataset.files[i]
            label_file = dataset.label_files[i]
            places = [f"{label_file}, {place}" for place in dataset.places[start:end]]
            left_out = np.array(ignored[file]).reshape(-1, 4)
            items.setdefault(file, Item(file, split, dataset.labels[i], places, left_out))
    return [items[file] for file in sorted(items)]


def assign_folds(items: Sequence[Item], folds: int) -> np.ndarray:
    """Divide images into folds of even size, near copies in one fold, unless there are more than
    fit in. It depends on the names of the files only, not on their order.

    Args:
        items: the images.
        folds: how many.

    Returns:
        (n,) the fold of each image.
    """
    first = list(range(len(items)))  # of the copies of each image
    images = read_images([item.file for item in items])
    for later, earlier in near_copies(images, [""] * len(items)):
        first[later] = first[earlier]
    most = -(-len(items) // folds)
    groups: dict[tuple[str, int], list[int]] = defaultdict(list)
    seen: Counter[int] = Counter()
    for i, k in enumerate(first):
        name = sha256(os.fsencode(Path(items[k].file).name)).hexdigest()
        groups[name, seen[k] // most].append(i)
        seen[k] += 1
    fold_of = np.zeros(len(items), int)
    sizes = np.zeros(folds, int)
    for _, numbers in sorted(groups.items(), key=lambda group: (-len(group[1]), group[0])):
        smallest = sizes.argmin()
        fold_of[numbers] = smallest
        sizes[smallest] += len(numbers)
    return fold_of


class Fold(NamedTuple):
    """Images, and the training that does not see them.

    Attributes:
        files: the images.
        training: in the folder `fit` of the fold.
        predictions: the last file that is written.
    """

    files: Sequence[str]
    training: Training
    predictions: Path


def make_fold(
    folder: Path,
    fit: Sequence[str],
    items: Sequence[Item],
    is_held_out: np.ndarray,
    names: Sequence[str],
) -> Fold:
    """Write the dataset of a training; it validates on the images that it does not see.

    Args:
        folder: of the fold.
        fit: command line of all folds.
        items: all images.
        is_held_out: (n,) which of them are those of the fold.
        names: class names.
    """
    content: dict[str, Any] = {"names": list(names)}
    files: dict[str, str] = {}
    for split, chosen in (("train", ~is_held_out), ("val", is_held_out)):
        images = [(items[i].file, items[i].labels) for i in np.flatnonzero(chosen).tolist()]
        files = {file: file for file, _ in images}
        content[split] = f"{split}.json"
        write_coco(folder / content[split], images, files, names)
    data = folder / "data.yaml"
    write_atomically(data, yaml.safe_dump(content, allow_unicode=True))
    run = folder / "fit"
    line = [*fit, "--data.dataset", str(data), *QUIET.split(), "--run", str(run)]
    return Fold(list(files), Training(line, run, {}), folder / "predictions.json")


def train_folds(
    folds: Sequence[Fold], workers: Sequence[Mapping[str, str]], on_end: Callable[[Fold], None]
) -> None:
    """Train the folds. If an exception ends it, each training saves a checkpoint.

    Args:
        folds: those that are not done.
        workers: environment variables of each worker.
        on_end: called with each fold whose training has ended.

    Raises:
        InputError: a training failed.
    """
    waiting = list(folds)
    running: list[Fold] = []
    free = list(workers)
    try:
        while waiting or running:
            if waiting and free:
                running.append(waiting.pop(0))
                running[-1].training.environment = free.pop()
                running[-1].training.start()
                continue
            time.sleep(POLL_INTERVAL)
            for fold in list(running):
                training = fold.training
                outcome = training.poll()
                if outcome and outcome.fitness is None:
                    raise InputError(f"{training.run}: the training failed: {outcome.reason}")
                if outcome:
                    running.remove(fold)
                    free.append(training.environment)
                    on_end(fold)
    finally:
        stop([fold.training for fold in running])


def predict(
    path: str, files: Sequence[str], device: torch.device, workers: int, names: Sequence[str]
) -> list[np.ndarray]:
    """Detections of low confidence; a box may be one of several classes.

    Args:
        path: run folder or checkpoint of the detector.
        files: images.
        device: of the network.
        workers: processes that read images.
        names: class names of the dataset.

    Returns:
        Of each image (m, 6) float32: x1, y1, x2, y2 in pixels of its file, score, class; best
        first. None of an image that cannot be read.
    """
    predictor = Predictor.load(path, device=device, conf=CONF, multi_label=True, max_det=MAX_DET)
    predictor.rename(names)
    batches = Sources(list(files), []).batches(predictor.inputs(), BATCH, workers)
    found = [np.zeros((0, 6), np.float32)] * len(files)
    total = -(-len(files) // BATCH)
    for batch, rows in progress(predictor.predict_batches(batches, BATCH), "predicting", total):
        for index, of_image in zip(batch.indices, rows, strict=True):
            found[index] = of_image
    return found


def keep(path: Path, text: str) -> None:
    """Write a file, once.

    Args:
        path: the file.
        text: its content.

    Raises:
        InputError: it is there with another content.
    """
    if not path.is_file():
        write_atomically(path, text)
    elif path.read_text() != text:
        raise InputError(
            f"{path}: this review was begun with other options, images or labels. Give another"
            " --run"
        )
