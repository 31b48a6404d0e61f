"""The losses of a validation."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat


class LossMeans(Metric):
    """Means of a loss's named parts over batches, each of which counts alike, whatever its size. A
    batch that is seen twice counts once."""

    batches: list[Tensor] | Tensor

    def __init__(self) -> None:
        super().__init__()
        self.names: tuple[str, ...] = ()
        self.add_state("batches", [], dist_reduce_fx="cat")  # (n, 1 + parts) float64

    def update(self, first: int, parts: Mapping[str, Tensor]) -> None:
        """Add a batch; first: the number of its first image."""
        self.names = tuple(parts)
        assert isinstance(self.batches, list)
        values = torch.tensor([[first, *map(float, parts.values())]], dtype=torch.double)
        self.batches.append(values.to(self.device))

    def compute(self) -> dict[str, float]:
        """By name; empty without a batch."""
        if not len(self.batches):
            return {}
        batches = dim_zero_cat(self.batches).cpu().numpy()
        _, first = np.unique(batches[:, 0], return_index=True)
        return dict(zip(self.names, batches[first, 1:].mean(0).tolist(), strict=True))
