"""The accumulation window, clipping and mixed precision under Lightning, against a plain loop."""

from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.plugins import MixedPrecision
from original_recipe import yolov5_average
from plain_loop import CLIP, EPOCHS, Steps, batches, plain_loop, small_detector, spawn
from torch.utils.data import DataLoader

from boltbox.callbacks import Warmup
from boltbox.detector.training.schedule import lr_factor


@pytest.mark.parametrize(
    ("half", "literal"),
    [(False, False), (True, True)],
    ids=["float32", "literal, float16 with scaler"],
)
def test_training_equals_a_plain_loop_to_the_last_bit(half: bool, literal: bool) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0) if half else None
    wanted, wanted_average, wanted_steps = plain_loop(
        small_detector(literal=literal, levels=[5]), scaler, literal
    )

    module = small_detector(literal=literal, levels=[5])
    steps = Steps()
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=EPOCHS,
        gradient_clip_val=CLIP,
        plugins=[MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=1024.0))]
        if half
        else None,
        callbacks=[Warmup(), yolov5_average(), steps],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, DataLoader(batches(), batch_size=None))  # type: ignore[arg-type]
    assert steps.taken == wanted_steps
    assert module.ema is not None
    for ours, theirs in ((module.network, wanted), (module.ema, wanted_average)):
        assert all(torch.equal(v, theirs[k]) for k, v in ours.state_dict().items())


class BiasRates(L.Callback):
    """The learning rate of the biases in every iteration."""

    def __init__(self) -> None:
        self.used: list[float] = []

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any
    ) -> None:
        self.used.append(trainer.optimizers[0].param_groups[0]["lr"])
        assert trainer.optimizers[0].param_groups[0]["name"] == "bias"


def test_rates_after_the_warmup_of_yolov5() -> None:
    """To the end of the epoch they are those of the end of the warm-up, then one epoch late."""
    module = small_detector(levels=[5], literal=True)
    rates = BiasRates()
    spawn(1, max_epochs=4, callbacks=[Warmup(warmup_epochs=2), rates]).fit(
        module, DataLoader((batches() * 45)[:45], batch_size=None)
    )  # type: ignore[arg-type]
    assert len(set(rates.used[90:101])) == 11  # the warm-up takes 100 iterations
    assert rates.used[100:] == pytest.approx([0.01 * lr_factor(2, 4, 0.01)] * 80)
