"""A learning rate by a range test (Smith 2017, arXiv 1506.01186), which Lightning's Tuner runs."""

from __future__ import annotations

from typing import Any

import lightning as L
import numpy as np
from lightning.pytorch.tuner import Tuner

from boltbox.detector.system.rank_zero import rank_zero_print
from boltbox.detector.training.module import Detector

BETA = 0.98  # of the moving average of the loss that Lightning records
WIDTH = 9  # steps over which the loss is averaged instead
FALL = 0.95  # a lowest loss above this share of the first one is noise


def find_lr(trainer: L.Trainer, detector: Detector, steps: int = 100, **data: Any) -> float | None:
    """Find a learning rate and train with it from now on (`detector.lr`). The weights stay.

    The test makes a step with each of `steps` rates, from a hundredth of the detector's to a
    hundred times as much. The loss is lowest a bit below the rate at which training diverges; a
    tenth of that rate is the usual choice.

    Args:
        trainer: Runs the test.
        detector: What is trained.
        steps: Number of rates.
        data: As for `trainer.fit`: datamodule=..., or train_dataloaders=...

    Returns:
        The rate; None, and the detector keeps its own, if the loss has no minimum in this range.
    """
    lowest = detector.lr / 100
    highest = detector.lr * 100
    steps_before = trainer.global_step
    finder = Tuner(trainer).lr_find(
        detector,
        min_lr=lowest,
        max_lr=highest,
        num_training=steps,
        early_stop_threshold=None,
        update_attr=False,
        **data,
    )
    rate = None
    if finder is not None:  # None: fast_dev_run
        losses = unsmoothed(np.array(finder.results["loss"]), steps_before)
        rate = rate_below_minimum(np.array(finder.results["lr"]), losses)
    if rate is None:
        rank_zero_print(
            f"find_lr: no rate found, lr0 stays {detector.lr:g}: the loss has no minimum between"
            f" {lowest:g} and {highest:g}; try more steps, which max_epochs must hold"
        )
    else:
        detector.lr = rate
        rank_zero_print(f"find_lr: lr0 {rate:g}")
    return rate


def unsmoothed(smoothed: np.ndarray, steps_before: int) -> np.ndarray:
    """(n,) losses of the steps, of the moving average that Lightning records.

    Args:
        smoothed: (n,) with Lightning's correction for the number of steps.
        steps_before: Steps of the Trainer before the search.
    """
    average = smoothed * (1 - BETA ** (steps_before + 2 + np.arange(len(smoothed))))
    previous = np.concatenate(([0.0], average[:-1]))
    return (average - BETA * previous) / (1 - BETA)


def rate_below_minimum(rates: np.ndarray, losses: np.ndarray) -> float | None:
    """A tenth of the rate with the lowest loss; None if the loss does not fall, or is lowest at an
    end.

    Args:
        rates: (n,) rising.
        losses: (n,) of a step with each; not finite once it has diverged.

    >>> rates = np.logspace(-4, 0, 41)
    >>> rate_below_minimum(rates, 5 + np.log10(rates / 0.1) ** 2)
    0.01
    >>> rate_below_minimum(rates, 5 + rates) is None
    True
    """
    losses = losses[np.logical_and.accumulate(np.isfinite(losses))]
    if len(losses) < 2 * WIDTH:
        return None
    means = np.convolve(losses, np.full(WIDTH, 1 / WIDTH), "valid")
    k = int(means.argmin())
    if k in (0, len(means) - 1) or means[k] > FALL * means[0]:
        return None
    return round(float(rates[k + WIDTH // 2]) / 10, 10)
