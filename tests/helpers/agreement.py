"""Whether two trainings did the same: what they write down on the way, and their last
checkpoints."""

from pathlib import Path
from typing import Any

import lightning as L
import torch


class Diary(L.Callback):
    """What each process sees, in rank<N>.pt of the run folder. Batch norms stay in evaluation mode:
    they are the only part of the network that looks across the images of a batch."""

    def __init__(self) -> None:
        self.batches: list[dict[str, Any]] = []
        self.gradients: dict[str, torch.Tensor] = {}
        self.start: dict[str, torch.Tensor] = {}

    def on_train_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        self.start = {n: p.detach().clone() for n, p in pl_module.network.named_parameters()}

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        pl_module.network.eval()
        groups = trainer.optimizers[0].param_groups
        rates = [(g["lr"], g.get("momentum"), g["weight_decay"]) for g in groups]
        self.batches.append(
            {"rates": rates, "images": len(batch.images), "window": trainer.accumulate_grad_batches}
        )

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: Any, optimizer: Any) -> None:
        if not self.gradients:
            self.gradients = {
                n: p.grad.clone()
                for n, p in pl_module.network.named_parameters()
                if p.grad is not None
            }

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.batches[-1] |= {
            "parts": [float(part) for part in outputs["parts"].values()],
            "step": trainer.global_step,
        }

    def on_fit_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        content = {"batches": self.batches, "gradients": self.gradients, "start": self.start,
                   "network": pl_module.network.state_dict(), "ema": pl_module.ema.state_dict()}  # fmt: skip
        torch.save(content, Path(trainer.default_root_dir) / f"rank{trainer.global_rank}.pt")


class Contiguous(L.Callback):
    """Under DDP the memory layout that FSDP2 asks for: else the convolutions round differently."""

    def setup(self, trainer: L.Trainer, pl_module: Any, stage: str) -> None:
        pl_module.network.to(memory_format=torch.contiguous_format)


def diaries_that_agree(folder: Path) -> list[dict[str, Any]]:
    """What two processes wrote down (Diary), after a look at whether one alone had the same
    batches."""
    one, *two = (
        torch.load(folder / name, weights_only=True)
        for name in ("one/rank0.pt", "two/rank0.pt", "two/rank1.pt")
    )
    for b, (r0, r1) in zip(
        one["batches"], zip(*(t["batches"] for t in two), strict=True), strict=True
    ):
        for key in ("rates", "window", "step"):
            assert b[key] == r0[key] == r1[key], key
        assert b["images"] == r0["images"] + r1["images"]
    return two


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
