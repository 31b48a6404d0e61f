"""The timeout of collectives, and a sentence instead of their errors."""

from datetime import timedelta

import lightning as L
import torch.distributed as dist

from boltbox.detector.distributed.process_group import lost_contact
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.ranges import PositiveFloat

# public in newer torches only
_set_timeout = getattr(dist, "set_timeout", dist.distributed_c10d._set_pg_timeout)


class Watchdog(L.Callback):
    """When a collective times out, or another process is gone, the process ends with a sentence
    that names its epoch and batch, instead of an error of gloo or NCCL.

    NCCL itself ends a process that has waited too long: its message names the rank and the
    operation, Python's fault handler shows the line.

    Args:
        timeout: Seconds that a process waits for the others, at most; default: torch's, 10 minutes
            on GPUs, else 30.

    Attributes:
        explanation: The error of a command that ended because another process was gone or timed
            out; boltbox.detector.commands.lightning_cli raises it.
    """

    def __init__(self, timeout: PositiveFloat | None = None) -> None:
        self.timeout = timeout
        self.explanation: InputError | None = None

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """The timeout holds from here on, not for the start of the processes."""
        if self.timeout is not None and dist.is_initialized():
            _set_timeout(timedelta(seconds=self.timeout))

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        if not lost_contact(exception):
            return
        message = str(exception).strip().partition("\n")[0]
        stage = trainer.state.stage.value if trainer.state.stage else "start"
        place = f"epoch {trainer.current_epoch}, {stage}"
        if trainer.training:
            place += f" batch {trainer.fit_loop.epoch_loop.batch_idx}"
        problem = "lost contact with"
        hint = "the one that left has printed why, or was killed"
        if "timed out" in message.lower():
            problem = "timed out waiting for"
            hint = "one that is only slow needs a larger --watchdog.timeout"
        self.explanation = InputError(
            f"process {trainer.global_rank} of {trainer.world_size} {problem} the others at"
            f" {place}; {hint}; torch: {message}"
        )
