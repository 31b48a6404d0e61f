"""Which statistics of batch norm validation uses, against a plain loop over the batches."""

from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from made_options import made_detector
from original_recipe import MODEL
from torch import Tensor, nn

import cli
from boltbox.callbacks import EMA, AutoAnchor, Pictures, Report, recipe
from boltbox.callbacks.ema import EXPONENT
from boltbox.detector.data.datamodule import DetectionData
from boltbox.detector.training.module import Detector
from boltbox.detector.training.schedule import power_decay

FIRST = "backbone.stem.bn"


class Seen(L.Callback):
    """(mean, unbiased variance) of what the first batch norm was given in each training batch."""

    def __init__(self) -> None:
        self.batches: list[tuple[Tensor, Tensor]] = []

    def on_train_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        def look(norm: nn.Module, inputs: tuple[Tensor]) -> None:
            if norm.training:
                values = inputs[0].detach().double().permute(1, 0, 2, 3).flatten(1)
                self.batches.append((values.mean(1), values.var(1)))

        pl_module.network.get_submodule(FIRST).register_forward_pre_hook(look)


def train(
    data: Path, run: Path, average: EMA, **options: Any
) -> tuple[Detector, list[tuple[Tensor, Tensor]]]:
    L.seed_everything(0)
    seen = Seen()
    module = DetectionData(str(data), image_size=64, batch_size=4, workers=0)
    small = {"width_multiple": 0.125, "depth_multiple": 0.1}
    detector = made_detector(module.names, **small, **options)
    quiet = {"enable_progress_bar": False, "precision": "32-true", "accelerator": "cpu"}
    parts = [Report(enabled=False), Pictures(enabled=False), AutoAnchor(enabled=False)]
    callbacks = [seen, average, *parts]
    trainer = L.Trainer(**recipe(run=run, max_epochs=2, callbacks=callbacks, **quiet))
    trainer.fit(detector, module)
    return detector, seen.batches


def assert_statistics(network: nn.Module, expected: tuple[Tensor, Tensor]) -> None:
    norm = network.get_submodule(FIRST)
    for buffer, value in zip((norm.running_mean, norm.running_var), expected, strict=True):
        torch.testing.assert_close(buffer.double(), value, rtol=1e-4, atol=1e-6)


def test_averaged_as_the_weights_are(small_data: Path, tmp_path: Path) -> None:
    """Each step moves the average towards the batch's own statistics, not towards running ones that
    lag behind."""
    average = EMA()
    detector, batches = train(small_data, tmp_path / "run", average, nominal_batch_size=4)
    assert average.updates == len(batches) > 8
    expected = (torch.zeros(()), torch.ones(()))
    for update, batch in enumerate(batches, 1):
        kept = power_decay(update, EXPONENT)
        expected = tuple(
            kept * old + (1 - kept) * new for old, new in zip(expected, batch, strict=True)
        )  # type: ignore[assignment]
    assert detector.ema is not None
    assert_statistics(detector.ema, expected)


@pytest.mark.parametrize(("options", "momentum"), [({}, 0.1), (MODEL, 0.03)])
def test_running_statistics(
    options: dict[str, Any], momentum: float, small_data: Path, tmp_path: Path
) -> None:
    """Without an average, and with a momentum of one's own: YOLOv5's is .03."""
    detector, batches = train(small_data, tmp_path / "run", EMA(enabled=False), **options)
    expected = (torch.zeros(()), torch.ones(()))
    for batch in batches:
        expected = tuple(
            old + momentum * (new - old) for old, new in zip(expected, batch, strict=True)
        )  # type: ignore[assignment]
    assert_statistics(detector.network, expected)


def test_a_momentum_out_of_range(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["fit", "--model.network.bn_momentum", "0"])
    assert "model.network.bn_momentum" in capsys.readouterr().err
