"""Values of all processes of a training."""

from typing import Any

import torch.distributed as dist


def gather(value: Any) -> list[Any]:
    """The values of all processes, in order of their rank; every process calls it."""
    if not dist.is_initialized():
        return [value]
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def gather_on_first(value: Any) -> list[Any]:
    """As `gather`, for values that only the first process needs; the others get none."""
    if not dist.is_initialized():
        return [value]
    values: list[Any] = []
    if dist.get_rank() == 0:
        values = [None] * dist.get_world_size()
    dist.gather_object(value, values or None)
    return values
