"""A learning rate by a range test (Smith 2017, arXiv 1506.01186), which Lightning's Tuner runs."""

from __future__ import annotations

from typing import Any

import lightning as L
import numpy as np
from lightning.pytorch.tuner import Tuner

from boltbox.detector.system.ranges import PositiveInt, check_arguments
from boltbox.detector.training.module import Detector

BETA = 0.98  # of the moving average of the loss that Lightning records
WIDTH = 9  # steps over which the loss is averaged instead


def find_lr(
    trainer: L.Trainer, detector: Detector, steps: PositiveInt = 100, **data: Any
) -> float | None:
    """Find a learning rate and train with it from now on (`detector.lr`). The weights stay.

    The test makes a step with each of `steps` rates, from a hundredth of the detector's to a
    hundred times as much. The loss is lowest a bit below the rate at which training diverges; a
    tenth of that rate is the usual choice.

    Args:
        trainer: Runs the test.
        detector: What is trained.
        steps: Number of rates, of which max_epochs must hold as many steps.
        data: As for `trainer.fit`: datamodule=..., or train_dataloaders=...

    Returns:
        The rate; None, and the detector keeps its own, if the loss has no minimum in this range.
    """
    check_arguments(find_lr, {"steps": steps})
    first = trainer.global_step + 2  # what Lightning's average is corrected by
    finder = Tuner(trainer).lr_find(
        detector,
        min_lr=detector.lr / 100,
        max_lr=detector.lr * 100,
        num_training=steps,
        early_stop_threshold=None,
        update_attr=False,
        **data,
    )
    assert finder is not None
    rates = finder.results["lr"]
    smoothed = np.array(finder.results["loss"])
    average = smoothed * (1 - BETA ** (first + np.arange(len(smoothed))))
    previous = np.concatenate(([0.0], average[:-1]))
    losses = (average - BETA * previous) / (1 - BETA)
    losses = losses[np.logical_and.accumulate(np.isfinite(losses))]
    if len(losses) < 2 * WIDTH:
        return None
    means = np.convolve(losses, np.full(WIDTH, 1 / WIDTH), "valid")
    k = int(means.argmin())
    if k in (0, len(means) - 1):
        return None
    detector.lr = round(float(rates[k + WIDTH // 2]) / 10, 10)
    return detector.lr
