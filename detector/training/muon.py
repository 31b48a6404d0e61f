"""Muon, an optimizer for weights that start from random numbers (Jordan et al. 2024)."""

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer

from boltbox.detector.model.sharding import distribute_like, whole

# Jordan's coefficients: the steepest at 0 that keep singular values about 1
QUINTIC = (3.4445, -4.7750, 2.0315)


class Muon(AdamW):
    """Muon for some groups of parameters, AdamW for the others.

    A convolution's weight (out, in, k, k) is the matrix (out, in * k * k). Its step is Nesterov's
    momentum with all singular values made about 1: every direction is learned at one speed, not the
    few strongest first. It is as long as AdamW's steps usually are (Liu et al. 2025, arXiv
    2502.16982: root mean square 0.2 * lr), so that both go by one learning rate.

    Args:
        params: Groups; `orthogonal` in a group says whether it is Muon's, all of it matrices.
        betas: Momentum, which is AdamW's beta1 too, and AdamW's beta2.
        options: Others of AdamW's; lr and weight_decay are Muon's too.
    """

    def __setstate__(self, state: dict[str, Any]) -> None:
        """AdamW's completes old states, and expects a count of steps in each."""
        Optimizer.__setstate__(self, state)

    def _init_group(self, group: dict[str, Any], *lists: Any) -> Any:
        """AdamW's step collects here what it updates. Muon's groups are updated at once, and AdamW
        gets none of them."""
        if not group["orthogonal"]:
            return super()._init_group(group, *lists)
        beta, _ = group["betas"]
        lr = group["lr"]
        alike = defaultdict(list)  # matrices of one shape go through the iteration together
        for p in group["params"]:
            if p.grad is not None:
                alike[p.shape].append(p)
        for shape, parameters in alike.items():
            lookahead = []
            for p in parameters:
                state = self.state[p]
                if not state:
                    state["momentum_buffer"] = torch.zeros_like(p)
                momentum = state["momentum_buffer"].lerp_(p.grad, 1 - beta)
                lookahead.append(whole(p.grad.lerp(momentum, beta)))
            steps = orthogonalised(torch.stack(lookahead).flatten(2))
            length = 0.2 * max(steps.shape[1:]) ** 0.5
            for p, step in zip(parameters, steps, strict=True):
                p.mul_(1 - lr * group["weight_decay"])
                p.add_(distribute_like(p, step.reshape(shape)), alpha=-lr * length)
        return False


def orthogonalised(matrices: Tensor) -> Tensor:
    """The matrices with all singular values about 1 (.7 to 1.2), by the iteration of Newton and
    Schulz.

    Args:
        matrices: (N, rows, columns)
    """
    a, b, c = QUINTIC
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x
