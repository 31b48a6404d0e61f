"""The commands `validate` and `test`."""

import lightning as L
import torch

from boltbox.detector.data.class_names import check_same_names
from boltbox.detector.inference.formats import load_member
from boltbox.detector.system.ranges import ClosedUnitInterval, PositiveInt
from boltbox.detector.system.rank_zero import print_fact
from boltbox.detector.training.module import Detector
from boltbox.detector.training.validation import VALIDATION


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

    Raises:
        InputError: A file of the ensemble does not exist, is no detector, or has other classes.
    """
    members = []
    for file in ensemble if ensemble else ():
        loaded, member = load_member(file, torch.device("cpu"))
        check_same_names(loaded.names, model.names, file)
        print_fact("ensemble", loaded.path)
        members.append(member)
    exported = model.evaluation.exported
    if exported and exported.metadata.nms:  # what the file drops cannot count
        conf = max(conf, exported.metadata.nms.conf)
    usual = VALIDATION["conf"]
    if conf > usual:
        print_fact(
            "warning",
            f"detections below {conf:g} are missing: mAP and coco/AP are not comparable with those"
            f" of --conf {usual}",
        )
    model.evaluation.configure(
        ensemble=members,
        conf=conf,
        iou=iou,
        max_det=max_det,
        agnostic=agnostic,
        tta=tta,
    )
    evaluate = trainer.test if command == "test" else trainer.validate
    evaluate(model, ckpt_path=ckpt_path, verbose=False, datamodule=datamodule)
