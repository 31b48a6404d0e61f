"""The progress bar of a training."""

import sys
import time
from typing import Any

import lightning as L
from lightning.pytorch.callbacks.progress.tqdm_progress import Tqdm, TQDMProgressBar

from boltbox.detector.model.loss import mean_losses
from boltbox.detector.training.module import Detector

FORMAT = "{l_bar}{bar}| {n_fmt}/{total_fmt} {remaining}{postfix}"  # fits 80 columns
REFRESH = 0.5  # seconds between two readings of the losses, which wait for the device


class Progress(TQDMProgressBar):
    """Lightning's progress bar with the means of the losses, on terminals and in notebooks."""

    def __init__(self) -> None:
        super().__init__()
        self._read_at = 0.0  # seconds on the monotonic clock
        self._means: dict[str, str] = {}

    def setup(self, trainer: L.Trainer, pl_module: Detector, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        if not sys.stdout.isatty() and "ipykernel" not in type(sys.stdout).__module__:
            self.disable()

    def init_validation_tqdm(self) -> Tqdm:
        """Lightning's, but in the line of the training's bar: of `!python cli.py fit`, a notebook
        shows each drawing of a bar below another one as lines of their own."""
        return Tqdm(
            desc=self.validation_description,
            position=0,
            disable=self.is_disabled,
            leave=self.trainer.state.fn == "validate",
            dynamic_ncols=True,
            file=sys.stdout,
            bar_format=self.BAR_FORMAT,
        )

    def on_train_start(self, trainer: L.Trainer, *_: Any) -> None:
        """In a run that is resumed within an epoch, on_train_epoch_start is not called."""
        super().on_train_start(trainer)
        self.train_progress_bar.leave = False
        self.train_progress_bar.bar_format = FORMAT
        self.on_train_epoch_start(trainer)

    def on_train_epoch_start(self, trainer: L.Trainer, *_: Any) -> None:
        super().on_train_epoch_start(trainer)
        self.train_progress_bar.set_description(
            f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}"
        )

    def get_metrics(self, trainer: L.Trainer, pl_module: Detector) -> dict[str, Any]:
        if time.monotonic() - self._read_at > REFRESH:
            self._means = {}
            for name, mean in mean_losses(pl_module.loss_sums()).items():
                self._means[name.removesuffix("_loss")] = f"{mean:.3f}"
            self._read_at = time.monotonic()
        return dict(self._means)
