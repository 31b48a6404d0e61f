"""Lightning's Tuner: what it finds is what the next fit trains with, and nothing else of its search
stays."""

from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
import yaml
from lightning.pytorch.tuner import Tuner
from test_python import SMALL, options, small_detector

import boltbox
from boltbox.detector.data.datamodule import DetectionData
from boltbox.detector.training import lr_find
from boltbox.detector.training.module import Detector


class Rates(L.Callback):
    """lr of each group in each optimizer step."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[list[float]] = []
        step = torch.optim.Optimizer.zero_grad  # called after every step

        def see(optimizer: torch.optim.Optimizer, *given: Any, **named: Any) -> None:
            self.seen.append([group["lr"] for group in optimizer.param_groups])
            step(optimizer, *given, **named)

        monkeypatch.setattr(torch.optim.Optimizer, "zero_grad", see)


def made(
    data: Path, run: str, epochs: int, batch_size: int = 8, lr0: float | None = None
) -> tuple[L.Trainer, Detector, DetectionData]:
    """As in docs/python.md, smaller; 24 images."""
    L.seed_everything(0)
    module = DetectionData(str(data), **SMALL | {"batch_size": batch_size, "val_batch_size": 8})
    detector = small_detector(module, lr0=lr0)
    return (
        L.Trainer(
            **options(run=run, max_epochs=epochs, limit_train_batches=1.0, limit_val_batches=0)
        ),
        detector,
        module,
    )


def weights(run: str) -> dict[str, torch.Tensor]:
    return torch.load(Path(run) / "checkpoints/last.ckpt", weights_only=True)["state_dict"]


def equal(run: str, other: str) -> bool:
    ours = weights(run)
    theirs = weights(other)
    return ours.keys() == theirs.keys() and all(
        torch.equal(value, theirs[name]) for name, value in ours.items()
    )


def test_the_rate_it_finds_is_trained_with(
    small_data: Path, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """Every rate of the search is the one of a step, across epochs; the run after it is that of a
    Detector(lr0=...)."""
    trainer, detector, data = made(small_data, "tuned", 5)
    with monkeypatch.context() as patch:
        rates = Rates(patch)
        finder = Tuner(trainer).lr_find(
            detector, datamodule=data, num_training=15, max_lr=0.1, early_stop_threshold=None
        )
    assert finder is not None
    assert [groups[0] for groups in rates.seen[:15]] == pytest.approx(finder.results["lr"][:15])
    assert all(len(set(groups)) == 1 for groups in rates.seen[:15])
    found = finder.suggestion()
    assert found is not None
    assert found != 0.008
    assert (detector.lr, detector.hparams["optim"]["lr0"]) == (found, found)
    capsys.readouterr()
    trainer.fit_loop.max_epochs = 1
    trainer.fit(detector, data)
    told = capsys.readouterr().out
    assert f"lr0 {found:g} (" in told
    assert "run:       tuned (new)\n" in told
    assert yaml.safe_load(Path("tuned/config.yaml").read_text())["model"]["optim"]["lr0"] == found

    trainer, detector, data = made(small_data, "given", 1, lr0=found)
    trainer.fit(detector, data)
    assert equal("tuned", "given")


def test_the_range_around_the_recipes_rate(
    small_data: Path, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """What is found is trained with; a search that is too short finds none, and says so. The losses
    are those of the steps, not Lightning's average."""
    trainer, detector, data = made(small_data, "tuned", 10)
    recipes = detector.lr
    step = Detector.training_step
    losses = list[float]()

    def recorded(self: Detector, *given: Any) -> Any:
        output = step(self, *given)
        losses.append(float(output["loss"]))
        return output

    def sixth(rates: Any, found: Any) -> float:
        assert found.tolist() == pytest.approx(losses[-12:], rel=0.001)
        return float(rates[5])

    with monkeypatch.context() as patch:
        rates = Rates(patch)
        assert boltbox.find_lr(trainer, detector, steps=12, datamodule=data) is None
    assert rates.seen[0][0] == pytest.approx(recipes / 100)
    assert rates.seen[11][0] == pytest.approx(recipes * 100)
    assert detector.lr == recipes
    assert "find_lr: no rate found, lr0 stays 0.008" in capsys.readouterr().out
    monkeypatch.setattr(Detector, "training_step", recorded)
    monkeypatch.setattr(lr_find, "rate_below_minimum", sixth)
    found = boltbox.find_lr(trainer, detector, steps=12, datamodule=data)
    assert found == detector.lr == pytest.approx(rates.seen[5][0])


def test_the_batch_size_it_finds_is_trained_with(small_data: Path, here: Path) -> None:
    trainer, detector, data = made(small_data, "tuned", 1)
    assert (
        Tuner(trainer).scale_batch_size(detector, datamodule=data, max_trials=2, steps_per_trial=1)
        == 4
    )
    trainer.fit(detector, data)
    assert yaml.safe_load(Path("tuned/config.yaml").read_text())["data"]["batch_size"] == 4

    trainer, detector, data = made(small_data, "given", 1, batch_size=4)
    trainer.fit(detector, data)
    assert equal("tuned", "given")
