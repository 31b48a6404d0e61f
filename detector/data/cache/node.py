"""The processes of one machine that train together."""

from collections.abc import Generator
from typing import TypeVar

import lightning as L
import torch.distributed as dist

T = TypeVar("T")


class Node:
    """This process among those of its machine. trainer: None for a single process.

    Attributes:
        first: whether it is the one that does what needs doing once.
    """

    def __init__(self, trainer: L.Trainer | None) -> None:
        self.strategy = None if trainer is None else trainer.strategy
        self.node, local_rank = (trainer.node_rank, trainer.local_rank) if trainer else (0, 0)
        self.first = local_rank == 0

    def work(self, steps: Generator[object, None, T]) -> T | None:
        """The first process goes through `steps` and has their result; the others wait. All meet
        after each step, so that no time limit of a barrier ends a long wait."""
        result, done, all_done = None, not self.first, False
        while not all_done:
            if not done:
                try:
                    next(steps)
                except StopIteration as e:
                    result, done = e.value, True
            all_done = (
                done if self.strategy is None else self.strategy.reduce_boolean_decision(done)
            )
        return result

    def agree(self, opinion: bool) -> bool:
        """Whether the first processes of all machines say yes."""
        opinion = opinion or not self.first
        return opinion if self.strategy is None else self.strategy.reduce_boolean_decision(opinion)

    def hear(self, item: T) -> T:
        """What the first process of this machine says."""
        if not dist.is_initialized():
            return item
        said: list[tuple[int, bool, T]] = [(0, False, item)] * dist.get_world_size()
        dist.all_gather_object(said, (self.node, self.first, item))
        return next(item for node, first, item in said if first and node == self.node)
