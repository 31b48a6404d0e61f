"""`--trainer.strategy fsdp2`: Lightning's strategy for torch's fully_shard, with the checkpoints of
any other run."""

from collections.abc import Mapping
from typing import Any

import torch.distributed as dist
from lightning.pytorch.strategies import ModelParallelStrategy, ParallelStrategy, StrategyRegistry
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.optim import Optimizer

from boltbox.detector.model.sharding import distribute_like, keep_whole, whole
from boltbox.detector.training.module import Detector


class FSDP2(ModelParallelStrategy):
    """Parameters, gradients, optimizer state and moving average are sharded over all processes; see
    Detector.configure_model.

    A checkpoint is one file with whole tensors, the same as from one process or under DDP: any
    number of devices under any strategy can continue from it. Lightning's own would number the
    states of the optimizer by the order of the network's parameters, where a plain optimizer
    numbers them by group.

    Buffers are those of the first process, as under DDP: batch norm statistics.
    """

    lightning_module: Detector
    restore_checkpoint_after_setup = False
    lightning_restore_optimizer = True

    def __init__(self, **options: Any) -> None:
        super().__init__(tensor_parallel_size=1, save_distributed_checkpoint=False, **options)

    def setup_environment(self) -> None:
        self._data_parallel_size = self.num_nodes * self.num_processes
        super().setup_environment()

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self._broadcast_buffers()

    def on_validation_start(self) -> None:
        self._broadcast_buffers()
        keep_whole(self.lightning_module.evaluated_network(), True)

    def on_validation_end(self) -> None:
        keep_whole(self.lightning_module.evaluated_network(), False)

    def _broadcast_buffers(self) -> None:
        # as DDP does it
        group = dist.distributed_c10d._get_default_group()
        dist._broadcast_coalesced(group, list(self.lightning_module.buffers()), 2**28, 0)

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """The state that a single process would have: whole tensors on the CPU."""
        return apply_to_collection(optimizer.state_dict(), Tensor, lambda t: whole(t).cpu())

    def load_checkpoint(
        self, checkpoint_path: Any, weights_only: bool | None = None
    ) -> dict[str, Any]:
        return ParallelStrategy.load_checkpoint(self, checkpoint_path, weights_only)

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        options = StateDictOptions(full_state_dict=True, strict=strict)
        set_model_state_dict(self.lightning_module, checkpoint["state_dict"], options=options)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        (optimizer,) = self.optimizers
        (saved,) = checkpoint["optimizer_states"]
        parameters: list[Tensor] = []  # their states go by their numbers in all groups together
        for group in optimizer.param_groups:
            parameters += group["params"]
        state = {}
        for number, values in saved["state"].items():
            state[number] = _sharded(parameters[number], values)
        optimizer.load_state_dict(saved | {"state": state})


def _sharded(parameter: Tensor, saved: Mapping[str, Any]) -> dict[str, Any]:
    """State of a parameter: tensors of its shape, such as momentum, are sharded like it."""
    state = {}
    for name, value in saved.items():
        has_its_shape = isinstance(value, Tensor) and value.shape == parameter.shape
        state[name] = distribute_like(parameter, value) if has_its_shape else value
    return state


StrategyRegistry.register(
    "fsdp2",
    FSDP2,
    description="Parameters, gradients and optimizer state sharded over all processes",
)
