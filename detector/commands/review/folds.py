"""Detections in each image by a detector that was not trained on it.

The images are divided into folds; a training on all other images predicts those of a fold.
"""

import json
import os
import shlex
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from pathlib import Path

import lightning as L
import numpy as np
import yaml
from jsonargparse.typing import PositiveInt

from boltbox.detector.commands.doctor.images import read_images
from boltbox.detector.commands.doctor.near_duplicates import near_duplicates
from boltbox.detector.commands.doctor.repair import write_dataset
from boltbox.detector.commands.evolve.trainings import Training, shared_options, workers_of
from boltbox.detector.commands.review.suspect import ReviewedImage
from boltbox.detector.commands.training_process import FitCommand
from boltbox.detector.data.datamodule import DetectionData
from boltbox.detector.data.datasets import DetectionDataset
from boltbox.detector.data.inputs.sources import Sources
from boltbox.detector.data.sample import Labels
from boltbox.detector.inference.predictor import Predictor
from boltbox.detector.system.addresses import absolute
from boltbox.detector.system.atomic_file import write_atomically
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.rank_zero import print_fact, progress

CONF = 0.01
MAX_DET = 300
BATCH = 16  # images
PREDICTIONS = "predictions.json"  # of a fold


@dataclass(frozen=True)
class Folds:
    """How the trainings of a review divide the images.

    Args:
        folds: Training runs; each predicts the images that it has not seen.
        workers: Simultaneous training runs; default: one per GPU, or one.
    """

    folds: PositiveInt = 3
    workers: PositiveInt | None = None


def images_of(datasets: Mapping[str, DetectionDataset]) -> list[ReviewedImage]:
    """The images of a dataset, each once, by file.

    Args:
        datasets: by split.
    """
    images: dict[str, ReviewedImage] = {}
    for split, dataset in datasets.items():
        ignored: dict[str, list[Sequence[float]]] = defaultdict(list)
        for fault in dataset.faults:
            if fault.box is not None:
                ignored[fault.image].append(fault.box)
        places = iter(dataset.places)
        for file, label_file, labels in zip(
            dataset.files, dataset.label_files, dataset.labels, strict=True
        ):
            own = [f"{label_file}, {place}" for place in islice(places, len(labels.boxes))]
            left_out = np.array(ignored[file]).reshape(-1, 4)
            images.setdefault(file, ReviewedImage(file, split, labels, own, left_out))
    return [images[file] for file in sorted(images)]


