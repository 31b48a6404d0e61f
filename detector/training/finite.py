"""Whether a loss and gradients are finite, in all processes together."""

import math

import torch
import torch.distributed as dist
from torch import Tensor, nn

from boltbox.detector.model.sharding import local


def not_finite(loss: Tensor, parameters: list[nn.Parameter], processes: int) -> tuple[bool, bool]:
    """Whether the loss, and the accumulated gradients of the parameters, are NaN or infinite in any
    process; all processes get the same answer. Waits for the device once.

    Args:
        loss: () of this process.
        parameters: whose gradients are checked; under FSDP2 each process looks at its own shards.
        processes: of the training.
    """
    grads = [local(p.grad) for p in parameters if p.grad is not None]
    grads = [g for g in grads if g.numel()]  # of a sharded parameter a process may have nothing
    largest = torch.stack(torch._foreach_norm(grads, math.inf)) if grads else torch.zeros_like(loss)
    flags = torch.stack((~loss.isfinite(), ~largest.isfinite().all())).float()
    if processes > 1:
        dist.all_reduce(flags)
    bad_loss, bad_gradients = flags.tolist()
    return bad_loss > 0, bad_gradients > 0


def not_finite_names(module: nn.Module, most: int = 10) -> list[str]:
    """Names of the first parameters whose gradients are NaN or infinite in this process."""
    bad = [
        n
        for n, p in module.named_parameters()
        if p.grad is not None and not local(p.grad).isfinite().all()
    ]
    return bad[:most]
