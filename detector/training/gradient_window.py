"""Gradient accumulation over windows of any length, which may change from batch to batch."""

import lightning as L
from torch import Tensor, nn

from boltbox.detector.model.sharding import shared_out_like, whole

# `trainer.accumulate_grad_batches` of a batch that only adds its gradients. Lightning divides the
# loss by that number and Detector.training_step multiplies by it: exact for a power of two.
COLLECT = 2**40


class GradientWindow:
    """The batches whose gradients one optimizer step uses.

    Gradients are cleared after a step (Detector.optimizer_step), so a checkpoint within a window
    holds them and the number of batches so far.

    Args:
        network: whose gradients these are.
    """

    def __init__(self, network: nn.Module) -> None:
        self.network = network
        self.length = 1.0  # batches a step
        self.batches = 0  # since the last step

    def start_batch(self, trainer: L.Trainer, length: float, is_last: bool) -> None:
        """Decide, before each batch, whether it ends in a step.

        Args:
            length: Batches a step.
            is_last: The window ends with this batch whatever its length.
        """
        self.length = length
        self.batches += 1
        due = self.batches >= length or is_last
        trainer.accumulate_grad_batches = 1 if due else COLLECT
        if due:
            self.batches = 0

    def gradients(self) -> dict[str, Tensor]:
        """By name of the parameter, whole and on the CPU; empty between two windows."""
        return {
            name: whole(parameter.grad).cpu()
            for name, parameter in self.network.named_parameters()
            if parameter.grad is not None
        }

    def restore(self, gradients: dict[str, Tensor]) -> None:
        """Continue an open window with what `gradients` returned."""
        for name, gradient in gradients.items():
            parameter = self.network.get_parameter(name)
            parameter.grad = shared_out_like(parameter, gradient.clone())


def ends_in_step(trainer: L.Trainer, batch_idx: int) -> bool:
    """Whether this training batch ends in an optimizer step. True of the last batch of an epoch
    too where the Trainer accumulates without a warm-up (Trainer(accumulate_grad_batches=4))."""
    length = trainer.accumulate_grad_batches
    return length != COLLECT and ((batch_idx + 1) % length == 0 or trainer.is_last_batch)
