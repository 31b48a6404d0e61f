"""The progress bar."""

import resource
import sys
import time
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import TQDMProgressBar

from detector.data.sample import Batch
from detector.say import say


class Progress(TQDMProgressBar):
    """A line an epoch: memory, running means of the three losses, instances and image size of the last batch, the share of the
    time spent waiting for data, and after validation its figures. Where nobody watches (a log file), just the finished line."""

    def __init__(self) -> None:
        super().__init__(leave=True)
        self._watched = sys.stdout.isatty()  # the bar goes there
        if not self._watched:
            self.disable()
        self._losses: torch.Tensor | None = None
        self._batches = self._instances = 0
        self._size = ""
        self._waited = self._worked = 0.0
        self._ready = self._done = 0.0
        self._figures: dict[str, str] = {}

    def on_train_epoch_start(self, trainer: L.Trainer, *args: Any) -> None:
        super().on_train_epoch_start(trainer, *args)
        self._begin(trainer)

    def on_train_start(self, trainer: L.Trainer, *args: Any) -> None:
        """A run that is resumed within an epoch does not come by on_train_epoch_start."""
        super().on_train_start(trainer, *args)
        self._begin(trainer)

    def _begin(self, trainer: L.Trainer) -> None:
        self.train_progress_bar.set_description(self._epoch(trainer))
        self._losses, self._batches, self._figures = None, 0, {}
        self._waited = self._worked = 0.0
        self._done = time.perf_counter()

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int) -> None:
        super().on_train_batch_start(trainer, pl_module, batch, batch_idx)
        self._ready = time.perf_counter()

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        now = time.perf_counter()
        self._waited, self._worked = self._waited + self._ready - self._done, self._worked + now - self._ready
        self._done = now
        parts = outputs["parts"]
        self._losses = parts if self._losses is None else self._losses + parts
        self._batches, self._instances = self._batches + 1, len(batch.targets)
        height, width = batch.images.shape[2:]
        self._size = str(width) if width == height else f"{width}x{height}"
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        figures = {k: trainer.callback_metrics.get(f"val/{k}") for k in ("P", "R", "mAP50", "mAP50-95")}
        self._figures = {k: f"{float(v):.3f}" for k, v in figures.items() if v is not None}
        super().on_validation_end(trainer, pl_module)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        super().on_train_epoch_end(trainer, pl_module)
        if not self._watched:
            figures = ", ".join(f"{k} {v}" for k, v in self.get_metrics(trainer, pl_module).items())
            say(f"{self._epoch(trainer)}: {figures}")

    @staticmethod
    def _epoch(trainer: L.Trainer) -> str:
        return f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}"

    def get_metrics(self, trainer: L.Trainer, pl_module: L.LightningModule) -> dict[str, Any]:
        if self._losses is None:
            return {}
        means = (self._losses / self._batches).tolist()
        return {
            "mem": _memory(),
            **{k: f"{v:.4f}" for k, v in zip(("box", "obj", "cls"), means, strict=True)},
            "instances": self._instances,
            "size": self._size,
            "wait": f"{self._waited / (self._waited + self._worked):.0%}",
            **self._figures,
        }


def _memory() -> str:
    """Peak memory: of the GPU if there is one, else of this process."""
    if torch.cuda.is_available():
        return f"{torch.cuda.max_memory_reserved() / 2**30:.1f}G"
    unit = 2**30 if sys.platform == "darwin" else 2**20
    return f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit:.1f}G"
