"""Whether the last checkpoints of two trainings are the same."""

from pathlib import Path
from typing import Any

import lightning as L
import torch


class Contiguous(L.Callback):
    """Under DDP the memory layout that FSDP2 asks for: else the convolutions round differently."""

    def setup(self, trainer: L.Trainer, pl_module: Any, stage: str) -> None:
        pl_module.network.to(memory_format=torch.contiguous_format)


def assert_close(ours: Path, theirs: Path) -> None:
    """The last checkpoints of two runs: weights, average, statistics, the optimizer's state."""
    a = torch.load(ours / "checkpoints/last.ckpt", weights_only=True)
    b = torch.load(theirs / "checkpoints/last.ckpt", weights_only=True)
    assert a["global_step"] == b["global_step"] > 1
    (first,) = a["optimizer_states"]
    (second,) = b["optimizer_states"]
    assert first["param_groups"] == second["param_groups"]
    for x, y in ((a["state_dict"], b["state_dict"]), (first["state"], second["state"])):
        torch.testing.assert_close(x, y, rtol=0, atol=1e-4)
