"""What a training prints: a progress bar, what it runs on, a line an epoch, how to resume it."""

import sys
import time
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import TQDMProgressBar
from lightning.pytorch.trainer.states import TrainerFn
from tqdm import tqdm

from boltbox.detector.checkpoint.writer import wait_for_checkpoint
from boltbox.detector.system.rank_zero import rank_zero_print
from boltbox.detector.training.module import Detector

METRICS = ("P", "R", "mAP50", "mAP50-95")
WIDTHS = {"epoch": 6, "P": 5, "R": 5, "mAP50": 5, "mAP50-95": 8, "time": 7, "ETA": 7, "best": 8}
EVERY = 20  # epochs under one heading
REFRESH = 0.5  # seconds between two readings of the losses, which wait for the device


class Progress(TQDMProgressBar):
    """Lightning's progress bar with the means of the losses, on terminals and in notebooks."""

    def __init__(self) -> None:
        super().__init__()
        self._read_at, self._means = 0.0, dict[str, str]()

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        if not sys.stdout.isatty() and not type(sys.stdout).__module__.startswith("ipykernel"):
            self.disable()

    def on_train_start(self, trainer: L.Trainer, *_: Any) -> None:
        """A run that is resumed within an epoch does not get to on_train_epoch_start."""
        super().on_train_start(trainer)
        self.train_progress_bar.leave = False
        self.on_train_epoch_start(trainer)

    def on_train_epoch_start(self, trainer: L.Trainer, *_: Any) -> None:
        super().on_train_epoch_start(trainer)
        epoch = f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}"
        self.train_progress_bar.set_description(epoch)

    def get_metrics(self, trainer: L.Trainer, pl_module: L.LightningModule) -> dict[str, Any]:
        assert isinstance(pl_module, Detector)
        if time.monotonic() - self._read_at > REFRESH:
            means = pl_module.epoch_losses.means()
            self._means = {_label(name): f"{mean:.4f}" for name, mean in means.items()}
            self._read_at = time.monotonic()
        return dict(self._means)


class EpochLines(L.Callback):
    """At the start device, precision, run folder, number of images, and whether the run is new.
    Then a line an epoch: mean losses and metrics as in metrics.csv, time, ETA, and mAP50-95 and
    number of the best epoch by fitness. After Ctrl-C and the like: how to resume.

    Args:
        resume: command, or line of Python, that continues the run from its last checkpoint.
    """

    def __init__(self, resume: str = "") -> None:
        self.resume = resume
        self.best: dict[str, float] = {}  # epoch, fitness, mAP50-95
        self._lines = 0
        self._started = 0.0  # this epoch
        self._validated = False

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, Detector)
        progress: Any = trainer.fit_loop.epoch_loop.batch_progress
        within = 0 if progress.is_last_batch else progress.current.processed
        where = f" after batch {within}" if within else ""
        origin = f"continued in epoch {trainer.current_epoch + 1}{where}"
        datasets = getattr(getattr(trainer, "datamodule", None), "datasets", {})
        images = " and ".join(f"{len(data)} {split}" for split, data in datasets.items())
        rank_zero_print(
            f"fit on {_device(trainer)}, {trainer.precision}; run folder"
            f" {trainer.default_root_dir}, {origin if trainer.ckpt_path else 'new'}"
            + (f"; {images} images, {len(pl_module.names)} classes" if images else "")
        )
        self._lines = 0
        self._start_epoch()

    def on_train_epoch_start(self, *_: Any) -> None:
        self._start_epoch()

    def _start_epoch(self) -> None:
        self._started, self._validated = time.perf_counter(), False

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.sanity_checking or trainer.state.fn != TrainerFn.FITTING:
            return
        self._validated = True
        metrics = trainer.callback_metrics
        fitness = float(metrics.get("val/fitness", -1))
        if fitness > self.best.get("fitness", -1):
            quality = float(metrics["val/mAP50-95"])
            epoch = trainer.current_epoch
            self.best = {"epoch": epoch, "fitness": fitness, "mAP50-95": quality}

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        # first, in all processes: after a validation within the epoch it reduces over them
        metrics = trainer.callback_metrics
        assert isinstance(pl_module, Detector)
        epoch, epochs = trainer.current_epoch + 1, trainer.max_epochs or 1
        seconds = time.perf_counter() - self._started
        cells = {"epoch": f"{epoch}/{epochs}"}
        for name in pl_module.epoch_losses.names:
            cells[_label(name)] = f"{float(metrics[f'train/{name}']):.4f}"[:6]
        for name in METRICS:
            value = metrics.get(f"val/{name}") if self._validated else None
            cells[name] = "-" if value is None else f"{float(value):.3f}"
        cells["time"] = tqdm.format_interval(seconds)
        cells["ETA"] = tqdm.format_interval(seconds * (epochs - epoch))
        best = self.best
        cells["best"] = f"{best['mAP50-95']:.3f}@{best['epoch'] + 1:.0f}" if best else "-"
        if self._lines % EVERY == 0:
            rank_zero_print(_row({name: name for name in cells}))
        self._lines += 1
        rank_zero_print(_row(cells))

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.max_epochs and trainer.current_epoch < trainer.max_epochs:
            self._stopped(trainer)

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        if trainer.training and isinstance(exception, SystemExit | KeyboardInterrupt):
            self._stopped(trainer)

    def _stopped(self, trainer: L.Trainer) -> None:
        wait_for_checkpoint(trainer)
        last = Path(trainer.default_root_dir) / "checkpoints" / "last.ckpt"
        hint = f"resume with: {self.resume}" if last.is_file() else "there is no checkpoint yet"
        done = f"{trainer.current_epoch} of {trainer.max_epochs} epochs"
        rank_zero_print(f"stopped after {done}; {hint}")

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best = dict(state_dict["best"])


def _label(loss: str) -> str:
    return loss.removesuffix("_loss")


def _row(cells: dict[str, str]) -> str:
    return " ".join(text.rjust(WIDTHS.get(name, 6)) for name, text in cells.items())


def _device(trainer: L.Trainer) -> str:
    """`cpu (2 threads)`, `NVIDIA H100`, `4 x NVIDIA H100`."""
    device: torch.device = trainer.strategy.root_device
    name = f"cpu ({torch.get_num_threads()} threads)"
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    return name if trainer.world_size == 1 else f"{trainer.world_size} x {name}"
