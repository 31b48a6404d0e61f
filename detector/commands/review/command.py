"""The command `review`."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import lightning as L
import numpy as np
import yaml
from jsonargparse.typing import PositiveInt

from boltbox.detector.commands.command_line import split_options
from boltbox.detector.commands.doctor.examine import open_splits
from boltbox.detector.commands.evolve.trainings import environments
from boltbox.detector.commands.review.apply import apply_decisions
from boltbox.detector.commands.review.folds import (
    Fold,
    Item,
    assign_folds,
    items_of,
    keep,
    make_fold,
    predict,
    train_folds,
)
from boltbox.detector.commands.review.page import write_page
from boltbox.detector.commands.review.suspect import Review, Source
from boltbox.detector.commands.review.suspects import find_suspects
from boltbox.detector.commands.training_process import FitCommand, refuse_several
from boltbox.detector.data import demo
from boltbox.detector.data.datamodule import DetectionData
from boltbox.detector.data.dataset_file import DatasetFile
from boltbox.detector.report.charts import draw_reliability
from boltbox.detector.report.labelling_tools import Tool, write_boxes
from boltbox.detector.system.addresses import absolute
from boltbox.detector.system.atomic_file import write_atomically
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.rank_zero import print_fact, program, rank_zero_print
from boltbox.detector.system.signals import exit_on_signals


@dataclass(frozen=True)
class Folds:
    """How the trainings of a review divide the images.

    Args:
        folds: Training runs; each predicts the images that it has not seen.
        workers: Simultaneous training runs; default: one per GPU, or one.
    """

    folds: PositiveInt = 3
    workers: PositiveInt | None = None


DEFAULT = Folds()
OF_REVIEW = ("review", "apply", "out", "dry_run", "export", "run", "config")  # no options of fit


def run_review(
    trainer: L.Trainer,
    datamodule: DetectionData,
    fit_command: FitCommand,
    review: Folds = DEFAULT,
    ckpt_path: str | None = None,
    apply: Path | None = None,
    out: Path | None = None,
    dry_run: bool = False,
    export: Tool | None = None,
) -> None:
    """Find labels that are probably wrong, with detectors that were not trained on their images.

    The same command with the folder of the review as --run continues it.

    Args:
        ckpt_path: Train nothing: review the val and test splits with this detector.
        apply: A decisions.json that the page of a review has saved: write a repaired copy of the
            dataset.
        out: Folder for the copy.
        dry_run: Only print what the copy would change.
        export: Also write the labels of the images with suspects for a labelling tool, with the
            missing ones that are probable: label-studio, cvat or coco.
    """
    refuse_several(trainer, "review")
    typed: dict[str, str] = {}
    for option, *values in split_options(fit_command.typed):
        typed[option.removeprefix("--")] = " ".join(values)
    if apply:
        places = (typed.get("data.dataset"), typed.get("data.format"))
        if dry_run:
            out = None
        for line in apply_decisions(apply, out, *places):
            rank_zero_print(line)
        if out:
            print_fact("next", f"{program()} fit --data.dataset {out}")
        return
    options = datamodule.options
    file = datamodule.file
    checkpoint = ckpt_path or typed.get("ckpt_path")
    if not checkpoint:  # without the val split that a training would make
        file = DatasetFile.read(options["dataset"], options["split"], options["format"])
    file.prepare()
    datasets, _ = open_splits(file, datamodule.single_class)
    names = next(iter(datasets.values())).names
    if checkpoint:
        datasets.pop("train", None)
        print_fact("reviewed", f"{', '.join(datasets)}: images that {checkpoint} has not seen")
    items = items_of(datasets)
    if not items:
        raise InputError(f"{file.source}: no image to review. Leave --ckpt_path out")
    with exit_on_signals():
        if checkpoint:
            device = trainer.strategy.root_device
            files = [item.file for item in items]
            rows = predict(checkpoint, files, device, datamodule.workers, names)
            fold_of = np.arange(len(items)) % review.folds  # of the judgement alone
        else:
            fold_of, rows = by_folds(trainer, datamodule, fit_command, review, items, names)
    path = file.root if file.source == demo.NAME else file.source
    source = Source(str(absolute(path)), options["format"], file.share, datamodule.single_class)
    folder = Path(trainer.default_root_dir)
    images, suspects, reliability = find_suspects(items, rows, fold_of, names)
    found = Review(source, list(names), images, suspects)
    found.write(folder)
    draw_reliability(reliability, folder / "reliability.png")
    if export:
        write_boxes(export, found.boxed(), names, folder)
    write_page(folder / "review.html", found)
    for line in found.summary():
        rank_zero_print(line)
    print_fact("page", folder / "review.html")
    print_fact("next", f"{program()} review --apply decisions.json --out DIR")


def by_folds(
    trainer: L.Trainer,
    datamodule: DetectionData,
    fit_command: FitCommand,
    review: Folds,
    items: Sequence[Item],
    names: Sequence[str],
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Train the folds that are not done.

    Returns:
        The fold of each image, and its detections, see `predict`.

    Raises:
        InputError: too few images, a training failed, or the folder is that of another review.
    """
    if not 2 <= review.folds <= len(items):
        raise InputError(
            f"review.folds {review.folds}: {len(items)} images are divided into 2 folds or more"
        )
    folder = Path(trainer.default_root_dir)
    config = dict(fit_command.configuration)
    for name in OF_REVIEW:
        config.pop(name, None)
    config["trainer"] = config["trainer"] | {"default_root_dir": None, "logger": False}
    config["data"] = config["data"] | {"dataset": None, "split": None, "format": None}
    keep(folder / "config.yaml", yaml.safe_dump(config, sort_keys=False))
    fold_of = assign_folds(items, review.folds)
    content = [[item.file, item.labels.digest()] for item in items]
    keep(folder / "images.json", json.dumps([list(names), fold_of.tolist(), content]))
    devices = trainer.num_devices if trainer.strategy.root_device.type == "cuda" else 0
    workers = environments(review.workers, devices, fit_command.named_gpus(trainer))
    fit = [*fit_command.words, "--config", str(folder / "config.yaml")]
    if len(workers) > 1 and datamodule.cache == "auto":
        fit += ["--data.cache", "none"]  # each would take its part of the same memory
    folds = []
    for number in range(review.folds):
        place = folder / "folds" / str(number)
        folds.append(make_fold(place, fit, items, fold_of == number, names))
    left = [fold for fold in folds if not fold.predictions.is_file()]
    print_fact("trainings", f"{len(left)} of {len(folds)}, {len(workers)} at a time")
    print_fact("continue", f"--run {folder}")

    def on_end(fold: Fold) -> None:
        run = str(fold.training.run)
        rows = predict(run, fold.files, trainer.strategy.root_device, datamodule.workers, names)
        content = {file: found.tolist() for file, found in zip(fold.files, rows, strict=True)}
        write_atomically(fold.predictions, json.dumps(content))
        print_fact(f"fold {fold.predictions.parent.name}", f"{len(rows)} images predicted")

    train_folds(left, workers, on_end)
    found: dict[str, list[float]] = {}
    for fold in folds:
        found |= json.loads(fold.predictions.read_text())
    return fold_of, [np.array(found[item.file]).reshape(-1, 6) for item in items]
