"""`--trainer.strategy deepspeed_stage_2`: Lightning's strategy for DeepSpeed's ZeRO-2, on NVIDIA GPUs.

Written from the documentation of DeepSpeed and Lightning, and not run yet: see docs/distributed.md.
"""

from collections.abc import Mapping
from typing import Any

from lightning.pytorch.strategies import DeepSpeedStrategy, ParallelStrategy, StrategyRegistry
from torch import Tensor
from torch.optim import Optimizer


class ZeRO2(DeepSpeedStrategy):
    """Gradients and optimizer state are sharded over the processes; every process has the whole network.

    The accumulation windows are the recipe's (callbacks.Warmup), passed to the engine batch by batch; DeepSpeed's own have a
    fixed length. Checkpoints are our files, with the weights but without the optimizer's state, which is in pieces of
    DeepSpeed's own: `validate`, `test`, `predict` and --model.weights read them, a resume does not.
    """

    @property
    def handles_gradient_accumulation(self) -> bool:
        return False

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
