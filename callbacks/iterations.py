"""iterations.csv: learning rates, momentum, accumulation and losses from iteration to iteration."""

import csv
import io
import math
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import Tensor

from callbacks.warmup import Warmup
from detector.system.atomic_file import not_fatal, write_atomically
from detector.system.csv_table import read_table

MOST = 2000  # rows
LOSSES = ("box_loss", "obj_loss", "cls_loss")
COLUMNS = ("iteration", "epoch", "lr/bias", "lr/weight", "lr/norm", "momentum", "accumulate", *LOSSES)


class Iterations(L.Callback):
    """A row for each iteration, or in a run of more than `most` for each second, third, ...; losses are means since the row
    before, of the first process. The file is written with each checkpoint: a resumed run lacks no row and has none twice.

    Args:
        most: Rows, about, of a whole run.
    """

    def __init__(self, most: int = MOST) -> None:
        self.most = most
        self.rows: list[dict[str, Any]] = []
        self._pending: list[tuple[dict[str, Any], Tensor]] = []  # losses still on the device: to read one is to wait
        self._sum: Tensor | None = None  # (4,) of losses since the last row, and how many they are
        self._restored: list[float] | None = None
        self._started = False

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """After a resume or a roll-back; see `_begin`."""
        self._pending, self._sum, self._started = [], None, False
        if self._restored is not None:
            self._sum, self._restored = torch.tensor(self._restored), None

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if not trainer.is_global_zero:
            return
        batches = int(trainer.num_training_batches)
        iteration = trainer.current_epoch * batches + batch_idx
        if not self._started:
            self._begin(trainer, iteration)
        parts = outputs["parts"].detach().float()
        own = torch.cat((parts, parts.new_ones(1)))
        self._sum = own if self._sum is None else self._sum.to(own) + own
        step = max(math.ceil((trainer.max_epochs or 1) * batches / self.most), 1)
        if iteration % step:
            return
        groups = {group["name"]: group for group in trainer.optimizers[0].param_groups}
        momentum = next(iter(groups.values())).get("momentum", next(iter(groups.values())).get("betas", (None,))[0])
        warmup = next((c for c in trainer.callbacks if isinstance(c, Warmup)), None)  # type: ignore[attr-defined]
        row = {"iteration": iteration, "epoch": trainer.current_epoch, "accumulate": f"{warmup.accumulate:g}" if warmup else ""}
        row |= {f"lr/{name}": f"{group['lr']:.6g}" for name, group in groups.items()}
        row["momentum"] = f"{momentum:.6g}" if momentum is not None else ""
        self._pending.append((row, self._sum))
        self._sum = None

    def _begin(self, trainer: L.Trainer, iteration: int) -> None:
        """The first batch since the start: rows of iterations that are trained again go."""
        self._started = True
        self.rows = [row for row in read_table(_path(trainer)) if int(row["iteration"]) < iteration]

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        self._write(trainer)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._write(trainer)

    def _write(self, trainer: L.Trainer) -> None:
        if not self._pending:
            return
        sums = torch.stack([losses for _, losses in self._pending]).cpu()
        for (row, _), means in zip(self._pending, (sums[:, :3] / sums[:, 3:]).tolist(), strict=True):
            self.rows.append(row | {name: f"{mean:.6g}" for name, mean in zip(LOSSES, means, strict=True)})
        self._pending = []
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS, restval="", extrasaction="ignore")
        writer.writeheader()
        writer.writerows(self.rows)
        with not_fatal(_path(trainer)):
            write_atomically(_path(trainer), lambda file: file.write(text.getvalue().encode()))

    def state_dict(self) -> dict[str, Any]:
        return {"sum": None if self._sum is None else self._sum.tolist()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._restored = state_dict["sum"]


def _path(trainer: L.Trainer) -> Path:
    return Path(trainer.default_root_dir) / "iterations.csv"
