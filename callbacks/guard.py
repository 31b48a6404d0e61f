"""A training that goes wrong: a report, and then it stops."""

import math
import re
from pathlib import Path
from typing import Literal, NoReturn

import lightning as L
import torch
import torch.distributed as dist
from torch import Tensor, nn

from boltbox.detector.checkpoint.writer import wait_for_checkpoint
from boltbox.detector.data.sample import Batch
from boltbox.detector.model.sharding import local
from boltbox.detector.system.atomic_file import write_json
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.gather import gather
from boltbox.detector.training.module import Detector
from boltbox.detector.training.trainer_data import data_of
from boltbox.detector.training.trainer_options import ends_in_step

Policy = Literal["stop", "off"]
ADVICE = {  # by kind of incident
    "non-finite loss": "check these images and their labels, or lower model.optim.lr0",
    "non-finite gradient": "lower model.optim.lr0, or use --trainer.precision 32-true",
    "out of memory": "use a smaller data.batch_size, data.val_batch_size or data.image_size",
    "loader killed": "the system kills processes when memory runs out; use fewer data.workers",
}


class Incident(InputError):
    """Training cannot continue. The message names the problem, the batch, its images, and what to
    do."""


class Guard(L.Callback):
    """Writes `checkpoints/incident-<epoch>-<batch>.json` when a loss or a gradient is not finite,
    or memory runs out in a fit: kind of incident, batch, images. The first process writes; of a
    lack of memory, the one that has it.

    Losses and gradients are checked in on_after_backward, before clipping spreads a NaN to all
    parameters: one small tensor is read per batch, for all processes together. Gradients are
    checked where an accumulation window ends, but not with a GradScaler, which skips such steps by
    itself.

    Args:
        policy: stop: end the training at a non-finite loss or gradient. off: no check of the
            numbers.

    Attributes:
        explanation: One sentence on the lack of memory that ended the fit.

    Raises:
        Incident: While training.
    """

    def __init__(self, policy: Policy = "stop") -> None:
        self.policy = policy
        self.explanation: Incident | None = None
        self._split = "train"
        self._batch = 0  # in its epoch
        self._indices: list[int] = []  # numbers of its images in the dataset
        self._loss = torch.zeros(())  # as it went into the backward pass

    def on_train_batch_start(
        self,
        trainer: L.Trainer,
        pl_module: Detector,
        batch: Batch,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """As for validation."""
        self._split = "train" if trainer.training else "val"
        self._batch = batch_idx
        self._indices = list(batch.indices)

    on_validation_batch_start = on_train_batch_start  # type: ignore[assignment]

    def on_before_backward(self, trainer: L.Trainer, pl_module: Detector, loss: Tensor) -> None:
        self._loss = loss.detach()

    def on_after_backward(self, trainer: L.Trainer, pl_module: Detector) -> None:
        if self.policy == "off":
            return
        parameters: list[nn.Parameter] = []
        has_scaler = getattr(trainer.precision_plugin, "scaler", None) is not None
        if ends_in_step(trainer, self._batch) and not has_scaler:
            for group in trainer.optimizers[0].param_groups:
                parameters += group["params"]
        bad_loss, bad_gradients = not_finite(self._loss, parameters, trainer.world_size)
        if bad_loss:
            self._stop(trainer, "non-finite loss", [] if self._loss.isfinite() else self._indices)
        elif bad_gradients:
            self._stop(trainer, "non-finite gradient", self._indices)

    def _stop(self, trainer: L.Trainer, kind: str, indices: list[int]) -> NoReturn:
        """Report, and raise in all processes at once.

        Args:
            trainer: Of the fit.
            kind: Of the incident.
            indices: Images of this process that may be the cause.
        """
        self._indices = []
        for images in gather(indices):
            self._indices += images
        message = ""
        if trainer.is_global_zero:
            message = self._report(trainer, kind, "stopped")
        wait_for_checkpoint(trainer)  # one that exits may kill the process that writes it
        raise Incident(trainer.strategy.broadcast(message))

    def on_exception(
        self, trainer: L.Trainer, pl_module: Detector, exception: BaseException
    ) -> None:
        """Report a lack of memory with what this process knows, without asking the others."""
        kind = _kind_of(exception)
        if kind and trainer.state.fn == "fit":
            last_line = str(exception).strip().rpartition("\n")[2]
            message = self._report(trainer, kind, f"{type(exception).__name__}: {last_line}")
            exception.add_note(message)
            self.explanation = Incident(message)

    def _report(self, trainer: L.Trainer, kind: str, done: str) -> str:
        """Write the report. Returns the sentence for the user: problem, batch, three images, what
        was done, path of the report, advice."""
        epoch = trainer.current_epoch
        data = data_of(trainer)
        files: list[str] = []
        if data:
            files = [data.path(self._split, i) for i in self._indices]
        process = f"-process{trainer.global_rank}" if trainer.global_rank else ""
        name = f"incident-{epoch}-{self._batch}{process}.json"
        path = Path(trainer.default_root_dir) / "checkpoints" / name
        content = {
            "kind": kind,
            "epoch": epoch,
            "split": self._split,
            "batch": self._batch,
            "indices": self._indices,
            "files": files,
            "done": done,
        }
        write_json(path, content)
        batch = "batch" if self._split == "train" else "validation batch"
        images = f"; images {', '.join(files[:3])}" if files else ""
        if len(files) > 3:
            images += f" and {len(files) - 3} more"
        return (
            f"{kind} in epoch {epoch}, {batch} {self._batch}{images}; {done}; report: {path};"
            f" {ADVICE[kind]}"
        )


def not_finite(loss: Tensor, parameters: list[nn.Parameter], processes: int) -> tuple[bool, bool]:
    """Whether the loss, and the accumulated gradients, are NaN or infinite in any process; all
    processes get the same answer. Waits for the device once.

    Args:
        loss: () of this process.
        parameters: Whose gradients are checked; under FSDP2 each process checks its own shards.
        processes: Of the training.
    """
    grads: list[Tensor] = []
    for parameter in parameters:
        if parameter.grad is not None:
            grad = local(parameter.grad)
            if grad.numel():  # a process may have no part of a sharded parameter
                grads.append(grad)
    largest = torch.zeros_like(loss)
    if grads:
        largest = torch.stack(torch._foreach_norm(grads, math.inf))
    flags = torch.stack((~loss.isfinite(), ~largest.isfinite().all())).float()
    if processes > 1:
        dist.all_reduce(flags)
    bad_loss, bad_gradients = flags.tolist()
    return bad_loss > 0, bad_gradients > 0


def _kind_of(error: BaseException) -> str:
    """A key of ADVICE; "" for what is no lack of memory."""
    text = str(error).lower()
    if isinstance(error, torch.OutOfMemoryError) or "out of memory" in text:
        return "out of memory"
    is_killed = re.search("killed by signal|exited unexpectedly", text)
    return "loader killed" if "dataloader worker" in text and is_killed else ""
