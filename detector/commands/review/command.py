"""The command `review`."""

import shlex
from pathlib import Path

import lightning as L
import numpy as np

from boltbox.detector.commands.doctor.examine import open_splits
from boltbox.detector.commands.review.apply import apply_decisions
from boltbox.detector.commands.review.folds import Folds, images_of, predict, predict_by_folds
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
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.rank_zero import print_fact, program, rank_zero_print
from boltbox.detector.system.signals import exit_on_signals

DEFAULT = Folds()


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
    given = fit_command.options
    if apply:
        if dry_run:
            out = None
        dataset = given.get("data.dataset")
        for line in apply_decisions(apply, out, dataset, given.get("data.format")):
            rank_zero_print(line)
        step = f"review --apply {shlex.quote(str(apply))} --out DIR"
        if out:
            step = f"fit --data.dataset {shlex.quote(str(out))}"
        print_fact("next", f"{program()} {step}")
        return
    if out or dry_run:
        raise InputError("--out and --dry_run are for --apply decisions.json")
    options = datamodule.options
    file = datamodule.file
    checkpoint = ckpt_path or given.get("ckpt_path")
    if not checkpoint:  # without the val split that a training would make
        file = DatasetFile.read(options["dataset"], options["split"], options["format"])
    file.prepare()
    datasets, _ = open_splits(file, datamodule.single_class)
    names = next(iter(datasets.values())).names
    images = images_of(datasets)
    if checkpoint:
        images = [image for image in images if image.split != "train"]
        print_fact("reviewed", f"{len(images)} images that {checkpoint} has not seen")
    if not images:
        raise InputError(f"{file.source}: no image to review. Leave --ckpt_path out")
    with exit_on_signals():
        if checkpoint:
            rows = predict(checkpoint, images, trainer, datamodule, names)
            fold_of = np.arange(len(images)) % review.folds  # of the judgement alone
        else:
            fold_of, rows = predict_by_folds(
                trainer, datamodule, fit_command, review, images, names
            )
    path = file.root if file.source == demo.NAME else file.source
    source = Source(str(absolute(path)), options["format"], file.share, datamodule.single_class)
    folder = Path(trainer.default_root_dir)
    images, suspects, reliability = find_suspects(images, rows, fold_of, names)
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
