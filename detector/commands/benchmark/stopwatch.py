"""How fast training steps are."""

import json
import math
import time
from pathlib import Path
from typing import Any

import lightning as L
import torch

from boltbox.detector.data.sample import Batch
from boltbox.detector.system.atomic_file import write_atomically


class Stopwatch(L.Callback):
    """Times the training steps of the first process and leaves a JSON file: `images` trained on by
    all processes together, `steps`, `seconds` they took, `waiting`, the share of them before a
    batch was on the device, and `gpu_memory`, the most bytes that torch held on its GPU (0 without
    one).

    What lies between epochs (validation, checkpoints) does not count; the start of a loader does.

    Args:
        report: The file.
        skip: First steps that do not count.
        seconds: Stop the training after so long, at the end of a step; default: it trains to its
            end.
    """

    def __init__(self, report: str, skip: int = 3, seconds: float = math.inf) -> None:
        self.report, self.skip, self.seconds = Path(report), skip, seconds
        self.images = 0
        # of each: the end of the one before, batch ready, end
        self._steps: list[tuple[Instant, Instant, Instant]] = []

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._before = Instant(pl_module.device)

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._ready = Instant(pl_module.device)

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Batch,
        batch_idx: int,
    ) -> None:
        end = Instant(pl_module.device)
        if self.skip:
            self.skip -= 1
        else:
            self._steps.append((self._before, self._ready, end))
            self.images += len(batch.images) * trainer.world_size
        self._before = end
        if self.seconds < math.inf:  # all processes stop after the same step
            late = bool(self._steps) and end.clock - self._steps[0][0].clock >= self.seconds
            trainer.should_stop |= bool(trainer.strategy.reduce_boolean_decision(late, all=False))

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        seconds = sum(end.since(before) for before, _, end in self._steps)
        waited = sum(ready.since(before) for before, ready, _ in self._steps)
        on_gpu = pl_module.device.type == "cuda"
        content = {
            "images": self.images,
            "steps": len(self._steps),
            "seconds": seconds,
            "waiting": waited / seconds if seconds else 0.0,
            "gpu_memory": torch.cuda.max_memory_allocated(pl_module.device) if on_gpu else 0,
        }
        write_atomically(self.report, json.dumps(content))


class Instant:
    """Now: by the clock on a CPU; on a GPU the moment when it has done what it was given so far.
    Nothing waits for that."""

    def __init__(self, device: torch.device) -> None:
        self.clock, self.event = time.perf_counter(), None
        if device.type == "cuda":
            self.event = torch.cuda.Event(enable_timing=True)
            self.event.record()

    def since(self, earlier: "Instant") -> float:
        """Seconds from `earlier` to this one."""
        if self.event is None or earlier.event is None:
            return self.clock - earlier.clock
        self.event.synchronize()
        return earlier.event.elapsed_time(self.event) / 1000
