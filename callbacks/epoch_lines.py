"""What a training says of itself: what it runs on, a line an epoch, and how to go on when it was
stopped."""

import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.trainer.states import TrainerFn

from boltbox.callbacks.early_stop import EarlyStop
from boltbox.detector.checkpoint.atomic_io import wait_for_checkpoint
from boltbox.detector.report.progress_line import duration, loss_label
from boltbox.detector.system.rank_zero import rank_zero_print
from boltbox.detector.training.module import Detector

LOSS_WIDTH = 6  # of a column, at least; the first one is as wide as the number of epochs needs
WIDTHS = {"P": 5, "R": 5, "mAP50": 5, "mAP50-95": 8, "time": 6, "left": 6, "best": 9}
METRICS = ("P", "R", "mAP50", "mAP50-95")
EVERY = 20  # epochs under one heading
STOPS = (129, 130, 143)  # exit codes of SIGHUP, Ctrl-C, SIGTERM


class EpochLines(L.Callback):
    """First device, precision, folder of the run, images, and whether it is new. Then a line an
    epoch: the means of the losses and the metrics of the validation, as in metrics.csv; the seconds
    it took, how long the rest will take, and mAP50-95 and number of the best epoch by fitness. With
    YOLOv5's three losses at most 79 columns wide. After Ctrl-C and the like: how to go on.

    Args:
        go_on: command, or line of Python, that continues the run from its last checkpoint.
    """

    def __init__(self, go_on: str = "") -> None:
        self.go_on = go_on
        self.best: dict[str, float] = {}  # epoch, fitness, mAP50-95
        self._origin = "new"
        self._lines = self._finished = 0
        self._started = time.perf_counter()  # this epoch
        # of it, the part that this process trains; None before its first batch
        self._share: float | None = None
        self._validated = False
        # of the last epochs, each as long as a whole one
        self._seconds: deque[float] = deque(maxlen=10)

    def on_load_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        fit_loop = checkpoint["loops"]["fit_loop"]
        epochs, batches = (
            fit_loop["epoch_progress"]["current"],
            fit_loop["epoch_loop.batch_progress"],
        )
        within = epochs["processed"] < epochs["started"] and not batches["is_last_batch"]
        where = f" after batch {batches['current']['processed']}" if within else ""
        self._finished = int(epochs["processed"])
        if self._finished or where:  # else Lightning's Tuner has saved it
            self._origin = f"continued in epoch {self._finished + 1}{where}"

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, Detector)
        data = getattr(getattr(trainer, "datamodule", None), "datasets", {})
        counts = [
            f"{len(data[split])} {word}"
            for split, word in (("train", "training"), ("val", "validation"))
            if split in data
        ]
        images = (
            f"; {' and '.join(counts)} images, {len(pl_module.names)} classes" if counts else ""
        )
        origin = (
            f"finished: all {self._finished} epochs"
            if self._finished >= (trainer.max_epochs or 1)
            else self._origin
        )
        rank_zero_print(
            f"fit on {_device(trainer)}, {trainer.precision}; run folder"
            f" {trainer.default_root_dir}, {origin}{images}"
        )
        self._lines = 0  # a roll-back comes by again

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """A run that is resumed within an epoch does not come by on_train_epoch_start."""
        self._started, self._share, self._validated = time.perf_counter(), None, False

    on_train_epoch_start = on_train_start

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if self._share is None:
            self._share = 1 - batch_idx / trainer.num_training_batches

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.sanity_checking or trainer.state.fn != TrainerFn.FITTING:
            return
        self._validated = True
        metrics = trainer.callback_metrics
        fitness = float(metrics.get("val/fitness", -1))
        if fitness > self.best.get("fitness", -1):
            self.best = {
                "epoch": trainer.current_epoch,
                "fitness": fitness,
                "mAP50-95": float(metrics["val/mAP50-95"]),
            }

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        # after a validation within the epoch the processes have yet to add theirs up
        metrics = trainer.callback_metrics
        seconds = time.perf_counter() - self._started
        self._seconds.append(seconds / (self._share or 1.0))
        self._finished = trainer.current_epoch + 1
        assert isinstance(pl_module, Detector)
        names = pl_module.epoch_losses.names
        if not self._lines % EVERY:
            rank_zero_print(_row(trainer, names, ["epoch", *map(loss_label, names), *WIDTHS]))
        self._lines += 1
        losses = [_loss(metrics.get(f"train/{name}")) for name in names]
        values = [
            _metric(metrics.get(f"val/{name}") if self._validated else None) for name in METRICS
        ]
        best = f"{self.best['mAP50-95']:.3f}@{self.best['epoch'] + 1:.0f}" if self.best else "-"
        epoch = f"{self._finished}/{trainer.max_epochs}"
        rank_zero_print(
            _row(
                trainer,
                names,
                [epoch, *losses, *values, duration(seconds), self._left(trainer), best],
            )
        )

    def _left(self, trainer: L.Trainer) -> str:
        """How long the epochs that are still to come will take, by the last ones; an early stop
        comes as a surprise."""
        epochs = (trainer.max_epochs or 0) - self._finished
        return duration(epochs * sum(self._seconds) / len(self._seconds)) if epochs > 0 else "-"

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        callbacks: list[L.Callback] = trainer.callbacks  # type: ignore[attr-defined]
        early = next((c for c in callbacks if isinstance(c, EarlyStop) and c.stopped_epoch), None)
        if early:
            rank_zero_print(
                f"early stop: no better epoch in the last {early.patience} (early_stop.patience)"
            )
        elif trainer.max_epochs and self._finished < trainer.max_epochs:
            rank_zero_print(
                f"stopped after {self._finished} of {trainer.max_epochs}"
                f" epochs{self._hint(trainer)}"
            )

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        stopped = isinstance(exception, SystemExit) and exception.code in STOPS
        if trainer.state.fn == TrainerFn.FITTING and (
            stopped or isinstance(exception, KeyboardInterrupt)
        ):
            rank_zero_print(
                f"stopped in epoch {min(self._finished + 1, trainer.max_epochs or 1)}/"
                f"{trainer.max_epochs}{self._hint(trainer)}"
            )

    def _hint(self, trainer: L.Trainer) -> str:
        wait_for_checkpoint(trainer)
        if not (Path(trainer.default_root_dir) / "checkpoints" / "last.ckpt").is_file():
            return "; there is no checkpoint yet to go on from: start again"
        return f"; go on with: {self.go_on}" if self.go_on else ""

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best = dict(state_dict["best"])


def _device(trainer: L.Trainer) -> str:
    """`cpu (2 threads)`, `NVIDIA H100`, `4 x NVIDIA H100`."""
    device: torch.device = trainer.strategy.root_device
    threads = torch.get_num_threads()
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    if device.type == "cpu":
        name = f"cpu ({threads} thread{'s' * (threads != 1)})"
    return name if trainer.world_size == 1 else f"{trainer.world_size} x {name}"


def _row(trainer: L.Trainer, losses: Sequence[str], cells: list[str]) -> str:
    of_losses = [max(LOSS_WIDTH, len(loss_label(name))) for name in losses]
    widths = (max(5, 2 * len(str(trainer.max_epochs)) + 1), *of_losses, *WIDTHS.values())
    return " ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))


def _loss(value: Any) -> str:
    return (
        "-"
        if value is None
        else f"{float(value):.4f}"
        if float(value) < 10
        else f"{float(value):.4g}"
    )


def _metric(value: Any) -> str:
    return "-" if value is None else f"{float(value):.3f}"
