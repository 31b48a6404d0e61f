"""How fast training steps go."""

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
    """Times the training steps and leaves a JSON file: `images` trained on by all processes
    together, `steps`, `seconds` they took, `waiting`, the share of them spent before a batch was on
    the device (the mean of the processes), and `gpu_memory`, the most bytes that torch held on a
    GPU (0 without one).

    What lies between epochs (validation, checkpoints) does not count; that a loader starts anew
    with each epoch does.

    Args:
        report: The file.
        skip: First steps that do not count.
        seconds: Stop the training after so long, at the end of a step; default: let it go on to its
            end.
    """

    def __init__(self, report: str, skip: int = 3, seconds: float = math.inf) -> None:
        self.report, self.skip, self.seconds = Path(report), skip, seconds
        self.images = 0
        # of each: the end of the one before, batch ready, end
        self._steps: list[tuple[Instant, Instant, Instant]] = []
        self._started = math.inf

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._before = Instant(pl_module.device)

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._ready = Instant(pl_module.device)
        if self.skip == 0 and not self._steps:
            self._started = time.monotonic()

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Batch,
        batch_idx: int,
    ) -> None:
        if self.skip:
            self.skip -= 1
        else:
            self._steps.append((self._before, self._ready, Instant(pl_module.device)))
            self.images += len(batch.images)
        if self.seconds < math.inf:  # all processes stop after the same step
            late = time.monotonic() - self._started >= self.seconds
            trainer.should_stop |= bool(trainer.strategy.reduce_boolean_decision(late, all=False))
        self._before = Instant(pl_module.device)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        waited = sum(ready.since(before) for before, ready, _ in self._steps)
        seconds = sum(end.since(before) for before, _, end in self._steps)
        memory = (
            torch.cuda.max_memory_allocated(pl_module.device)
            if pl_module.device.type == "cuda"
            else 0
        )
        own = torch.tensor(
            [self.images, seconds, waited, memory], dtype=torch.float64, device=pl_module.device
        )
        images, took, waits, memories = trainer.strategy.all_gather(own).view(-1, 4).T
        content = {
            "images": int(images.sum()),
            "steps": len(self._steps),
            "seconds": float(took.max()),
            "waiting": float((waits / took).mean()) if self._steps else 0.0,
            "gpu_memory": int(memories.max()),
        }
        if trainer.is_global_zero:
            write_atomically(self.report, lambda file: file.write(json.dumps(content).encode()))


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
