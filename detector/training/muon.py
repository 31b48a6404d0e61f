"""Muon, an optimizer for weights that start from random numbers (Jordan et al. 2024)."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.adamw import adamw

from boltbox.detector.model.sharding import shared_out_like, whole

# Jordan's coefficients: the steepest at 0 that keep singular values about 1
QUINTIC = 3.4445, -4.7750, 2.0315


class Muon(Optimizer):
    """Muon for some groups of parameters, AdamW for the others.

    A convolution's weight (out, in, k, k) is the matrix (out, in * k * k). Its step is Nesterov's
    momentum with all singular values made about 1: every direction is learned at one speed, not the
    few strongest first. It is as long as AdamW's steps usually are (Liu et al. 2025, arXiv
    2502.16982: root mean square 0.2 * lr), so that both go by one learning rate.

    Args:
        params: Groups; `orthogonal` in a group says whether it is Muon's, all of it matrices.
        lr: Learning rate.
        betas: Momentum, which is AdamW's beta1 too, and AdamW's beta2.
        eps: AdamW's.
        weight_decay: Decoupled, as AdamW's.
    """

    def __init__(
        self,
        params: Iterable[dict[str, Any]],
        lr: float,
        betas: tuple[float, float] = (0.95, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "orthogonal": True,
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            trained = [p for p in group["params"] if p.grad is not None]
            if group["orthogonal"]:
                self._orthogonal_step(trained, group)
            else:
                self._adamw_step(trained, group)
        return loss

    def _orthogonal_step(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        beta = group["betas"][0]
        alike = defaultdict(list)  # matrices of one shape go through the iteration together
        for p in parameters:
            alike[p.shape].append(p)
        for shape, ps in alike.items():
            lookahead = []
            for p in ps:
                state, gradient = self.state[p], gradient_of(p)
                if not state:
                    state["momentum_buffer"] = torch.zeros_like(p)
                momentum = state["momentum_buffer"].lerp_(gradient, 1 - beta)
                lookahead.append(whole(gradient.lerp(momentum, beta)))
            steps = orthogonalised(torch.stack(lookahead).flatten(2))
            length = 0.2 * max(steps.shape[1:]) ** 0.5
            for p, step in zip(ps, steps, strict=True):
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(shared_out_like(p, step.reshape(shape)), alpha=-group["lr"] * length)

    def _adamw_step(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        for p in parameters:
            if not self.state[p]:
                self.state[p] |= {
                    "step": torch.tensor(0.0),
                    "exp_avg": torch.zeros_like(p),
                    "exp_avg_sq": torch.zeros_like(p),
                }
        states = [self.state[p] for p in parameters]
        adamw(
            parameters,
            [gradient_of(p) for p in parameters],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            max_exp_avg_sqs=[],
            state_steps=[state["step"] for state in states],
            amsgrad=False,
            maximize=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
        )


def gradient_of(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def orthogonalised(matrices: Tensor, iterations: int = 5) -> Tensor:
    """The matrices with all singular values about 1 (.7 to 1.2), by the iteration of Newton and
    Schulz.

    Args:
        matrices: (N, rows, columns)
    """
    a, b, c = QUINTIC
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=max(1e-7, torch.finfo(x.dtype).tiny))
    for _ in range(iterations):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x
