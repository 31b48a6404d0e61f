"""How fast training steps are."""

import json
import time
from pathlib import Path
from typing import Any

import lightning as L
import torch

from boltbox.detector.data.sample import Batch
from boltbox.detector.system.atomic_file import write_atomically


class Stopwatch(L.Callback):
    """Times the training steps of the first process and writes a JSON file.

    Its keys: `images` of all processes together; `steps`; `seconds` of the steps; `waiting`, their
    share before a batch was on the device. Time between epochs (validation, checkpoints) does not
    count; the start of a loader does.

    Args:
        report: The file.
        seconds: Stop the training at the end of a step after this time.
        skip: First steps that do not count.
    """

    def __init__(self, report: str, seconds: float, skip: int = 3) -> None:
        self.report = Path(report)
        self.skip = skip
        self.seconds = seconds
        self.measured = {"images": 0, "steps": 0, "seconds": 0.0, "waiting": 0.0}

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        trainer.fit_loop.max_epochs = 1_000_000  # the clock ends the run
        self._before = now(pl_module.device)

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._ready = now(pl_module.device)

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Batch,
        batch_idx: int,
    ) -> None:
        end = now(pl_module.device)
        if self.skip:
            self.skip -= 1
        else:
            self.measured["images"] += len(batch.images) * trainer.world_size
            self.measured["steps"] += 1
            self.measured["seconds"] += end - self._before
            self.measured["waiting"] += self._ready - self._before
        self._before = end
        late = self.measured["seconds"] >= self.seconds
        if trainer.strategy.reduce_boolean_decision(late, all=False):  # all after the same step
            trainer.should_stop = True
            trainer.fit_loop.min_epochs = 0  # stop within the epoch

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.measured["waiting"] /= self.measured["seconds"] or 1
        if trainer.is_global_zero:
            write_atomically(self.report, json.dumps(self.measured))


def now(device: torch.device) -> float:
    """Seconds of a clock, after a GPU has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
