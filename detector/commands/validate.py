"""The commands `validate` and `test`."""

from collections.abc import Sequence
from pathlib import Path

import lightning as L
import torch

from boltbox.detector.data.class_names import check_same_names
from boltbox.detector.inference.exported import Exported
from boltbox.detector.inference.formats import load_member
from boltbox.detector.model.network import YOLOv5
from boltbox.detector.system.ranges import ClosedUnitInterval, PositiveInt
from boltbox.detector.system.rank_zero import print_fact
from boltbox.detector.training.module import Detector


def validate(
    trainer: L.Trainer,
    model: Detector,
    datamodule: L.LightningDataModule,
    command: str,
    ckpt_path: str | None = None,
    conf: ClosedUnitInterval = 0.001,
    iou: ClosedUnitInterval = 0.6,
    max_det: PositiveInt = 300,
    agnostic: bool = False,
    tta: bool = False,
    ensemble: list[str] | None = None,
) -> None:
    """Metrics of a trained detector.

    Args:
        command: validate: on the val split; test: on the test split.
        ckpt_path: last, best (both of the most recent fit, or of --run), a run folder (its
            best), a checkpoint, YOLOv5's published weights (.pt), or an exported file; default
            of the command: best.
        conf: Minimum confidence of a detection.
        iou: Overlap above which the less confident of two detections of a class is dropped.
        max_det: Maximum detections per image.
        agnostic: Suppress across classes.
        tta: Predict three times on each image, at several sizes and mirrored.
        ensemble: Further files like ckpt_path that predict too, with the same classes.
    """
    if conf > 0.001:
        print_fact("warning", f"--conf {conf:g}: mAP and coco/AP are comparable only at 0.001")
    model.evaluation.configure(
        ensemble=load_ensemble(ensemble if ensemble else (), model.names),
        conf=conf,
        iou=iou,
        max_det=max_det,
        agnostic=agnostic,
        tta=tta,
    )
    evaluate = trainer.test if command == "test" else trainer.validate
    evaluate(model, ckpt_path=ckpt_path, verbose=False, datamodule=datamodule)


def load_ensemble(files: Sequence[str | Path], names: Sequence[str]) -> list[YOLOv5 | Exported]:
    """Networks or exported files to evaluate together with another one.

    Args:
        files: See `Predictor.load`.
        names: Classes of the other one.

    Raises:
        InputError: There is no such file, it is no detector, or has other classes.
    """
    members = []
    for file in files:
        loaded, member = load_member(file, torch.device("cpu"))
        check_same_names(loaded.names, names, file)
        print_fact("ensemble", loaded.path)
        members.append(member)
    return members
