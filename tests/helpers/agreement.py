"""Whether the last checkpoints of two trainings are the same."""

import lightning as L
import torch
from made_runs import load


class Contiguous(L.Callback):
    """Under DDP the memory layout that FSDP2 asks for: else the convolutions round differently."""

    def setup(self, trainer, pl_module, stage):
        pl_module.network.to(memory_format=torch.contiguous_format)


def assert_close(ours, theirs):
    """The last checkpoints of two runs: weights, average, statistics, the optimizer's state."""
    a = load(ours / "checkpoints/last.ckpt")
    b = load(theirs / "checkpoints/last.ckpt")
    assert a["global_step"] == b["global_step"] > 1
    (first,) = a["optimizer_states"]
    (second,) = b["optimizer_states"]
    assert first["param_groups"] == second["param_groups"]
    for x, y in ((a["state_dict"], b["state_dict"]), (first["state"], second["state"])):
        torch.testing.assert_close(x, y, rtol=0, atol=1e-4)
