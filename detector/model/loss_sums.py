"""Sums of a loss's named parts over batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from boltbox.detector.system.errors import InputError


class LossSums(NamedTuple):
    """names: of the n parts, none before the first batch · sums: (n + 1,) each one's sum over the
    batches so far, and how many these are."""

    names: tuple[str, ...]
    sums: Tensor

    @classmethod
    def empty(cls, names: tuple[str, ...] = ()) -> LossSums:
        """Of no batch yet."""
        return cls(names, torch.zeros(len(names) + 1))

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> LossSums:
        """What `state` gave."""
        return cls(tuple(state["names"]), state["sums"].clone())

    def state(self) -> dict[str, Any]:
        """Plain types, for a checkpoint."""
        return {"names": list(self.names), "sums": self.sums.cpu()}

    def add(self, parts: Mapping[str, Tensor]) -> LossSums:
        """With one batch more, on the device of its parts.

        Raises:
            InputError: the parts have other names than those before.
        """
        odd = next((name for name in parts if not name.isidentifier()), None)
        if odd is not None or not parts:
            raise InputError(
                f"the loss has a part {odd!r}: give names of letters, digits and _, like box_loss"
            )
        values = torch.stack(list(parts.values()))
        before = self if self.names else LossSums.empty(tuple(parts))
        if before.names != tuple(parts):
            raise InputError(
                f"the loss has the parts {', '.join(parts)} now; it had {', '.join(before.names)}"
            )
        return before._replace(
            sums=before.sums.to(values.device) + torch.cat((values, values.new_ones(1)))
        )

    def means(self) -> dict[str, Tensor]:
        """By name, over the batches so far; 0 where there was none."""
        return dict(zip(self.names, self.sums[:-1] / self.sums[-1].clamp(1), strict=True))
