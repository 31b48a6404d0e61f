"""The progress bar."""

import resource
import sys
import time
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import ProgressBar
from lightning.pytorch.trainer.states import TrainerFn

from boltbox.detector.data.sample import Batch
from boltbox.detector.model.loss_sums import LossSums
from boltbox.detector.report.progress_line import LastLine, Pace, loss_label
from boltbox.detector.system.rank_zero import rank_zero_print

# of signs of life: seconds in between, part of the epoch in between; seconds at most
QUIET, SHARE, MOST = 60.0, 0.05, 600.0


class Progress(ProgressBar):
    """The epoch at work on the last line of the terminal: how far it is, how long it will take,
    running means of the losses, and as far as there is room: share of the time spent waiting for
    data, peak memory, instances and image size of the last batch. Where nobody watches (a log file)
    a line every minute or 5 % of a long epoch.

    Only the first process shows anything. The figures of an epoch are EpochLines'.
    """

    def __init__(self) -> None:
        super().__init__()
        self.is_enabled = True
        self._watched, self._line = LastLine.possible(), LastLine()
        # None until the first batch of this epoch: it may be resumed within
        self._training: Pace | None = None
        self._other: Pace | None = None  # a validation, test, prediction
        self._losses = LossSums.empty()
        self._instances = 0
        self._size = ""
        self._waited = self._worked = 0.0
        self._ready = self._done = 0.0
        # when the last sign of life was given, and at which part of the pass
        self._told, self._told_share = 0.0, 0.0

    def disable(self) -> None:
        self.is_enabled = False

    def enable(self) -> None:
        self.is_enabled = True

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        if not trainer.is_global_zero:
            self.disable()

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """A run that is resumed within an epoch does not come by on_train_epoch_start."""
        self._begin()

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._begin()

    def _begin(self) -> None:
        self._training, self._losses = None, LossSums.empty()
        self._waited = self._worked = 0.0
        self._done = self._told = time.perf_counter()

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._ready = time.perf_counter()
        if self._training is None:
            label = f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}"
            self._training = Pace(label, trainer.num_training_batches, batch_idx)
            self._told_share = batch_idx / trainer.num_training_batches
            self._show(self._training)

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Batch,
        batch_idx: int,
    ) -> None:
        assert self._training is not None
        now = time.perf_counter()
        self._waited, self._worked = (
            self._waited + self._ready - self._done,
            self._worked + now - self._ready,
        )
        self._training.add(now - self._done)
        self._done = now
        self._losses = self._losses.add(outputs["parts"])
        self._instances = len(batch.targets)
        height, width = batch.images.shape[2:]
        self._size = str(width) if width == height else f"{width}x{height}"
        self._show(self._training)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._line.clear()

    def _start_other(self, trainer: L.Trainer, name: str, batches: Any) -> None:
        total = sum(batches) if isinstance(batches, list) else batches
        trains = trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking
        label = (
            f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}, {name}" if trains else name
        )
        self._other, self._told_share = Pace(label, total), 0.0
        self._done = time.perf_counter()
        if not trains:
            self._told = self._done
        self._show(self._other)

    def _next_other(self, trainer: L.Trainer, *_: Any) -> None:
        assert self._other is not None
        now = time.perf_counter()
        self._other.add(now - self._done)
        self._done = now
        self._show(self._other)

    def _end_other(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """The training goes on, or prints what came out."""
        self._other = None
        self._line.clear()
        self._done = time.perf_counter()  # what the training did not wait for
        self._told_share = self._share(self._training) if self._training else 0.0

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        batches = (
            trainer.num_sanity_val_batches if trainer.sanity_checking else trainer.num_val_batches
        )
        self._start_other(trainer, "validation", batches)

    def on_test_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._start_other(trainer, "test", trainer.num_test_batches)

    def on_predict_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._start_other(trainer, "predict", trainer.num_predict_batches)

    on_validation_batch_end = on_test_batch_end = on_predict_batch_end = _next_other  # type: ignore[assignment]
    on_validation_end = on_test_end = on_predict_end = _end_other

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        self._line.clear()

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        self._line.clear()

    def print(self, *args: Any, **kwargs: Any) -> None:
        """What a module's `print` calls."""
        self._line.clear()
        print(*args, **kwargs)

    def _show(self, pace: Pace) -> None:
        if not self.is_enabled:
            return
        if self._watched:
            last = pace.done == pace.total
            if pace.done == 0 or last or self._line.due():
                computes = last and pace is self._other and not self.trainer.predicting
                self._line.draw(pace, ["computing the figures"] if computes else self._notes())
            return
        now, share = time.perf_counter(), self._share(pace)
        long = now - self._told > QUIET and share - self._told_share >= SHARE
        if pace.done < pace.total and (long or now - self._told > MOST):
            self._told, self._told_share = now, share
            parts = [f"{pace.count} batches", pace.left, *self._notes()]
            rank_zero_print(f"{pace.label}: {', '.join(part for part in parts if part)}")

    @staticmethod
    def _share(pace: Pace) -> float:
        """The part that is done; 0 of a stream, of which nobody knows how long it is."""
        return pace.done / pace.total if pace.total else 1.0

    def _notes(self) -> list[str]:
        """By importance."""
        if self._other is not None or not self._losses.names:
            return []
        means = self._losses._replace(sums=self._losses.sums.cpu()).means()  # waits for the device
        losses = " ".join(
            f"{loss_label(name)} {f'{float(mean):.4f}'.lstrip('0')}" for name, mean in means.items()
        )
        waits = self._waited / max(self._waited + self._worked, 1e-9)
        return [
            losses,
            f"wait {waits:.0%}",
            f"mem {_memory()}",
            f"{self._instances} instances",
            f"size {self._size}",
        ]


def _memory() -> str:
    """Peak memory: of the GPU if there is one, else of this process."""
    if torch.cuda.is_available():
        return f"{torch.cuda.max_memory_reserved() / 2**30:.1f}G"
    unit = 2**30 if sys.platform == "darwin" else 2**20
    return f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit:.1f}G"
