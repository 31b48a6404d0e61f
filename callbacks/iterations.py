"""iterations.csv: learning rates, momentum, accumulation and losses from iteration to iteration."""

import csv
import io
import math
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import torch

from boltbox.detector.model.loss_sums import LossSums
from boltbox.detector.system.atomic_file import not_fatal, write_atomically
from boltbox.detector.system.csv_table import read_numbers
from boltbox.detector.system.damaged_file import read_or_set_aside
from boltbox.detector.training.module import Detector

MOST = 2000  # rows
# and the losses, by name
COLUMNS = ("iteration", "epoch", "lr/bias", "lr/weight", "lr/norm", "momentum", "accumulate")


class Iterations(L.Callback):
    """A row for each iteration, or in a run of more than `most` for each second, third, ...; losses
    are means since the row before, of the first process. The file is written with each checkpoint:
    a resumed run lacks no row and has none twice.

    Args:
        most: Rows, about, of a whole run.
    """

    def __init__(self, most: int = MOST) -> None:
        self.most = most
        self.rows: list[dict[str, Any]] = []
        # losses still on the device: to read one is to wait
        self._pending: list[tuple[dict[str, Any], LossSums]] = []
        self._sums = LossSums.empty()  # since the last row
        self._restored: LossSums | None = None
        self._started = False

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """After a resume or a roll-back; see `_begin`."""
        self._pending, self._sums, self._started = [], self._restored or LossSums.empty(), False
        self._restored = None

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        if not trainer.is_global_zero:
            return
        batches = int(trainer.num_training_batches)
        iteration = trainer.current_epoch * batches + batch_idx
        if not self._started:
            self._begin(trainer, iteration)
        self._sums = self._sums.add(outputs["parts"])
        step = max(math.ceil((trainer.max_epochs or 1) * batches / self.most), 1)
        if iteration % step:
            return
        groups = {group["name"]: group for group in trainer.optimizers[0].param_groups}
        momentum = next(iter(groups.values())).get(
            "momentum", next(iter(groups.values())).get("betas", (None,))[0]
        )
        assert isinstance(pl_module, Detector)
        row = {
            "iteration": iteration,
            "epoch": trainer.current_epoch,
            "accumulate": f"{pl_module.window.length:g}",
        }
        row |= {f"lr/{name}": f"{group['lr']:.6g}" for name, group in groups.items()}
        row["momentum"] = f"{momentum:.6g}" if momentum is not None else ""
        self._pending.append((row, self._sums))
        self._sums = LossSums.empty()

    def _begin(self, trainer: L.Trainer, iteration: int) -> None:
        """The first batch since the start: rows of iterations that are trained again go. Those of
        earlier epochs stay, though their numbers be higher: there may be fewer images now."""
        self._started = True
        epoch = trainer.current_epoch
        rows: list[dict[str, str]] = read_or_set_aside(
            _path(trainer), partial(read_numbers, counter="iteration"), list
        )
        self.rows = [
            row for row in rows if int(row["epoch"]) < epoch or int(row["iteration"]) < iteration
        ]

    def on_save_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        self._write(trainer)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._write(trainer)

    def _write(self, trainer: L.Trainer) -> None:
        if not self._pending:
            return
        sums = torch.stack([losses.sums for _, losses in self._pending]).cpu()
        for (row, losses), own in zip(self._pending, sums, strict=True):
            means = losses._replace(sums=own).means()
            self.rows.append(row | {name: f"{mean:.6g}" for name, mean in means.items()})
        self._pending = []
        text = io.StringIO()
        columns = dict.fromkeys((*COLUMNS, *(name for row in self.rows for name in row)))
        writer = csv.DictWriter(text, list(columns), restval="")
        writer.writeheader()
        writer.writerows(self.rows)
        with not_fatal(_path(trainer)):
            write_atomically(_path(trainer), lambda file: file.write(text.getvalue().encode()))

    def state_dict(self) -> dict[str, Any]:
        return {
            "sum": self._sums.sums.tolist() if self._sums.names else None,
            "names": list(self._sums.names),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if state_dict["sum"] is not None:
            names = tuple(state_dict["names"])
            self._restored = LossSums(names, torch.tensor(state_dict["sum"]))


def _path(trainer: L.Trainer) -> Path:
    return Path(trainer.default_root_dir) / "iterations.csv"
