"""Lightning's Trainer, for commands that start trainings in processes of their own, and with the
thresholds of validate and test."""

from collections.abc import Callable
from typing import Any

import lightning as L

from boltbox.detector.inference.members import load_ensemble
from boltbox.detector.system.ranges import ClosedUnitInterval, PositiveInt


def _with_thresholds(evaluate: Callable[..., Any]) -> Callable[..., Any]:
    """Lightning's method with options of the Predictor beside its own."""

    def method(
        self: L.Trainer,
        model: Any = None,
        dataloaders: Any = None,
        ckpt_path: str | None = None,
        verbose: bool = False,
        datamodule: L.LightningDataModule | None = None,
        conf: ClosedUnitInterval = 0.001,
        iou: ClosedUnitInterval = 0.6,
        max_det: PositiveInt = 300,
        agnostic: bool = False,
        tta: bool = False,
        ensemble: list[str] | None = None,
    ) -> Any:
        """Metrics of a trained detector.

        Args:
            ckpt_path: last, best (both of the most recent fit, or of --run), a run folder (its
                best), a checkpoint, YOLOv5's published weights (.pt), or an exported file; default
                of the command: best.
            verbose: Lightning's table of metrics besides ours by class.
            conf: Minimum confidence of a detection.
            iou: Overlap above which the less confident of two detections of a class is dropped.
            max_det: Maximum detections per image.
            agnostic: Suppress across classes.
            tta: Predict three times on each image, at several sizes and mirrored.
            ensemble: Further files like ckpt_path that predict too, with the same classes.
        """
        model.prediction = {
            "conf": conf,
            "iou": iou,
            "max_det": max_det,
            "agnostic": agnostic,
            "tta": tta,
        }
        model.others = load_ensemble(ensemble or (), model.names)
        return evaluate(self, model, dataloaders, ckpt_path, verbose, datamodule)

    return method


class Trainer(L.Trainer):
    """A Trainer that knows the command line it was made from.

    Attributes:
        typed: the user's options, as typed after the command.
        train: beginning of a command line that trains; options follow.
        configuration: all options, in groups, as plain values.
    """

    typed: list[str]
    train: list[str]
    configuration: dict[str, Any]

    @property
    def named_gpus(self) -> list[int]:
        """Those that `--trainer.devices 2,3` names; empty where it is a number of GPUs."""
        devices = self.configuration["trainer"]["devices"]
        return self.device_ids if isinstance(devices, list) or "," in str(devices) else []

    validate = _with_thresholds(L.Trainer.validate)
    test = _with_thresholds(L.Trainer.test)
