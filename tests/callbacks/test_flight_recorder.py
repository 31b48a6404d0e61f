"""Non-finite numbers, crashes of the loader and lack of memory in real trainings: the report."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
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
from boltbox.callbacks.training_guard import TrainingGuard
from boltbox.callbacks.warmup import Warmup
from boltbox.detector.data.datamodule import DetectionData
from boltbox.detector.data.demo import make_demo
from boltbox.detector.data.loading.sampler import TrainBatches
from boltbox.detector.data.sample import Batch
from boltbox.detector.data.transforms.augment import Augment
from boltbox.detector.system.errors import InputError
from boltbox.detector.training.incident import Incident, kind_of
from boltbox.detector.training.module import Detector


def test_stop_reports_the_batch(small_data: Path, tmp_path: Path) -> None:
    poison, module, data = Poison((1, 1)), detector_of_the_data(), data_of(small_data)
    trainer = trainer_in(tmp_path, Warmup(warmup_epochs=0), poison, TrainingGuard())
    with pytest.raises(InputError) as told:
        trainer.fit(module, data)
    assert type(told.value) is Incident
    assert reports(tmp_path).keys() == {"incident-1-1.json"}
    report, images = reports(tmp_path)["incident-1-1.json"], poison.seen[1, 1]
    assert len(set(images)) == 8
    assert (report["kind"], report["split"], report["epoch"], report["batch"]) == (
        "non-finite loss",
        "train",
        1,
        1,
    )
    assert report["global_step"] == 4
    assert report["indices"] == images
    assert report["files"] == [str(data.path("train", i)) for i in images]
    assert all(Path(file).is_file() for file in report["files"])
    assert report["losses"].keys() == {"box", "obj", "cls"}
    assert set(report["losses"].values()) == {"nan"}
    lr = pytest.approx(0.01 * (0.5 * 0.99 + 0.01))  # epoch 1 of 2, linear
    assert report["groups"] == [
        {"name": name, "lr": lr, "momentum": 0.937} for name in ("bias", "weight", "norm")
    ]
    assert report["parameters"] == [name for name, _ in module.named_parameters()][:10]
    assert (report["policy"], report["done"], report["roll_backs"]) == ("stop", "stopped", 0)
    assert (report["grad_scale"], report["exception"]) == (None, None)
    assert report["config"] == str(tmp_path / "config.yaml")
    sentence = str(told.value)
    for part in (
        "non-finite loss in epoch 1, batch 1",
        *report["files"][:3],
        "and 5 more",
        "incident-1-1.json",
        "model.optim.lr0",
    ):
        assert part in sentence
    assert told.value.report == tmp_path / "checkpoints/incident-1-1.json"
    assert "\n" not in sentence
    assert all(bool(p.isfinite().all()) for p in module.parameters())


def test_stop_on_a_gradient_names_its_parameter(small_data: Path, tmp_path: Path) -> None:
    """Before clipping, which makes all gradients NaN; and before any weight has changed."""
    name = "network.head.convs.0.weight"
    # windows of two batches, and the third alone
    module = detector_of_the_data(nominal_batch_size=16)
    recorder, poison = TrainingGuard(), Poison()
    trainer = trainer_in(
        tmp_path, Warmup(warmup_epochs=0), poison, BadGradient(name, (0, 0)), recorder
    )
    with pytest.raises(Incident, match="non-finite gradient in epoch 0, batch 1"):
        trainer.fit(module, data_of(small_data))
    report = reports(tmp_path)["incident-0-1.json"]
    assert report["parameters"] == [name]
    assert (report["indices"], report["window"]) == (poison.seen[0, 1], poison.seen[0, 0])
    assert all(np.isfinite(v) for v in report["losses"].values())
    assert report["global_step"] == 0
    fresh = dict(detector_of_the_data().named_parameters())
    assert all(torch.equal(p, fresh[n]) for n, p in module.named_parameters())


def test_nothing_is_reported_of_a_healthy_training(small_data: Path, tmp_path: Path) -> None:
    weights = []
    for callbacks in ([], [TrainingGuard()], [TrainingGuard("roll_back")]):
        module = detector_of_the_data()
        trainer_in(tmp_path, Warmup(), EMA(), *callbacks).fit(module, data_of(small_data))
        weights.append(module.state_dict())
    assert reports(tmp_path) == {}
    for other in weights[1:]:
        assert all(torch.equal(v, weights[0][k]) for k, v in other.items())


@pytest.mark.parametrize("policy", ["stop", "roll_back"])
def test_an_overflow_of_float16_is_the_scalers_business(policy: Any, tmp_path: Path) -> None:
    scaler, steps, module = (
        torch.amp.GradScaler("cpu", init_scale=2.0**30),
        Steps(),
        small_detector(),
    )
    callbacks = [Warmup(warmup_epochs=0), TrainingGuard(policy), steps]
    trainer = trainer_in(tmp_path, *callbacks, plugins=[MixedPrecision("16-mixed", "cpu", scaler)])
    trainer.fit(module, DataLoader(batches(), batch_size=None))  # type: ignore[arg-type]
    assert len(steps.taken) < 4  # the scaler left some out
    assert scaler.get_scale() < 2.0**30
    assert reports(tmp_path) == {}
    assert finite(module)


def test_a_bad_loss_is_an_incident_with_a_scaler_too(small_data: Path, tmp_path: Path) -> None:
    plugins = [MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=512.0))]
    trainer = trainer_in(tmp_path, Warmup(), Poison((0, 1)), TrainingGuard(), plugins=plugins)
    with pytest.raises(Incident, match="non-finite loss"):
        trainer.fit(detector_of_the_data(), data_of(small_data))
    assert reports(tmp_path)["incident-0-1.json"]["grad_scale"] == 512.0


class Vanishing(DetectionData):
    """One image file disappears after the data set was opened."""

    lost: tuple[str, int]

    def train_dataloader(self) -> DataLoader:
        self.path(*self.lost).unlink()
        return super().train_dataloader()


@pytest.mark.parametrize("split", ["train", "val"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_crash_of_the_loader_names_the_batch(workers: int, split: str, tmp_path: Path) -> None:
    made = make_demo(tmp_path / "demo", train=24, val=8)
    order = [
        [key.index for key in keys] for keys in TrainBatches(24, 8, 0, lambda: (0, 0)).batches(0)
    ]
    lost, batch, images = (order[1][5], 1, order[1]) if split == "train" else (3, 0, list(range(8)))
    data = Vanishing(
        str(made),
        image_size=64,
        batch_size=8,
        workers=workers,
        augment=Augment(mosaic=0.0),
        cache="none",
    )
    data.lost, recorder = (split, lost), TrainingGuard()
    with pytest.raises(Exception, match=f"{lost:04d}.jpg") as crash:
        trainer_in(tmp_path, Warmup(), recorder).fit(detector_of_the_data(), data)
    assert not isinstance(crash.value, Incident)
    assert reports(tmp_path).keys() == {f"incident-0-{batch}.json"}
    report = reports(tmp_path)[f"incident-0-{batch}.json"]
    assert (report["kind"], report["split"], report["batch"]) == ("data loader", split, batch)
    assert sorted(report["indices"]) == sorted(images)
    assert report["files"] == [str(data.path(split, i)) for i in report["indices"]]
    assert type(crash.value).__name__ in report["exception"]
    assert "dataloader.py" in report["traceback"]
    assert report["losses"] is None
    assert recorder.incident is not None
    assert recorder.incident.report == tmp_path / f"checkpoints/incident-0-{batch}.json"
    assert re.match(
        rf"data loader in epoch 0, [a-z ]*batch {batch}; .*{lost:04d}.jpg.*; images ",
        str(recorder.incident),
    )
    assert "\n" not in str(recorder.incident)


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


@pytest.mark.parametrize("where", ["training", "validation"])
@pytest.mark.parametrize("kind", [torch.OutOfMemoryError, RuntimeError])
def test_lack_of_memory(
    kind: type[Exception], where: str, small_data: Path, tmp_path: Path
) -> None:
    module, poison, recorder, data = (
        Hungry(**detector_of_the_data().hparams),
        Poison(),
        TrainingGuard(),
        data_of(small_data),
    )
    module.error, module.where = kind("CUDA out of memory. Tried to allocate 2 GiB"), where
    with pytest.raises(kind, match="Tried to allocate 2 GiB") as crash:
        trainer_in(tmp_path, Warmup(), poison, recorder).fit(module, data)
    ((name, report),) = reports(tmp_path).items()
    assert crash.value.__notes__ == [f"report: {tmp_path / 'checkpoints' / name}"]
    assert (report["kind"], report["done"], report["policy"]) == (
        "out of memory",
        "stopped",
        "stop",
    )
    assert "Tried to allocate 2 GiB" in report["exception"]
    if where == "training":
        assert (name, report["indices"]) == ("incident-0-1.json", poison.seen[0, 1])
    else:
        assert (name, report["split"], sorted(report["indices"])) == (
            "incident-0-0.json",
            "val",
            list(range(8)),
        )
        assert report["files"] == [str(data.path("val", i)) for i in report["indices"]]
    assert "data.batch_size" in str(recorder.incident)


class Crashing(L.Callback):
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, out: Any, batch: Any, idx: int
    ) -> None:
        if idx == 1:
            raise self.error


def test_any_other_crash(small_data: Path, tmp_path: Path) -> None:
    recorder, crashing = TrainingGuard(), Crashing(ZeroDivisionError("by zero"))
    with pytest.raises(ZeroDivisionError):
        trainer_in(tmp_path, Warmup(), recorder, crashing).fit(
            detector_of_the_data(), data_of(small_data)
        )
    report = reports(tmp_path)["incident-0-1.json"]
    assert (report["kind"], report["exception"]) == ("other", "ZeroDivisionError: by zero")
    assert "raise self.error" in report["traceback"]
    assert recorder.incident is None  # a bug: its traceback is what counts


@pytest.mark.parametrize(
    "error", [InputError("a user's mistake"), SystemExit(143)], ids=["mistake", "signal"]
)
def test_no_report_of_what_is_no_crash(
    error: BaseException, small_data: Path, tmp_path: Path
) -> None:
    recorder = TrainingGuard()
    with pytest.raises(type(error)):
        trainer_in(tmp_path, Warmup(), recorder, Crashing(error)).fit(
            detector_of_the_data(), data_of(small_data)
        )
    assert (reports(tmp_path), recorder.incident) == ({}, None)


def test_a_report_that_cannot_be_written_does_not_hide_the_incident(
    small_data: Path, tmp_path: Path, capsys: Any
) -> None:
    (tmp_path / "checkpoints").write_text("in the way")
    with pytest.raises(Incident, match="non-finite loss in epoch 0, batch 0") as told:
        trainer_in(tmp_path, Warmup(), Poison((0, 0)), TrainingGuard()).fit(
            detector_of_the_data(), data_of(small_data)
        )
    assert told.value.report is None
    assert "report:" not in str(told.value)
    assert "incident-0-0.json could not be written" in capsys.readouterr().out


def test_a_killed_worker_is_the_loaders() -> None:
    """The signal arrives anywhere in the main process, so only the message tells."""
    assert (
        kind_of(RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. "))
        == "worker killed"
    )
    assert kind_of(RuntimeError("something else")) == "other"


@pytest.mark.parametrize(
    "options", [{"lr_factor": 0.0}, {"lr_factor": 1.5}, {"most_roll_backs": -1}]
)
def test_options_out_of_range(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(options))):
        TrainingGuard(**options)


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

    for name in [n for n in vars(TrainingGuard) if n.startswith("on_") or n == "_see"]:
        monkeypatch.setattr(TrainingGuard, name, counted(getattr(TrainingGuard, name)))
    trainer = trainer_in(tmp_path, Warmup(), EMA(), TrainingGuard(policy))
    trainer.fit(small_detector(), DataLoader(batches(), batch_size=None))  # type: ignore[arg-type]
    assert trainer.global_step > 2
    assert reads.count == 2 * BATCHES


def test_two_processes_stop_together(small_data: Path, tmp_path: Path) -> None:
    """NaN in the second one only: the first one's report names the images of the second."""
    trainer = spawn(
        2,
        max_epochs=1,
        callbacks=[Warmup(), Poison((0, 1), rank=1), TrainingGuard()],
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
    assert report["processes"] == [1]
    assert set(report["losses"].values()) == {"nan"}
