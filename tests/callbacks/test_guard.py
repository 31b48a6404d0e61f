"""Non-finite numbers, crashes and lack of memory in real trainings: the report."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.plugins import MixedPrecision
from made_trouble import (
    BadGradient,
    Poison,
    data_of,
    detector_of_the_data,
    finite,
    reports,
    trainer_in,
)
from plain_loop import BATCHES, Steps, batches, small_detector, spawn
from torch import Tensor
from torch.multiprocessing import ProcessRaisedException
from torch.overrides import TorchFunctionMode
from torch.utils.data import DataLoader

from boltbox.callbacks.ema import EMA
from boltbox.callbacks.guard import Guard, Incident
from boltbox.callbacks.warmup import Warmup
from boltbox.detector.data.sample import Batch
from boltbox.detector.data.sampler import TrainBatches
from boltbox.detector.system.errors import InputError
from boltbox.detector.training.module import Detector


def test_stop_reports_the_batch(small_data: Path, tmp_path: Path) -> None:
    poison = Poison((1, 1))
    module = detector_of_the_data()
    data = data_of(small_data)
    trainer = trainer_in(tmp_path, Warmup(warmup_epochs=0), poison, Guard())
    with pytest.raises(InputError) as told:
        trainer.fit(module, data)
    assert type(told.value) is Incident
    assert reports(tmp_path).keys() == {"incident-1-1.json"}
    report = reports(tmp_path)["incident-1-1.json"]
    images = poison.seen[1, 1]
    assert len(set(images)) == 8
    assert (report["kind"], report["split"], report["epoch"], report["batch"]) == (
        "non-finite loss",
        "train",
        1,
        1,
    )
    assert report["indices"] == images
    assert report["files"] == [str(data.path("train", i)) for i in images]
    assert all(Path(file).is_file() for file in report["files"])
    lr = pytest.approx(0.01 * (0.5 * 0.99 + 0.01))  # epoch 1 of 2, linear
    assert report["learning_rates"] == dict.fromkeys(("bias", "weight", "norm"), lr)
    assert report["parameters"] == [name for name, _ in module.named_parameters()][:10]
    assert (report["done"], report["roll_backs"]) == ("stopped", 0)
    sentence = str(told.value)
    for part in (
        "non-finite loss in epoch 1, batch 1",
        *report["files"][:3],
        "and 5 more",
        "incident-1-1.json",
        "model.optim.lr0",
    ):
        assert part in sentence
    assert "\n" not in sentence
    assert all(bool(p.isfinite().all()) for p in module.parameters())


def test_stop_on_a_gradient_names_its_parameter(small_data: Path, tmp_path: Path) -> None:
    """Before clipping, which makes all gradients NaN; and before any weight has changed."""
    name = "network.head.convs.0.weight"
    # windows of two batches, and the third alone
    module = detector_of_the_data(nominal_batch_size=16)
    guard = Guard()
    poison = Poison()
    trainer = trainer_in(
        tmp_path, Warmup(warmup_epochs=0), poison, BadGradient(name, (0, 0)), guard
    )
    with pytest.raises(Incident, match="non-finite gradient in epoch 0, batch 1"):
        trainer.fit(module, data_of(small_data))
    report = reports(tmp_path)["incident-0-1.json"]
    assert report["parameters"] == [name]
    assert report["indices"] == poison.seen[0, 1]
    fresh = dict(detector_of_the_data().named_parameters())
    assert all(torch.equal(p, fresh[n]) for n, p in module.named_parameters())


def test_nothing_is_reported_of_a_healthy_training(small_data: Path, tmp_path: Path) -> None:
    weights = []
    for callbacks in ([], [Guard()], [Guard("roll_back")]):
        module = detector_of_the_data()
        trainer = trainer_in(tmp_path, Warmup(), EMA(), *callbacks, limit_val_batches=1)
        trainer.fit(module, data_of(small_data))
        weights.append(module.state_dict())
    assert reports(tmp_path) == {}
    for other in weights[1:]:
        assert all(torch.equal(v, weights[0][k]) for k, v in other.items())


@pytest.mark.parametrize("policy", ["stop", "roll_back"])
def test_an_overflow_of_float16_is_the_scalers_business(policy: Any, tmp_path: Path) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**30)
    steps = Steps()
    module = small_detector()
    callbacks = [Warmup(warmup_epochs=0), Guard(policy), steps]
    trainer = trainer_in(tmp_path, *callbacks, plugins=[MixedPrecision("16-mixed", "cpu", scaler)])
    trainer.fit(module, DataLoader(batches(), batch_size=None))  # type: ignore[arg-type]
    assert len(steps.taken) < 4  # the scaler left some out
    assert scaler.get_scale() < 2.0**30
    assert reports(tmp_path) == {}
    assert finite(module)


def test_a_bad_loss_is_an_incident_with_a_scaler_too(small_data: Path, tmp_path: Path) -> None:
    plugins = [MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=512.0))]
    trainer = trainer_in(tmp_path, Warmup(), Poison((0, 1)), Guard(), plugins=plugins)
    with pytest.raises(Incident, match="non-finite loss"):
        trainer.fit(detector_of_the_data(), data_of(small_data))
    assert reports(tmp_path).keys() == {"incident-0-1.json"}


class Hungry(Detector):
    """Runs out of memory in the second training batch, or in the first of validation."""

    error: Exception
    where: str

    def training_step(self, batch: Batch, batch_idx: int) -> dict[str, Tensor]:
        if self.where == "training" and batch_idx == 1:
            raise self.error
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: Batch, batch_idx: int) -> Any:
        if self.where == "validation":
            raise self.error
        return super().validation_step(batch, batch_idx)


@pytest.mark.parametrize(
    ("kind", "where"), [(torch.OutOfMemoryError, "training"), (RuntimeError, "validation")]
)
def test_lack_of_memory(
    kind: type[Exception], where: str, small_data: Path, tmp_path: Path
) -> None:
    module = Hungry(**detector_of_the_data().hparams)
    poison = Poison()
    guard = Guard()
    data = data_of(small_data)
    module.error = kind("CUDA out of memory. Tried to allocate 2 GiB")
    module.where = where
    with pytest.raises(kind, match="Tried to allocate 2 GiB") as crash:
        trainer_in(tmp_path, Warmup(), poison, guard, limit_val_batches=1).fit(module, data)
    ((name, report),) = reports(tmp_path).items()
    assert name in str(crash.value.__notes__)
    assert report["kind"] == "out of memory"
    assert "Tried to allocate 2 GiB" in report["done"]
    split, batch = ("train", 1) if where == "training" else ("val", 0)
    assert (name, report["split"]) == (f"incident-0-{batch}.json", split)
    images = poison.seen[0, 1] if where == "training" else range(8)
    assert sorted(report["indices"]) == sorted(images)
    assert report["files"] == [str(data.path(split, i)) for i in report["indices"]]
    explanation = str(guard.explanation)
    assert "data.batch_size" in explanation
    assert "\n" not in explanation


class Crashing(L.Callback):
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, out: Any, batch: Any, idx: int
    ) -> None:
        if idx == 1:
            raise self.error


@pytest.mark.parametrize(
    "error",
    [InputError("a user's mistake"), SystemExit(143), ZeroDivisionError("by zero")],
    ids=["mistake", "signal", "bug"],
)
def test_no_report_of_other_errors(error: BaseException, small_data: Path, tmp_path: Path) -> None:
    guard = Guard()
    with pytest.raises(type(error)):
        trainer_in(tmp_path, Warmup(), guard, Crashing(error)).fit(
            detector_of_the_data(), data_of(small_data)
        )
    assert (reports(tmp_path), guard.explanation) == ({}, None)


def test_a_report_that_cannot_be_written_does_not_hide_the_incident(
    small_data: Path, tmp_path: Path, capsys: Any
) -> None:
    (tmp_path / "checkpoints").write_text("in the way")
    with pytest.raises(Incident, match="non-finite loss in epoch 0, batch 0"):
        trainer_in(tmp_path, Warmup(), Poison((0, 0)), Guard()).fit(
            detector_of_the_data(), data_of(small_data)
        )
    assert "incident-0-0.json could not be written" in capsys.readouterr().out


def test_a_killed_worker_is_explained(small_data: Path, tmp_path: Path) -> None:
    error = RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. ")
    guard = Guard()
    with pytest.raises(RuntimeError, match="pid 7"):
        trainer_in(tmp_path, Warmup(), guard, Crashing(error)).fit(
            detector_of_the_data(), data_of(small_data)
        )
    assert "data.workers" in str(guard.explanation)


class Reads(TorchFunctionMode):
    """Counts what makes the process wait for the device."""

    waiting = (
        "item",
        "tolist",
        "cpu",
        "numpy",
        "nonzero",
        "__bool__",
        "__float__",
        "__int__",
        "__index__",
        "__contains__",
    )

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += getattr(func, "__name__", "") in self.waiting
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("policy", ["stop", "roll_back"])
def test_the_device_is_waited_for_once_a_batch(
    policy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = Reads()

    def counted(hook: Callable) -> Callable:
        def call(*args: Any) -> Any:
            with reads:
                return hook(*args)

        return call

    for name in [n for n in vars(Guard) if n.startswith("on_")]:
        monkeypatch.setattr(Guard, name, counted(getattr(Guard, name)))
    trainer = trainer_in(tmp_path, Warmup(), EMA(), Guard(policy), max_epochs=1)
    trainer.fit(small_detector(), DataLoader(batches(), batch_size=None))  # type: ignore[arg-type]
    assert trainer.global_step > 1
    assert reads.count == BATCHES


def test_two_processes_stop_together(small_data: Path, tmp_path: Path) -> None:
    """NaN in the second one only: the first one's report names the images of the second."""
    trainer = spawn(
        2,
        max_epochs=1,
        callbacks=[Warmup(), Poison((0, 1), rank=1), Guard()],
        default_root_dir=tmp_path,
    )
    with pytest.raises(
        ProcessRaisedException, match="Incident: non-finite loss in epoch 0, batch 1"
    ):
        trainer.fit(detector_of_the_data(), data_of(small_data))
    assert reports(tmp_path).keys() == {"incident-0-1.json"}
    report = reports(tmp_path)["incident-0-1.json"]
    batch = TrainBatches(24, 8, 0, lambda: (0, 0)).batches(0)[1]
    assert report["indices"] == [key.index for key in batch[1::2]]
