"""Batch norm's statistics for validation: which rule keeps up with a network that learns fast?

    python -m benchmarks.batch_norm_lag --data DATA.yaml [--weights yolov5n.pt] [--size 224]
    [--epochs 20] [--seed 0]

Training uses the statistics of the batch, so the rule that collects them for validation changes no
weight: one training carries them all. The network runs with momentum 1 (its buffers are the last
batch's statistics), and each rule makes of these its own buffers. After some epochs the moving
average of the weights is validated with each of them, on val.

| rule | what validation uses |
|---|---|
| 0.03 | running statistics of momentum .03 (YOLOv5's), averaged as the weights are |
| 0.1 | the same with momentum .1 |
| average | the batches' own statistics (momentum 1), averaged as the weights are |
| precise | the averaged network's own, over the last ten training batches (Wu and Johnson 2021, arXiv 2105.07576) |
"""

import argparse
import copy
import json
from collections import deque
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn

from boltbox.callbacks import recipe
from boltbox.callbacks.report import Report
from boltbox.detector.data.datamodule import DetectionData
from boltbox.detector.training.module import Detector
from boltbox.detector.weights.start import StartOptions

MOMENTA = {"0.03": 0.03, "0.1": 0.1, "average": 1.0}
PRECISE_BATCHES = 10


def norms(network: nn.Module) -> list[nn.BatchNorm2d]:
    return [m for m in network.modules() if isinstance(m, nn.BatchNorm2d)]


def statistics(network: nn.Module) -> list[Tensor]:
    """The buffers themselves: mean and variance of each layer."""
    return [t for m in norms(network) for t in (m.running_mean, m.running_var) if t is not None]


class Rules(L.Callback):
    """The statistics of each rule beside one training, and the figures of each on val after the
    epochs of `when`."""

    def __init__(self, when: set[int]) -> None:
        self.when, self.rows = when, []  # type: ignore[var-annotated]
        self.images: deque[Tensor] = deque(maxlen=PRECISE_BATCHES)
        self.updates = 0

    def on_train_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        start = [t.clone() for t in statistics(pl_module.network)]
        self.running = {rule: [t.clone() for t in start] for rule in MOMENTA}
        self.averaged = {rule: [t.clone() for t in start] for rule in MOMENTA}
        for norm in norms(pl_module.network):
            norm.momentum = 1.0
        self.ema = next(c for c in trainer.callbacks if type(c).__name__ == "EMA")  # type: ignore[attr-defined]
        trainer.optimizers[0].register_step_post_hook(lambda *_: self._average())

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        self.images.append(batch.images)
        self.network = pl_module.network

    def _average(self) -> None:
        """After the forward and backward pass of a batch that ends in a step. (These runs step
        after every batch.)"""
        batch = statistics(self.network)
        self.updates += 1
        assert self.updates == self.ema.updates
        for rule, momentum in MOMENTA.items():
            torch._foreach_lerp_(self.running[rule], batch, momentum)
            torch._foreach_lerp_(self.averaged[rule], self.running[rule], 1 - self.ema._kept())

    def on_validation_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        epoch = trainer.current_epoch + 1
        if trainer.sanity_checking or epoch not in self.when:
            return
        kept = [t.clone() for t in statistics(pl_module.ema)]
        for rule in (*MOMENTA, "precise"):
            values = self._precise(pl_module.ema) if rule == "precise" else self.averaged[rule]
            figures = self._validate(trainer, pl_module, values)
            self.rows.append({"epoch": epoch, "rule": rule, **figures})
            print(epoch, rule, {k: round(v, 4) for k, v in figures.items()}, flush=True)
        torch._foreach_copy_(statistics(pl_module.ema), kept)
        pl_module.on_validation_start()

    @torch.no_grad()
    def _precise(self, ema: nn.Module) -> list[Tensor]:
        network = copy.deepcopy(ema).train()
        for norm in norms(network):
            norm.reset_running_stats()
            norm.momentum = None  # a plain mean over the batches
            norm.__class__ = nn.BatchNorm2d
        for images in self.images:
            network(images)
        return statistics(network)

    def _validate(
        self, trainer: L.Trainer, pl_module: Any, values: list[Tensor]
    ) -> dict[str, float]:
        torch._foreach_copy_(statistics(pl_module.ema), values)
        pl_module.on_validation_start()
        for batch in trainer.val_dataloaders:  # type: ignore[union-attr]
            pl_module.validation_step(pl_module._apply_batch_transfer_handler(batch), 0)
        result = pl_module.metrics.compute()
        summary, losses = result.summary, result.losses
        return {
            "mAP50": summary["mAP50"],
            "AP": summary["coco/AP"],
            "loss": sum(losses.values()),
        }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="demo")
    parser.add_argument("--weights")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--precision",
    )
    parser.add_argument("--run", type=Path, required=True)
    options = parser.parse_args()
    L.seed_everything(options.seed)
    data = DetectionData(
        options.data, image_size=options.size, batch_size=options.batch, seed=options.seed
    )
    detector = Detector(data.names, start=StartOptions(weights=options.weights))
    early = {1, 2, 3, 4, 5, 6, 8, 10, 12, 15}
    rules = Rules({e for e in range(1, options.epochs + 1) if e in early or e % 5 == 0})
    precision = {"precision": options.precision} if options.precision else {}
    given = {
        "max_epochs": options.epochs,
        "enable_progress_bar": False,
        "callbacks": [rules, Report(enabled=False)],
    }
    trainer = L.Trainer(**recipe(run=options.run, **given, **precision))
    trainer.fit(detector, data)
    (options.run / "rules.json").write_text(json.dumps(rules.rows))
    print("| epoch | " + " | ".join((*MOMENTA, "precise")) + " |\n|" + "---|" * (len(MOMENTA) + 2))
    for epoch in sorted({row["epoch"] for row in rules.rows}):
        cells = [f"{r['mAP50']:.3f} / {r['loss']:.2f}" for r in rules.rows if r["epoch"] == epoch]
        print(f"| {epoch} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
