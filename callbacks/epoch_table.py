"""What a training prints besides its progress bar: what it runs on, how long it will take, a line
per epoch, how to resume it; and metrics.csv, which has the same lines."""

import math
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
from boltbox.detector.system.rank_zero import amount, print_fact, rank_zero_print
from boltbox.detector.training.module import Detector
from boltbox.detector.training.schedule import accumulation

METRICS = ("P", "R", "mAP50", "mAP50-95")
WIDTHS = {"P": 5, "R": 5, "mAP50": 5, "mAP50-95": 8, "time": 7, "ETA": 7, "best": 8}
HEADING_EVERY = 20  # epochs
ESTIMATE_AFTER = 5.0  # seconds of the first epoch, from which the time of all epochs is estimated
SHORT = 60  # seconds of a training whose time is not printed
LONG_ON_CPU = 2 * 3600  # seconds of a training for which faster options are printed
REASONS = {"AdamW": " (auto: for pretrained weights)", "Muon": " (auto: from scratch)"}
FEW_STEPS = 200  # below this, smaller batches train better (docs/recipe.md)


class EpochTable(L.Callback):
    """After every epoch a row of metrics.csv: losses, metrics, learning rates, seconds. The rows
    are in the checkpoint, so that a resumed run lacks none and has none twice. The terminal shows
    the same as a line, with ETA, and mAP50-95 and number of the best epoch by fitness.

    At the start it prints network, device and run folder, and whether the run is new; some seconds
    later how long all epochs will take; after Ctrl-C and the like how to resume.

    Args:
        resume: Command, or line of Python, that continues the run from its last checkpoint.

    Attributes:
        rows: Those of metrics.csv.
    """

    def __init__(self, resume: str = "") -> None:
        self.resume = resume
        self.rows: list[dict[str, Any]] = []

    def setup(self, trainer: L.Trainer, pl_module: Detector, stage: str) -> None:
        if stage == "fit":
            self.rows = []  # of an earlier fit, or of a checkpoint that was validated

    def on_train_start(self, trainer: L.Trainer, pl_module: Detector) -> None:
        """In a run that is resumed within an epoch, on_train_epoch_start is not called."""
        state = "new"
        if trainer.ckpt_path:
            state = f"continued in epoch {trainer.current_epoch + 1}"
        print_fact("model", _model(trainer, pl_module))
        print_fact("device", _device(trainer))
        print_fact("run", f"{trainer.default_root_dir} ({state})")
        _print_optimizer(trainer, pl_module)
        self._lines = 0  # printed since the start
        self._batches = 0  # trained since the start
        self._has_estimate = False
        self.on_train_epoch_start()

    def on_train_epoch_start(self, *_: Any) -> None:
        self._epoch_started = time.perf_counter()

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Detector, *_: Any) -> None:
        """Once, if the first epoch is long: how long all epochs will take. The first batch is left
        out, as it warms up."""
        now = time.perf_counter()
        if self._batches == 0:
            self._first_batch_ended = now
        seconds = now - self._first_batch_ended
        if seconds > ESTIMATE_AFTER and not self._has_estimate:
            self._has_estimate = True
            self._print_estimate(trainer, seconds / self._batches)
        self._batches += 1

    def _print_estimate(self, trainer: L.Trainer, per_batch: float) -> None:
        epochs = _epochs(trainer) - trainer.current_epoch
        seconds = per_batch * int(trainer.num_training_batches) * epochs
        if seconds < SHORT:
            return
        text = f"about {tqdm.format_interval(seconds)} for {epochs} epochs"
        print_fact("time", f"{text} ({per_batch:.2f} s per batch)")
        if trainer.strategy.root_device.type == "cpu" and seconds > LONG_ON_CPU:
            print_fact("hint", "on a CPU, lower data.image_size or use model.network.size n")

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: Detector) -> None:
        self._has_estimate = True  # the line of the epoch has an ETA
        # first, in all processes: after a validation within the epoch it reduces over them
        metrics = trainer.callback_metrics
        seconds = time.perf_counter() - self._epoch_started
        row: dict[str, Any] = {"epoch": trainer.current_epoch, "step": trainer.global_step}
        for name, value in metrics.items():
            if pl_module.evaluation.fitness is not None or not name.startswith("val/"):
                row[name] = f"{float(value):.6g}"
        for group in trainer.optimizers[0].param_groups:
            row[f"lr/{group['name']}"] = f"{group['lr']:.6g}"
        row["seconds"] = f"{seconds:.1f}"
        self.rows.append(row)
        if trainer.is_global_zero:
            write_table(Path(trainer.default_root_dir) / "metrics.csv", self.rows)
        epochs = _epochs(trainer)
        cells = self._cells(mean_losses(pl_module.loss_sums()), seconds, epochs)
        if self._lines % HEADING_EVERY == 0:
            rank_zero_print(_line({name: name for name in cells}, epochs))
        self._lines += 1
        rank_zero_print(_line(cells, epochs))

    def _cells(self, losses: Iterable[str], seconds: float, epochs: int) -> dict[str, str]:
        """What the terminal shows of the last row, by column."""
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
        cells["best"] = "-"
        validated = [row for row in self.rows if "val/fitness" in row]
        if validated:
            best = max(validated, key=lambda row: float(row["val/fitness"]))
            cells["best"] = f"{float(best['val/mAP50-95']):.3f}@{best['epoch'] + 1}"
        return cells

    def on_train_end(self, trainer: L.Trainer, pl_module: Detector) -> None:
        if trainer.current_epoch < _epochs(trainer):
            self._print_stopped(trainer)

    def on_exception(
        self, trainer: L.Trainer, pl_module: Detector, exception: BaseException
    ) -> None:
        if trainer.state.fn == "fit" and isinstance(exception, SystemExit | KeyboardInterrupt):
            self._print_stopped(trainer)

    def _print_stopped(self, trainer: L.Trainer) -> None:
        wait_for_checkpoint(trainer)
        hint = "there is no checkpoint yet"
        if (Path(trainer.default_root_dir) / "checkpoints/last.ckpt").is_file():
            hint = f"resume with: {self.resume}"
        # current_epoch counts one less in the hook at the end of an epoch
        epochs: Any = trainer.fit_loop.epoch_progress.current
        text = f"stopped after {epochs.processed} of {trainer.max_epochs} epochs; {hint}"
        # this process may only have started others, which count and save: ddp_fork, in a notebook
        if trainer.world_size > 1 and not epochs.ready:
            text = f"stopped; once there is a checkpoint, resume with: {self.resume}"
        rank_zero_print(text)

    def state_dict(self) -> dict[str, Any]:
        return {"rows": list(self.rows)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.rows = list(state_dict["rows"])


def _epochs(trainer: L.Trainer) -> int:
    """In all; Warmup refuses None."""
    return trainer.max_epochs or 1


def _print_optimizer(trainer: L.Trainer, detector: Detector) -> None:
    """Print what a run trains with, why, and what may be wrong with it."""
    optim = detector.options.optim
    epochs = _epochs(trainer)
    batches = int(trainer.num_training_batches)
    step_images = optim.effective_batch_size(detector.batch_size, batches * epochs)
    step_batches = accumulation(step_images, detector.batch_size)
    steps = math.ceil(batches / step_batches) * epochs
    images = detector.batch_size * step_batches
    name = optim.optimizer_name
    text = name
    if detector.is_auto("optimizer"):
        text += REASONS.get(name, "")
    text += f", lr0 {detector.lr:g} ({optim.lr_schedule})"
    if optim.backbone_lr is not None:
        text += f", backbone {optim.backbone_lr:g}"
    text += f", {steps} steps of {images} images"
    if optim.nominal_batch_size == "auto" and images < 64:
        text += " (auto: 64 in a longer run)"
    print_fact("optimizer", text)
    usual = optim.defaults.lr0
    if detector.lr >= 10 * usual and name != "SGD":
        print_fact("hint", f"lr0 {detector.lr:g} suits SGD; the default of {name} is {usual:g}")
    if steps < FEW_STEPS and images > 8:
        print_fact(
            "hint",
            f"{steps} optimizer steps are few; for more, lower data.batch_size, or train longer",
        )


def _line(cells: dict[str, str], epochs: int) -> str:
    """Cells under their names, however long the names of the losses and the epochs' numbers."""
    widths = {name: max(len(name), 6) for name in cells} | WIDTHS
    widths["epoch"] = max(2 * len(f"{epochs}") + 1, 6)
    return " ".join(text.rjust(widths[name]) for name, text in cells.items())


def _model(trainer: L.Trainer, detector: Detector) -> str:
    """`YOLOv5n from scratch, 5 classes, 640 px, batch 16`."""
    options = detector.options.network
    name = f"{options.backbone} {options.size}"
    if options.backbone == "yolov5":
        name = f"YOLOv5{options.size}"
    start = " and ".join(origin.source for origin in detector.network.origins)
    classes = amount(len(detector.names), "class")
    size = f"batch {detector.batch_size}"
    data = getattr(trainer, "datamodule", None)
    if trainer.ckpt_path or hasattr(data, "image_size"):  # else the first batch will tell it
        size = f"{detector.image_size} px, {size}"
    if detector.options.start.freeze:  # also that of a file that was loaded
        size += f", model.start.freeze {detector.options.start.freeze}"
    return f"{name} from {start or 'scratch'}, {classes}, {size}"


def _device(trainer: L.Trainer) -> str:
    """`cpu (2 threads), 32-true`, `NVIDIA H100, 16-mixed`, `4 x NVIDIA H100, 16-mixed`."""
    device: torch.device = trainer.strategy.root_device
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    else:
        name = f"cpu ({amount(torch.get_num_threads(), 'thread')})"
    if trainer.world_size > 1:
        name = f"{trainer.world_size} x {name}"
    return f"{name}, {trainer.precision}"
