"""Exponential moving average of the weights."""

from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from boltbox.detector.model.layers import set_momentum
from boltbox.detector.model.sharding import local
from boltbox.detector.system.ranges import ClosedUnitInterval
from boltbox.detector.training.module import Detector
from boltbox.detector.training.schedule import ema_decay, power_decay

# of power_decay: without a given decay, the weights of the average have a standard deviation of
# 0.05 of the updates so far
EXPONENT = 16.972198602303447


class EMA(L.Callback):
    """Keeps an exponential moving average of parameters and batch norm statistics; validation,
    checkpoints and predictions use it. It is the submodule `ema` beside `network`, so checkpoints
    hold both and nothing is ever swapped.

    Unless model.network.bn_momentum is given, the batch norm statistics that it averages are those
    of each step's last batch, not running ones, which would lag behind the weights twice
    (benchmarks/batch_norm_lag.md).

    Args:
        decay: Share of the old average that an update keeps in the end, as in YOLOv5 (0.9999),
            where 2000 updates reach about 63 % of it; 0 makes it a plain copy. Default: the
            average always reaches over the same share of the training so far: the standard
            deviation of its weights is 5 % of the updates.
        enabled: Off: validation, checkpoints and predictions use the network as it is.
    """

    def __init__(self, decay: ClosedUnitInterval | None = None, enabled: bool = True) -> None:
        self.decay = decay
        self.enabled = enabled
        self.updates = 0
        self._average: list[Tensor] = []
        self._current: list[Tensor] = []

    def setup(self, trainer: L.Trainer, pl_module: Detector, stage: str) -> None:
        """Before a checkpoint is restored, so that its average finds its place. Without a training
        the checkpoint alone says whether there is one (Detector.on_load_checkpoint)."""
        if stage == "fit":
            self.updates = 0  # of an earlier fit, or of a checkpoint that was validated
            if self.enabled:
                pl_module.start_average()
            else:
                pl_module.drop_average()

    def on_train_start(self, trainer: L.Trainer, pl_module: Detector) -> None:
        if pl_module.ema is None:
            return
        # the network may have changed since setup: better anchors, a class prior
        if self.updates == 0:
            pl_module.ema.load_state_dict(pl_module.network.state_dict())
        if pl_module.options.network.bn_momentum is None:
            set_momentum(pl_module.network, 1.0)
        self._average = averaged(pl_module.ema)
        self._current = averaged(pl_module.network)
        trainer.optimizers[0].register_step_post_hook(self._update)

    @torch.no_grad()
    def _update(self, optimizer: Optimizer, *_: Any) -> None:
        """After every real step: neither batches that only collect gradients nor steps that AMP
        skips count."""
        self.updates += 1
        if self.decay is None:
            kept = power_decay(self.updates, EXPONENT)
        else:
            kept = ema_decay(self.updates, self.decay)
        torch._foreach_lerp_(self._average, self._current, 1 - kept)

    def state_dict(self) -> dict[str, Any]:
        return {"updates": self.updates}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.updates = state_dict["updates"]


def averaged(network: nn.Module) -> list[Tensor]:
    """Parameters and batch norm statistics that checkpoints hold (what a layer remembers beside
    them may differ in shape), each once, also where layers share it; this process's part of those
    that are sharded."""
    tensors = dict.fromkeys(network.state_dict(keep_vars=True).values())
    return [local(tensor.detach()) for tensor in tensors if tensor.is_floating_point()]
