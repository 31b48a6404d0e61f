"""Gradients: accumulated over windows of any length, which may change from batch to batch; and
whether they are finite."""

import math

import lightning as L
import torch
import torch.distributed as dist
from torch import Tensor, nn

from boltbox.detector.model.sharding import distribute_like, local, whole

# `trainer.accumulate_grad_batches` of a batch that only adds its gradients. Lightning divides the
# loss by that number and Detector.training_step multiplies by it: exact for a power of two.
NO_STEP = 2**40


def gradients(network: nn.Module) -> dict[str, Tensor]:
    """The gradients of an open window by name of the parameter, whole and on the CPU. They are
    cleared after a step (Detector.optimizer_step), so a checkpoint within a window holds them."""
    return {
        name: whole(parameter.grad).cpu()
        for name, parameter in network.named_parameters()
        if parameter.grad is not None
    }


def restore_gradients(network: nn.Module, gradients: dict[str, Tensor]) -> None:
    """Continue an open window with what `gradients` returned."""
    for name, gradient in gradients.items():
        parameter = network.get_parameter(name)
        parameter.grad = distribute_like(parameter, gradient.clone())


def ends_in_step(trainer: L.Trainer, batch_idx: int) -> bool:
    """Whether this training batch ends in an optimizer step. True of the last batch of an epoch
    too where the Trainer accumulates without a warm-up (Trainer(accumulate_grad_batches=4))."""
    length = trainer.accumulate_grad_batches
    return length != NO_STEP and ((batch_idx + 1) % length == 0 or trainer.is_last_batch)


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
