"""iterations.csv: learning rates, momentum, accumulation and losses from iteration to iteration."""

import math
from pathlib import Path
from typing import Any

import lightning as L

from boltbox.detector.model.loss_sums import LossSums
from boltbox.detector.system.csv_table import write_table
from boltbox.detector.training.module import Detector


class Iterations(L.Callback):
    """A row for each iteration, or in a run of more than `most` for each second, third, ...; losses
    are means since the row before, of the first process. The rows are in the checkpoint, and the
    file is written with it: a resumed run lacks no row and has none twice.

    Args:
        most: Rows, about, of a whole run.
    """

    def __init__(self, most: int = 2000) -> None:
        self.most = most
        self.rows: list[dict[str, Any]] = []
        self._losses = LossSums.empty()  # since the last row

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
        assert isinstance(pl_module, Detector)
        batches = int(trainer.num_training_batches)
        iteration = trainer.current_epoch * batches + batch_idx
        self._losses = self._losses.add(outputs["parts"])
        if iteration % max(math.ceil((trainer.max_epochs or 1) * batches / self.most), 1):
            return
        settings = step_settings(trainer, pl_module)
        row = {"iteration": iteration, "epoch": trainer.current_epoch}
        self.rows.append(row | settings | self._losses.means())
        self._losses = LossSums.empty()

    def on_save_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        self._write(trainer)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._write(trainer)

    def _write(self, trainer: L.Trainer) -> None:
        self._read()
        if self.rows and trainer.is_global_zero:
            write_table(Path(trainer.default_root_dir) / "iterations.csv", self.rows)

    def _read(self) -> None:
        """Losses are left on the device until then: to read one is to wait."""
        self.rows = [{name: _text(value) for name, value in row.items()} for row in self.rows]

    def state_dict(self) -> dict[str, Any]:
        self._read()
        return {"rows": list(self.rows), "losses": self._losses.state()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.rows = list(state_dict["rows"])
        self._losses = LossSums.of(state_dict["losses"])


def _text(value: Any) -> Any:
    return value if isinstance(value, int | str) else f"{float(value):.6g}"


def step_settings(trainer: L.Trainer, detector: Detector) -> dict[str, float]:
    """Learning rates by group of parameters, momentum if there is one, and accumulation: of this
    batch."""
    groups = trainer.optimizers[0].param_groups
    settings = {f"lr/{group['name']}": float(group["lr"]) for group in groups}
    momentum = groups[0].get("momentum", groups[0].get("betas", (None,))[0])
    if momentum is not None:
        settings["momentum"] = float(momentum)
    return settings | {"accumulate": float(detector.window.length)}
