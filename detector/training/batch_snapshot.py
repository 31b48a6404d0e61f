"""The state before a training batch, to take the batch back as if it had never been."""

import torch
import torch.distributed as dist
from torch import Tensor, nn

from boltbox.detector.training.module import Detector


class BatchSnapshot:
    """What a batch changes before the optimizer step: the gradients that have been accumulated, the
    buffers (batch norm statistics, the balance of the loss), the sums of the epoch's losses."""

    def __init__(self, detector: Detector) -> None:
        self._detector = detector
        self._epoch_losses = detector.epoch_losses
        self._gradients: list[Tensor | None] = []
        by_dtype: dict[torch.dtype, list[Tensor]] = {}
        for buffer in (b for module in (detector.network, detector.loss) for b in module.buffers()):
            by_dtype.setdefault(buffer.dtype, []).append(buffer)
        self._buffers = [(buffers, [b.clone() for b in buffers]) for buffers in by_dtype.values()]

    def take(self) -> None:
        """At the start of a batch."""
        self._epoch_losses = self._detector.epoch_losses
        for buffers, copies in self._buffers:
            torch._foreach_copy_(copies, buffers)

    def take_gradients(self, parameters: list[nn.Parameter]) -> None:
        """Before the backward pass."""
        self._gradients = [None if p.grad is None else p.grad.clone() for p in parameters]

    def restore(self, parameters: list[nn.Parameter], average: bool) -> None:
        """After the backward pass.

        Args:
            average: DDP has reduced the gradients in this backward pass, this batch's with those
                before it: take the mean of the older ones over the processes in its place.
        """
        for parameter, before in zip(parameters, self._gradients, strict=True):
            if before is not None and average:
                dist.all_reduce(before)
                before /= dist.get_world_size()
            parameter.grad = before
        for buffers, copies in self._buffers:
            torch._foreach_copy_(buffers, copies)
        self._detector.epoch_losses = self._epoch_losses

    def release_gradients(self) -> None:
        """At the end of a batch: their memory is needed no longer."""
        self._gradients = []