def assign_folds(files: Sequence[str], folds: int) -> np.ndarray:
    """Divide images into folds of even size, near copies in one fold, unless there are more than
    fit in. It depends on the names of the files; of those of one name in several folders, also on
    their order.

    Args:
        files: the images.
        folds: how many.

    Returns:
        (n,) the fold of each image.
    """
    first = list(range(len(files)))  # of the copies of each image
    bits = [image.bits for image in read_images(files)]
    for later, earlier in near_duplicates(bits, [""] * len(files)):
        first[later] = first[earlier]
    copies: dict[int, list[int]] = defaultdict(list)
    for i, k in enumerate(first):
        copies[k].append(i)
    most = -(-len(files) // folds)
    groups = []
    for k, numbers in copies.items():
        name = sha256(os.fsencode(Path(files[k]).name)).hexdigest()
        for start in range(0, len(numbers), most):
            group = numbers[start : start + most]
            groups.append((-len(group), name, k, group))  # the name orders groups of one size
    fold_of = np.zeros(len(files), int)
    sizes = np.zeros(folds, int)
    for *_, group in sorted(groups):
        smallest = sizes.argmin()
        fold_of[group] = smallest
        sizes[smallest] += len(group)
    return fold_of


def write_fold(
    folder: Path, images: Sequence[ReviewedImage], is_held_out: np.ndarray, names: Sequence[str]
) -> Path:
    """Write the dataset of a training; it validates on the images that it does not see.

    Args:
        folder: of the fold.
        images: all of them.
        is_held_out: (n,) which of them are those of the fold.
        names: class names.

    Returns:
        Its data.yaml.
    """
    splits: dict[str, list[tuple[str, Labels]]] = {"train": [], "val": []}
    for image, held_out in zip(images, is_held_out, strict=True):
        file = str(absolute(image.file))
        splits["val" if held_out else "train"].append((file, image.labels))
    return write_dataset(folder, splits, names)


def predict(
    path: str,
    images: Sequence[ReviewedImage],
    trainer: L.Trainer,
    datamodule: DetectionData,
    names: Sequence[str],
) -> list[np.ndarray]:
    """Detections of low confidence; a box may be one of several classes.

    Args:
        path: run folder or checkpoint of the detector.
        images: those to predict.
        trainer: has the device.
        datamodule: has the number of processes that read images.
        names: class names of the dataset.

    Returns:
        Of each image (m, 6) float32: x1, y1, x2, y2 in pixels of its file, score, class; best
        first. None of an image that cannot be read.
    """
    device = trainer.strategy.root_device
    predictor = Predictor.load(path, device=device, conf=CONF, multi_label=True, max_det=MAX_DET)
    predictor.rename(names)
    files = [image.file for image in images]
    batches = Sources(files, []).batches(predictor.inputs(), BATCH, datamodule.workers)
    found = [np.zeros((0, 6), np.float32)] * len(files)
    total = -(-len(files) // BATCH)
    for batch, rows in progress(predictor.predict_batches(batches, BATCH), "predicting", total):
        for index, of_image in zip(batch.indices, rows, strict=True):
            found[index] = of_image
    return found


def predict_by_folds(
    trainer: L.Trainer,
    datamodule: DetectionData,
    fit_command: FitCommand,
    review: Folds,
    images: Sequence[ReviewedImage],
    names: Sequence[str],
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Train the folds that are not done.

    Returns:
        The fold of each image, and its detections, see `predict`.

    Raises:
        InputError: too few images, a training failed, or the folder is that of another review.
    """
    if not 2 <= review.folds <= len(images):
        raise InputError(
            f"review.folds {review.folds}: {len(images)} images are divided into 2 folds or more"
        )
    folder = Path(trainer.default_root_dir)
    config = shared_options(fit_command.configuration)
    config["data"] = config["data"] | {"dataset": None, "split": None, "format": None}
    _keep(folder / "config.yaml", yaml.safe_dump(config, sort_keys=False))
    fold_of = assign_folds([image.file for image in images], review.folds)
    digests = [[image.file, image.labels.digest()] for image in images]
    _keep(folder / "images.json", json.dumps([list(names), fold_of.tolist(), digests]))
    workers = workers_of(trainer, datamodule, fit_command, review.workers)
    places = [folder / "folds" / str(number) for number in range(review.folds)]
    trainings = []
    for number, place in enumerate(places):
        if not (place / PREDICTIONS).is_file():
            data = write_fold(place, images, fold_of == number, names)
            line = [*workers.fit, "--data.dataset", str(data)]
            trainings.append(Training(number, line, place / "fit"))
    todo = f"{len(trainings)} of {len(places)} to do"
    print_fact("trainings", f"{todo}, {len(workers.free)} at a time")
    print_fact("progress", folder / "folds" / "*" / "fit" / "log.txt")
    print_fact("continue", f"--run {shlex.quote(str(folder))}")
    with workers:
        for training in workers.train(trainings):
            number = training.number
            unseen = [images[i] for i in np.flatnonzero(fold_of == number).tolist()]
            rows = predict(str(training.run), unseen, trainer, datamodule, names)
            content = {}
            for image, of_image in zip(unseen, rows, strict=True):
                content[image.file] = of_image.tolist()
            write_atomically(places[number] / PREDICTIONS, json.dumps(content))
            print_fact(f"fold {number}", f"{len(rows)} images predicted")
    found: dict[str, list[float]] = {}
    for place in places:
        found |= json.loads((place / PREDICTIONS).read_text())
    return fold_of, [np.array(found[image.file]).reshape(-1, 6) for image in images]


def _keep(path: Path, text: str) -> None:
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
