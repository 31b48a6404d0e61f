"""Whether the last checkpoints of two trainings are the same."""

from pathlib import Path
from typing import Any

import lightning as L
import torch


class Contiguous(L.Callback):
    """Under DDP the memory layout that FSDP2 asks for: else the convolutions round differently."""

    def setup(self, trainer: L.Trainer, pl_module: Any, stage: str) -> None:
        pl_module.network.to(memory_format=torch.contiguous_format)


def apart(ours: Path, theirs: Path) -> float:
    """The largest difference between the last checkpoints of two runs: weights, average,
    statistics, the optimizer's state."""
    a, b = (torch.load(run / "checkpoints/last.ckpt", weights_only=True) for run in (ours, theirs))
    assert a["state_dict"].keys() == b["state_dict"].keys()
    assert a["global_step"] == b["global_step"] > 1
    pairs = [(v, b["state_dict"][k]) for k, v in a["state_dict"].items()]
    first, second = (c["optimizer_states"][0] for c in (a, b))
    assert first["param_groups"] == second["param_groups"]
    assert first["state"].keys() == second["state"].keys()
    pairs += [
        (v, second["state"][k][name])
        for k, own in first["state"].items()
        for name, v in own.items()
    ]
    assert all(type(x) is torch.Tensor for pair in pairs for x in pair)
    return max(float((x.double() - y.double()).abs().max()) for x, y in pairs)
