"""`--trainer.strategy deepspeed_stage_2`: Lightning's strategy for DeepSpeed's ZeRO-2.

Experimental: run on DeepSpeed's accelerator for CPUs, never on GPUs; see docs/distributed.md.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

import lightning as L
import torch
from lightning.pytorch.strategies import DDPStrategy, DeepSpeedStrategy, ParallelStrategy, StrategyRegistry
from torch import Tensor
from torch.optim import Optimizer

ON_CPU = os.environ.get("DS_ACCELERATOR") == "cpu"  # DeepSpeed's own switch, for tests


class ZeRO2(DeepSpeedStrategy):
    """Gradients and optimizer state are sharded over the processes; every process has the whole network.

    The accumulation windows are the recipe's (callbacks.Warmup), passed to the engine batch by batch; DeepSpeed's own have a
    fixed length. Checkpoints are our files, with the weights but without the optimizer's state, which is in pieces of
    DeepSpeed's own: `validate`, `test`, `predict` and --model.weights read them, a resume does not.
    """

    @property
    def handles_gradient_accumulation(self) -> bool:
        return False

    @property
    def root_device(self) -> torch.device:
        return torch.device("cpu", self.local_rank) if ON_CPU else super().root_device  # DeepSpeed asks for its index

    def setup_environment(self) -> None:
        if ON_CPU:
            DDPStrategy.setup_environment(self)  # Lightning's own refuses CPUs
        else:
            super().setup_environment()

    def setup_distributed(self) -> None:
        if ON_CPU:
            self.set_world_ranks()
            self._init_deepspeed_distributed()  # Lightning's own checks the indices of the GPUs first
        else:
            super().setup_distributed()

    def setup(self, trainer: L.Trainer) -> None:
        assert self.model is not None
        self.model.to(memory_format=torch.contiguous_format)  # DeepSpeed broadcasts weights as rows of bytes
        super().setup(trainer)

    @contextlib.contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Nothing is blocked: gradients that are shared out are summed over the processes after every backward pass."""
        yield

    def backward(self, closure_loss: Tensor, optimizer: Optimizer | None, *args: Any, **kwargs: Any) -> Tensor:
        assert self.lightning_module is not None
        steps = self.lightning_module.trainer.accumulate_grad_batches == 1  # else ACCUMULATE_ONLY: the window is still open
        self.deepspeed_engine.set_gradient_accumulation_boundary(steps)
        return super().backward(closure_loss, optimizer, *args, **kwargs)

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        return {}

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        ParallelStrategy.save_checkpoint(self, checkpoint, filepath, storage_options)

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        return ParallelStrategy.load_checkpoint(self, checkpoint_path, weights_only)

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        ParallelStrategy.load_model_state_dict(self, checkpoint, strict)


StrategyRegistry.register("deepspeed_stage_2", ZeRO2, description="ZeRO-2 with the recipe's windows", override=True, stage=2)
