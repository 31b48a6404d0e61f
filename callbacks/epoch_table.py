"""What a training prints besides its bar: what it runs on, how long it will take, a line per epoch,
how to resume it; and metrics.csv, which has the same lines."""

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import lightning as L
import torch
from tqdm import tqdm

from boltbox.detector.checkpoint.writer import wait_for_checkpoint
from boltbox.detector.model.loss import mean_losses
from boltbox.detector.system.csv_table import write_table
from boltbox.detector.system.rank_zero import print_fact, rank_zero_print
from boltbox.detector.training.module import Detector

METRICS = ("P", "R", "mAP50", "mAP50-95")
WIDTHS = {"epoch": 6, "P": 5, "R": 5, "mAP50": 5, "mAP50-95": 8, "time": 7, "ETA": 7, "best": 8}
EVERY = 20  # epochs under one heading
ESTIMATE_AFTER = 5.0  # seconds of the first epoch after which its batches tell the time of all
SHORT = 60  # seconds of a training whose time is not told
LONG_ON_CPU = 2 * 3600  # seconds from which on faster options are named


class EpochTable(L.Callback):
    """After every epoch a row of metrics.csv: losses, metrics, learning rates, seconds. The rows
    are in the checkpoint, so that a resumed run lacks none and has none twice. On the terminal the
    same as a line, with ETA, and mAP50-95 and number of the best epoch by fitness.

    At the start it prints network, device and run folder, and whether the run is new; some seconds
    later how long all epochs will take; after Ctrl-C and the like how to resume.

    Args:
        resume: command, or line of Python, that continues the run from its last checkpoint.
    """

    def __init__(self, resume: str = "") -> None:
        self.resume = resume
        self.rows: list[dict[str, Any]] = []  # of metrics.csv
        self._lines = 0
        self._started = 0.0  # this epoch
        self._first_batch: tuple[int, float] | None = None  # number of batches done, and when
        self._estimated = False

    def on_train_start(self, trainer: L.Trainer, pl_module: Detector) -> None:
        """A run that is resumed within an epoch does not get to on_train_epoch_start."""
        progress: Any = trainer.fit_loop.epoch_loop.batch_progress
        within = 0 if progress.is_last_batch else progress.current.processed
        where = f" after batch {within}" if within else ""
        state = "new"
        if trainer.ckpt_path:
            state = f"continued in epoch {trainer.current_epoch + 1}{where}"
        print_fact("model", _model(pl_module))
        print_fact("device", _device(trainer))
        print_fact("run", f"{trainer.default_root_dir} ({state})")
        self._lines = 0
        self.on_train_epoch_start()

    def on_train_epoch_start(self, *_: Any) -> None:
        self._started = time.perf_counter()

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: Detector, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Once, where the first epoch is long: how long all epochs will take. The first batch is
        left out, as it warms up."""
        if self._estimated:
            return
        now = time.perf_counter()
        if self._first_batch is None:
            self._first_batch = (batch_idx, now)
            return
        first, began = self._first_batch
        if batch_idx <= first:  # of the next epoch, whose line has an ETA
            self._estimated = True
        elif now - began > ESTIMATE_AFTER:
            self._estimated = True
            self._print_time(trainer, pl_module, (now - began) / (batch_idx - first))

    def _print_time(self, trainer: L.Trainer, pl_module: Detector, per_batch: float) -> None:
        epochs = (trainer.max_epochs or 1) - trainer.current_epoch
        seconds = per_batch * int(trainer.num_training_batches) * epochs
        if seconds < SHORT:
            return
        duration = tqdm.format_interval(seconds)
        print_fact("time", f"about {duration} for {epochs} epochs ({per_batch:.2f} s per batch)")
        is_cpu = trainer.strategy.root_device.type == "cpu"
        if is_cpu and seconds > LONG_ON_CPU:
            print_fact(
                "hint",
                f"a CPU is slow; half of data.image_size {pl_module.image_size} takes a quarter of"
                " the time, and model.network.size n is the smallest network",
            )

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: Detector) -> None:
        # first, in all processes: after a validation within the epoch it reduces over them
        metrics = trainer.callback_metrics
        seconds = time.perf_counter() - self._started
        row: dict[str, Any] = {"epoch": trainer.current_epoch, "step": trainer.global_step}
        for name, value in metrics.items():
            if pl_module.fitness is not None or not name.startswith("val/"):
                row[name] = f"{float(value):.6g}"
        for group in trainer.optimizers[0].param_groups:
            row[f"lr/{group['name']}"] = f"{group['lr']:.6g}"
        self.rows.append(row | {"seconds": f"{seconds:.1f}"})
        if trainer.is_global_zero:
            write_table(Path(trainer.default_root_dir) / "metrics.csv", self.rows)
        cells = self._cells(mean_losses(pl_module.epoch_losses), seconds, trainer.max_epochs or 1)
        if self._lines % EVERY == 0:
            rank_zero_print(_line({name: name for name in cells}))
        self._lines += 1
        rank_zero_print(_line(cells))

    def _cells(self, losses: Iterable[str], seconds: float, epochs: int) -> dict[str, str]:
        """Of the last row."""
        row = self.rows[-1]
        epoch = row["epoch"] + 1
        cells = {"epoch": f"{epoch}/{epochs}"}
        for name in losses:
            value = row.get(f"train/{name}", "nan")  # of an epoch that is cut
            cells[name.removesuffix("_loss")] = f"{float(value):.4f}"[:6]
        for name in METRICS:
            value = row.get(f"val/{name}")
            cells[name] = "-" if value is None else f"{float(value):.3f}"
        cells["time"] = tqdm.format_interval(seconds)
        cells["ETA"] = tqdm.format_interval(seconds * (epochs - epoch))
        validated = [row for row in self.rows if "val/fitness" in row]
        best = max(validated, key=lambda row: float(row["val/fitness"]), default=None)
        cells["best"] = f"{float(best['val/mAP50-95']):.3f}@{best['epoch'] + 1}" if best else "-"
        return cells

    def on_train_end(self, trainer: L.Trainer, pl_module: Detector) -> None:
        if trainer.max_epochs and trainer.current_epoch < trainer.max_epochs:
            self._stopped(trainer)

    def on_exception(
        self, trainer: L.Trainer, pl_module: Detector, exception: BaseException
    ) -> None:
        is_fit = trainer.state.fn == "fit"
        if is_fit and isinstance(exception, SystemExit | KeyboardInterrupt):
            self._stopped(trainer)

    def _stopped(self, trainer: L.Trainer) -> None:
        wait_for_checkpoint(trainer)
        last = Path(trainer.default_root_dir) / "checkpoints" / "last.ckpt"
        hint = f"resume with: {self.resume}" if last.is_file() else "there is no checkpoint yet"
        done = f"{trainer.current_epoch} of {trainer.max_epochs} epochs"
        rank_zero_print(f"stopped after {done}; {hint}")

    def state_dict(self) -> dict[str, Any]:
        return {"rows": list(self.rows)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.rows = list(state_dict["rows"])


def _line(cells: dict[str, str]) -> str:
    return " ".join(text.rjust(WIDTHS.get(name, 6)) for name, text in cells.items())


def _model(detector: Detector) -> str:
    """`YOLOv5n from scratch, 5 classes, 640 px, batch 16`."""
    options = detector.hparams["network"]
    name = f"{options['backbone']} {options['size']}"
    if options["backbone"] == "yolov5":
        name = f"YOLOv5{options['size']}"
    sources = [origin.source for origin in detector.network.origins]
    start = " and ".join(sources) if sources else "scratch"
    classes = f"{len(detector.names)} classes" if len(detector.names) > 1 else "1 class"
    size = f"{detector.image_size} px, batch {detector.batch_size}"
    return f"{name} from {start}, {classes}, {size}"


def _device(trainer: L.Trainer) -> str:
    """`cpu (2 threads), 32-true`, `NVIDIA H100, 16-mixed`, `4 x NVIDIA H100, 16-mixed`."""
    device: torch.device = trainer.strategy.root_device
    threads = torch.get_num_threads()
    name = f"cpu ({threads} thread{'s' if threads > 1 else ''})"
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    devices = name if trainer.world_size == 1 else f"{trainer.world_size} x {name}"
    return f"{devices}, {trainer.precision}"
