"""Training steps on a GPU: their rate, their memory, and what waits. See on_a_gpu.sh."""

from pathlib import Path
from typing import Any

import lightning as L
import torch

from boltbox.detector.commands.benchmark.stopwatch import Stopwatch

WAITS = ("Synchronize", "aten::item", "aten::nonzero", "Memcpy DtoH")  # the processor for the GPU


class GpuStep(Stopwatch):
    """A Stopwatch that also notes the most memory, and profiles the last two steps that do not
    count.

    Args:
        report: The file.
        seconds: Stop the training after this time.
        mode: Of torch.compile for the whole network, like default and reduce-overhead; "": none.
        profile: File of the calls that wait, without the Stopwatch's own two for each step.
    """

    def __init__(
        self, report: str, seconds: float = 6.0, mode: str = "", profile: str = ""
    ) -> None:
        super().__init__(report, skip=6, seconds=seconds)
        self.mode = mode
        self.profile = profile

    def on_fit_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        if self.mode:
            pl_module.network.compile(mode=self.mode, dynamic=False)

    def on_train_batch_start(self, trainer: L.Trainer, *args: Any) -> None:
        super().on_train_batch_start(trainer, *args)
        if self.mode:
            torch.compiler.cudagraph_mark_step_begin()
        if self.profile and self.skip == 2:
            self.profiler = torch.profiler.profile()
            self.profiler.start()

    def on_train_batch_end(self, *args: Any) -> None:
        if self.profile and self.skip == 1:
            self.profiler.stop()
            lines = [
                self.profiler.key_averages().table(sort_by="self_cuda_time_total", row_limit=30)
            ]
            for event in self.profiler.key_averages():
                if any(name in event.key for name in WAITS):
                    lines.append(f"{event.key}: {event.count / 2:g} for each step")
            Path(self.profile).write_text("\n".join(lines))
        super().on_train_batch_end(*args)

    def on_train_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        if torch.cuda.is_available():
            self.measured["GB"] = torch.cuda.max_memory_allocated() / 1e9
        super().on_train_end(trainer, pl_module)
