"""Non-finite numbers, crashes of the loader and lack of memory in real trainings: the report, and what each policy does."""

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from lightning.pytorch.plugins import MixedPrecision
from test_recipe import BATCH, BATCHES, CLIP, Halves, Steps, batches, halves, small_detector, spawn
from torch import Tensor, nn
from torch.multiprocessing import ProcessRaisedException
from torch.overrides import TorchFunctionMode
from torch.utils.data import DataLoader

from callbacks.ema import EMA
from callbacks.flight_recorder import MOST_IN_A_ROW, FlightRecorder, Incident, RollBack
from callbacks.incident import kind_of
from callbacks.warmup import Warmup
from detector.data.augment import Augment
from detector.data.datamodule import DetectionData
from detector.data.demo import make_demo
from detector.data.sample import Batch
from detector.data.sampler import TrainBatches
from detector.errors import InputError
from detector.module import Detector
from detector.optimizer import build_optimizer
from detector.schedule import effective_weight_decay, ema_decay

NAMES = ["disc", "ring", "star", "triangle", "cross"]
WINDOW = 4  # batches: 64 / BATCH


class Poison(L.Callback):
    """NaN in the images of some batches, given as (epoch, batch), each time or once; only in process `rank`, if given."""

    def __init__(self, *where: tuple[int, int], once: bool = False, rank: int | None = None) -> None:
        self.where, self.once, self.rank, self.clean = list(where), once, rank, torch.zeros(0)
        self.seen: dict[tuple[int, int], list[int]] = {}  # images of each batch

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Batch, batch_idx: int) -> None:
        key = trainer.current_epoch, batch_idx
        self.clean, self.seen[key] = batch.images.clone(), batch.indices
        if key in self.where and self.rank in (None, trainer.global_rank):
            batch.images.fill_(torch.nan)
            if self.once:
                self.where.remove(key)

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, out: Any, batch: Batch, idx: int) -> None:
        batch.images.copy_(self.clean)


class BadGradient(L.Callback):
    """One parameter's gradient becomes infinite in some batches, while the loss is finite."""

    def __init__(self, name: str, *where: tuple[int, int]) -> None:
        self.name, self.where = name, where

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Batch, batch_idx: int) -> None:
        bad = (trainer.current_epoch, batch_idx) in self.where
        self.handle = pl_module.get_parameter(self.name).register_hook(lambda g: g * (torch.inf if bad else 1))

    def on_train_batch_end(self, *_: Any) -> None:
        self.handle.remove()


def trainer_in(folder: Path, *callbacks: L.Callback, **options: Any) -> L.Trainer:
    return L.Trainer(
        **{
            "accelerator": "cpu",
            "max_epochs": 2,
            "gradient_clip_val": CLIP,
            "callbacks": list(callbacks),
            "default_root_dir": folder,
            "use_distributed_sampler": False,
            "num_sanity_val_steps": 0,
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            **options,
        }
    )


def detector_of_the_data(**options: Any) -> Detector:
    torch.manual_seed(0)
    return Detector(NAMES, width_multiple=0.125, image_size=64, batch_size=8, **{"nominal_batch_size": 8, **options})


def data_of(path: Path, **options: Any) -> DetectionData:
    """Three batches of eight images."""
    return DetectionData(str(path), image_size=64, batch_size=8, **{"workers": 0, "augment": Augment(mosaic=0.0), **options})


def reports(folder: Path) -> dict[str, Any]:
    """Every report by file name, read by a parser that takes only what the standard allows."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    found = sorted((folder / "checkpoints").glob("*.json"))
    return {p.name: json.loads(p.read_text(), parse_constant=refuse) for p in found}


def finite(module: nn.Module) -> bool:
    return all(bool(v.isfinite().all()) for v in module.state_dict().values() if v.is_floating_point())


def test_stop_reports_the_batch(small_data: Path, tmp_path: Path) -> None:
    poison, module, data = Poison((1, 1)), detector_of_the_data(), data_of(small_data)
    trainer = trainer_in(tmp_path, Warmup(warmup_epochs=0), poison, FlightRecorder())
    with pytest.raises(InputError) as told:
        trainer.fit(module, data)
    assert type(told.value) is Incident
    assert reports(tmp_path).keys() == {"incident-1-1.json"}
    report, images = reports(tmp_path)["incident-1-1.json"], poison.seen[1, 1]
    assert len(set(images)) == 8
    assert (report["kind"], report["split"], report["epoch"], report["batch"]) == ("non-finite loss", "train", 1, 1)
    assert report["global_step"] == 4
    assert report["indices"] == images
    assert report["files"] == [str(data.path("train", i)) for i in images]
    assert all(Path(file).is_file() for file in report["files"])
    assert report["losses"].keys() == {"box", "obj", "cls"}
    assert set(report["losses"].values()) == {"nan"}
    lr = pytest.approx(0.01 * (0.5 * 0.99 + 0.01))  # epoch 1 of 2, linear
    assert report["groups"] == [{"name": name, "lr": lr, "momentum": 0.937} for name in ("bias", "weight", "norm")]
    assert report["parameters"] == [name for name, _ in module.named_parameters()][:10]
    assert (report["policy"], report["done"], report["roll_backs"]) == ("stop", "stopped", 0)
    assert (report["grad_scale"], report["exception"]) == (None, None)
    assert report["config"] == str(tmp_path / "config.yaml")
    sentence = str(told.value)
    for part in ("non-finite loss in epoch 1, batch 1", *report["files"][:3], "and 5 more", "incident-1-1.json", "model.lr0"):
        assert part in sentence
    assert told.value.report == tmp_path / "checkpoints/incident-1-1.json"
    assert "\n" not in sentence
    assert all(bool(p.isfinite().all()) for p in module.parameters())


def test_stop_on_a_gradient_names_its_parameter(small_data: Path, tmp_path: Path) -> None:
    """Before clipping, which makes all gradients NaN; and before any weight has changed."""
    name = "network.head.convs.0.weight"
    module = detector_of_the_data(nominal_batch_size=16)  # windows of two batches, and the third alone
    recorder, poison = FlightRecorder(), Poison()
    trainer = trainer_in(tmp_path, Warmup(warmup_epochs=0), poison, BadGradient(name, (0, 0)), recorder)
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
    for callbacks in ([], [FlightRecorder()], [FlightRecorder("skip")], [FlightRecorder("roll_back")]):
        module = detector_of_the_data()
        trainer_in(tmp_path, Warmup(), EMA(), *callbacks).fit(module, data_of(small_data))
        weights.append(module.state_dict())
    assert reports(tmp_path) == {}
    for other in weights[1:]:
        assert all(torch.equal(v, weights[0][k]) for k, v in other.items())


Loop = tuple[dict[str, Tensor], dict[str, Tensor], list[Tensor], list[int]]


def loop_without(
    left_out: set[tuple[int, int]], scaler: Any, bad: set[tuple[int, int]], shards: Callable[[Batch], list[Batch]]
) -> Loop:
    """Two epochs that never see some batches, and make no step of a window with a bad gradient or with no batch left.

    Returns:
        weights and statistics; their average; momenta; iterations that stepped.
    """
    module = small_detector()
    network, h = module.network, module.hparams
    optimizer = build_optimizer(network, "SGD", h["lr0"], h["momentum"], effective_weight_decay(h["weight_decay"], 64, BATCH))
    average, updates, stepped, last_step, spoilt = copy.deepcopy(network), 0, [], -1, False
    parameters = [p for g in optimizer.param_groups for p in g["params"]]
    network.train()
    for epoch in range(2):
        for group in optimizer.param_groups:
            group["lr"] = h["lr0"] * (1, 0.505)[epoch]
        for i, batch in enumerate(batches()):
            if (epoch, i) not in left_out:
                with torch.autocast("cpu", torch.half, enabled=scaler is not None, cache_enabled=False):
                    total = sum(module.loss(network(b.images), b.targets, network.anchors)[0] for b in shards(batch))
                (scaler.scale(total) if scaler else total).backward()
                spoilt |= (epoch, i) in bad
            iteration = epoch * BATCHES + i
            if iteration - last_step >= WINDOW or i == BATCHES - 1:
                last_step = iteration
                if not spoilt and any(p.grad is not None for p in parameters):
                    if scaler:
                        scaler.unscale_(optimizer)
                    nn.utils.clip_grad_norm_(parameters, CLIP)
                    if scaler:
                        scaler.step(optimizer)
                        scaler.update()
                    else:
                        optimizer.step()
                    stepped.append(iteration)
                    updates += 1
                    with torch.no_grad():
                        for a, w in zip(average.state_dict().values(), network.state_dict().values(), strict=True):
                            if a.is_floating_point():
                                a.lerp_(w, 1 - ema_decay(updates))
                optimizer.zero_grad()
                spoilt = False
    momenta = [optimizer.state[p]["momentum_buffer"] for p in parameters if p in optimizer.state]
    return network.state_dict(), average.state_dict(), momenta, stepped


class Shown(L.Callback):
    """The losses that a progress bar gets, of each batch."""

    def __init__(self) -> None:
        self.parts: dict[tuple[int, int], Tensor] = {}

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, out: Any, batch: Batch, idx: int) -> None:
        self.parts[trainer.current_epoch, idx] = out["parts"]


COLLECTING, STEPPING, BOTH, ALL = [(0, 1)], [(1, 3)], [(0, 2), (0, 3), (1, 6)], [(1, i) for i in range(4, 7)]


@pytest.mark.parametrize("half", [False, True], ids=["float32", "float16 with scaler"])
@pytest.mark.parametrize("where", [COLLECTING, STEPPING, BOTH, ALL], ids=["collecting", "stepping", "several", "whole window"])
def test_skip_equals_a_loop_without_the_batch(where: list[tuple[int, int]], half: bool, tmp_path: Path) -> None:
    """To the last bit: weights, batch norm statistics, average, momenta, the state of the scaler. Mean losses: of the rest."""
    scalers = [torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3) if half else None for _ in range(2)]
    weights, average, momenta, stepped = loop_without(set(where), scalers[0], set(), lambda b: [b])

    module, steps, shown = small_detector(), Steps(), Shown()
    plugins = [MixedPrecision("16-mixed", "cpu", scalers[1])] if half else None
    callbacks = [Warmup(warmup_epochs=0), EMA(), Poison(*where), FlightRecorder("skip"), steps, shown]
    trainer = trainer_in(tmp_path, *callbacks, plugins=plugins)
    trainer.fit(module, DataLoader(batches(), batch_size=None))  # type: ignore[arg-type]
    assert steps.taken == stepped
    assert module.ema is not None
    for ours, theirs in ((module.network, weights), (module.ema, average)):
        assert all(torch.equal(v, theirs[k]) for k, v in ours.state_dict().items())
        assert finite(ours)
    optimizer = trainer.optimizers[0]
    for parameter, buffer in zip([p for g in optimizer.param_groups for p in g["params"]], momenta, strict=True):
        assert torch.equal(optimizer.state[parameter]["momentum_buffer"], buffer)
    if half:
        assert scalers[1].state_dict() == scalers[0].state_dict()
    found = reports(tmp_path).values()
    assert [(r["epoch"], r["batch"]) for r in found] == where
    assert {(r["kind"], r["done"]) for r in found} == {("non-finite loss", "the batch is left out")}
    assert all(bool(parts.isfinite().all()) for parts in shown.parts.values())
    mean = torch.stack([shown.parts[1, i] for i in range(BATCHES) if (1, i) not in where]).mean(0)
    assert [float(trainer.callback_metrics[f"train/{k}_loss"]) for k in ("box", "obj", "cls")] == pytest.approx(mean.tolist())


def test_skip_of_a_bad_gradient_costs_the_window(tmp_path: Path) -> None:
    """No step, and weights, momenta and average are those of a loop that makes none either."""
    weights, average, momenta, stepped = loop_without(set(), None, {(0, 1), (1, 6)}, lambda b: [b])
    module, steps, name = small_detector(), Steps(), "network.head.convs.0.weight"
    callbacks = [Warmup(warmup_epochs=0), EMA(), BadGradient(name, (0, 1), (1, 6)), FlightRecorder("skip"), steps]
    trainer = trainer_in(tmp_path, *callbacks)
    trainer.fit(module, DataLoader(batches(), batch_size=None))  # type: ignore[arg-type]
    assert steps.taken == stepped
    assert len(stepped) == 2  # of four
    assert module.ema is not None
    for ours, theirs in ((module.network, weights), (module.ema, average)):
        assert all(torch.equal(v, theirs[k]) for k, v in ours.state_dict().items())
    optimizer = trainer.optimizers[0]
    for parameter, buffer in zip([p for g in optimizer.param_groups for p in g["params"]], momenta, strict=True):
        assert torch.equal(optimizer.state[parameter]["momentum_buffer"], buffer)
    found = reports(tmp_path)
    assert found.keys() == {"incident-0-3.json", "incident-1-6.json"}  # where the windows end
    assert {(r["kind"], r["done"]) for r in found.values()} == {("non-finite gradient", "the accumulation window is left out")}
    assert {tuple(r["parameters"]) for r in found.values()} == {(name,)}


def test_skip_of_a_batch_does_not_hide_a_bad_gradient_before_it(tmp_path: Path) -> None:
    weights, _, _, stepped = loop_without({(0, 3)}, None, {(0, 1)}, lambda b: [b])
    module, steps = small_detector(), Steps()
    callbacks = [Poison((0, 3)), BadGradient("network.head.convs.0.weight", (0, 1)), FlightRecorder("skip"), steps]
    trainer = trainer_in(tmp_path, Warmup(warmup_epochs=0), *callbacks)
    trainer.fit(module, DataLoader(batches(), batch_size=None))  # type: ignore[arg-type]
    assert steps.taken == stepped
    assert all(torch.equal(v, weights[k]) for k, v in module.network.state_dict().items())
    found = reports(tmp_path)
    assert [found[f"incident-0-3{again}.json"]["kind"] for again in ("", "-2")] == ["non-finite loss", "non-finite gradient"]
    assert found["incident-0-3-2.json"]["window"] == 3 * list(range(BATCH))


def test_skip_gives_up_when_no_batch_is_good(small_data: Path, tmp_path: Path) -> None:
    everywhere = [(epoch, batch) for epoch in range(8) for batch in range(3)]
    trainer = trainer_in(
        tmp_path, Warmup(), EMA(), Poison(*everywhere), FlightRecorder("skip"), max_epochs=8, limit_val_batches=0
    )
    module = detector_of_the_data()
    with pytest.raises(Incident, match=f"after {MOST_IN_A_ROW} batches in a row"):
        trainer.fit(module, data_of(small_data))
    assert len(reports(tmp_path)) == MOST_IN_A_ROW + 1


@pytest.mark.parametrize("policy", ["stop", "skip", "roll_back"])
def test_an_overflow_of_float16_is_the_scalers_business(policy: Any, tmp_path: Path) -> None:
    scaler, steps, module = torch.amp.GradScaler("cpu", init_scale=2.0**30), Steps(), small_detector()
    callbacks = [Warmup(warmup_epochs=0), FlightRecorder(policy), steps]
    trainer = trainer_in(tmp_path, *callbacks, plugins=[MixedPrecision("16-mixed", "cpu", scaler)])
    trainer.fit(module, DataLoader(batches(), batch_size=None))  # type: ignore[arg-type]
    assert len(steps.taken) < 4  # the scaler left some out
    assert scaler.get_scale() < 2.0**30
    assert reports(tmp_path) == {}
    assert finite(module)


def test_a_bad_loss_is_an_incident_with_a_scaler_too(small_data: Path, tmp_path: Path) -> None:
    plugins = [MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=512.0))]
    trainer = trainer_in(tmp_path, Warmup(), Poison((0, 1)), FlightRecorder(), plugins=plugins)
    with pytest.raises(Incident, match="non-finite loss"):
        trainer.fit(detector_of_the_data(), data_of(small_data))
    assert reports(tmp_path)["incident-0-1.json"]["grad_scale"] == 512.0


class LastCheckpoint(L.Callback):
    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        trainer.save_checkpoint(Path(trainer.default_root_dir) / "checkpoints/last.ckpt")


class UsedRates(L.Callback):
    """Epoch and learning rate of every batch that was trained on."""

    def __init__(self) -> None:
        self.used: list[tuple[int, float]] = []

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        self.used.append((trainer.current_epoch, trainer.optimizers[0].param_groups[0]["lr"]))


def fit_with_roll_backs(trainer: L.Trainer, module: Detector, data: DetectionData) -> None:
    """What the CLI does."""
    checkpoint = None
    while True:
        try:
            return trainer.fit(module, datamodule=data, ckpt_path=checkpoint, weights_only=True)
        except RollBack:
            checkpoint = str(Path(trainer.default_root_dir) / "checkpoints/last.ckpt")


def test_roll_back_goes_on_from_the_checkpoint_with_a_lower_rate(small_data: Path, tmp_path: Path) -> None:
    recorder, rates, steps = FlightRecorder("roll_back", lr_factor=0.25), UsedRates(), Steps()
    callbacks = [Warmup(warmup_epochs=0), EMA(), Poison((1, 1), once=True), recorder, rates, steps, LastCheckpoint()]
    trainer, module = trainer_in(tmp_path, *callbacks, max_epochs=3), detector_of_the_data()
    fit_with_roll_backs(trainer, module, data_of(small_data))
    lr = [0.01 * ((1 - epoch / 3) * 0.99 + 0.01) for epoch in range(3)]
    wanted = [(0, lr[0])] * 3 + [(1, lr[1])] + [(1, 0.25 * lr[1])] * 3 + [(2, 0.25 * lr[2])] * 3
    assert rates.used == [(epoch, pytest.approx(rate)) for epoch, rate in wanted]
    assert trainer.global_step == 9
    assert finite(module)
    assert recorder.roll_backs == 1
    assert [r["done"] for r in reports(tmp_path).values()] == ["roll-back 1 of 3"]


def test_roll_backs_are_counted(small_data: Path, tmp_path: Path) -> None:
    callbacks = [EMA(), Poison((1, 1)), FlightRecorder("roll_back", most_roll_backs=2), LastCheckpoint()]
    with pytest.raises(Incident, match="stopped, after 2 roll-backs") as told:
        fit_with_roll_backs(
            trainer_in(tmp_path, Warmup(warmup_epochs=0), *callbacks), detector_of_the_data(), data_of(small_data)
        )
    assert type(told.value) is Incident
    found = [reports(tmp_path)[f"incident-1-1{again}.json"] for again in ("", "-2", "-3")]
    assert len(reports(tmp_path)) == 3
    assert [r["roll_backs"] for r in found] == [1, 2, 2]
    assert [r["groups"][1]["lr"] for r in found] == [pytest.approx(0.01 * 0.505 * factor) for factor in (1, 0.5, 0.25)]


@pytest.mark.parametrize(("lr0", "scale"), [(0.01, 0.5), (0.02, 1.0)], ids=["same lr0", "another lr0"])
def test_a_lowered_rate_outlives_the_process(lr0: float, scale: float, small_data: Path, tmp_path: Path) -> None:
    recorder, data = FlightRecorder("roll_back"), data_of(small_data)
    recorder.roll_backs = 1  # as after one
    trainer_in(tmp_path, Warmup(), recorder, LastCheckpoint(), max_epochs=1).fit(detector_of_the_data(), data)
    rates = UsedRates()
    trainer = trainer_in(tmp_path, Warmup(warmup_epochs=0), FlightRecorder("roll_back"), rates)
    last = tmp_path / "checkpoints/last.ckpt"
    trainer.fit(detector_of_the_data(lr0=lr0), datamodule=data, ckpt_path=last, weights_only=True)
    assert rates.used == [(1, pytest.approx(lr0 * 0.505 * scale))] * 3


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
    order = [[key.index for key in keys] for keys in TrainBatches(24, 8, 0, lambda: 0).batches(0)]
    lost, batch, images = (order[1][5], 1, order[1]) if split == "train" else (3, 0, list(range(8)))
    data = Vanishing(str(made), image_size=64, batch_size=8, workers=workers, augment=Augment(mosaic=0.0))
    data.lost, recorder = (split, lost), FlightRecorder()
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
    assert re.match(rf"data loader in epoch 0, [a-z ]*batch {batch}; .*{lost:04d}.jpg.*; images ", str(recorder.incident))
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
def test_lack_of_memory(kind: type[Exception], where: str, small_data: Path, tmp_path: Path) -> None:
    module, poison, recorder, data = (
        Hungry(**detector_of_the_data().hparams),
        Poison(),
        FlightRecorder("skip"),
        data_of(small_data),
    )
    module.error, module.where = kind("CUDA out of memory. Tried to allocate 2 GiB"), where
    with pytest.raises(kind, match="Tried to allocate 2 GiB") as crash:
        trainer_in(tmp_path, Warmup(), poison, recorder).fit(module, data)
    ((name, report),) = reports(tmp_path).items()
    assert crash.value.__notes__ == [f"report: {tmp_path / 'checkpoints' / name}"]
    assert (report["kind"], report["done"], report["policy"]) == ("out of memory", "stopped", "skip")
    assert "Tried to allocate 2 GiB" in report["exception"]
    if where == "training":
        assert (name, report["indices"]) == ("incident-0-1.json", poison.seen[0, 1])
    else:
        assert (name, report["split"], sorted(report["indices"])) == ("incident-0-0.json", "val", list(range(8)))
        assert report["files"] == [str(data.path("val", i)) for i in report["indices"]]
    assert "data.batch_size" in str(recorder.incident)


class Crashing(L.Callback):
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, out: Any, batch: Any, idx: int) -> None:
        if idx == 1:
            raise self.error


def test_any_other_crash(small_data: Path, tmp_path: Path) -> None:
    recorder, crashing = FlightRecorder(), Crashing(ZeroDivisionError("by zero"))
    with pytest.raises(ZeroDivisionError):
        trainer_in(tmp_path, Warmup(), recorder, crashing).fit(detector_of_the_data(), data_of(small_data))
    report = reports(tmp_path)["incident-0-1.json"]
    assert (report["kind"], report["exception"]) == ("other", "ZeroDivisionError: by zero")
    assert "raise self.error" in report["traceback"]
    assert recorder.incident is None  # a bug: its traceback is what counts


@pytest.mark.parametrize("error", [InputError("a user's mistake"), SystemExit(143)], ids=["mistake", "signal"])
def test_no_report_of_what_is_no_crash(error: BaseException, small_data: Path, tmp_path: Path) -> None:
    recorder = FlightRecorder()
    with pytest.raises(type(error)):
        trainer_in(tmp_path, Warmup(), recorder, Crashing(error)).fit(detector_of_the_data(), data_of(small_data))
    assert (reports(tmp_path), recorder.incident) == ({}, None)


def test_a_report_that_cannot_be_written_does_not_hide_the_incident(small_data: Path, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "checkpoints").write_text("in the way")
    with pytest.raises(Incident, match="non-finite loss in epoch 0, batch 0") as told:
        trainer_in(tmp_path, Warmup(), Poison((0, 0)), FlightRecorder()).fit(detector_of_the_data(), data_of(small_data))
    assert told.value.report is None
    assert "report:" not in str(told.value)
    assert "incident-0-0.json could not be written" in capsys.readouterr().out


def test_a_killed_worker_is_the_loaders() -> None:
    """The signal arrives anywhere in the main process, so only the message tells."""
    assert kind_of(RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. ")) == "data loader"
    assert kind_of(RuntimeError("something else")) == "other"


@pytest.mark.parametrize("options", [{"lr_factor": 0.0}, {"lr_factor": 1.5}, {"most_roll_backs": -1}])
def test_options_out_of_range(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(options))):
        FlightRecorder(**options)


class Reads(TorchFunctionMode):
    """Counts what makes the process wait for the device."""

    waiting = ("item", "tolist", "cpu", "numpy", "nonzero", "__bool__", "__float__", "__int__", "__index__", "__contains__")

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += getattr(func, "__name__", "") in self.waiting
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("policy", ["stop", "skip", "roll_back"])
def test_the_device_is_waited_for_once_a_batch(policy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = Reads()

    def counted(hook: Callable) -> Callable:
        def call(*args: Any) -> Any:
            with reads:
                return hook(*args)

        return call

    for name in [n for n in vars(FlightRecorder) if n.startswith("on_") or n == "_see"]:
        monkeypatch.setattr(FlightRecorder, name, counted(getattr(FlightRecorder, name)))
    trainer = trainer_in(tmp_path, Warmup(), EMA(), FlightRecorder(policy))
    trainer.fit(small_detector(), DataLoader(batches(), batch_size=None))  # type: ignore[arg-type]
    assert trainer.global_step > 2
    assert reads.count == 2 * BATCHES


def test_two_processes_stop_together(small_data: Path, tmp_path: Path) -> None:
    """NaN in the second one only: the first one's report names the images of the second."""
    trainer = spawn(2, max_epochs=1, callbacks=[Warmup(), Poison((0, 1), rank=1), FlightRecorder()], default_root_dir=tmp_path)
    with pytest.raises(ProcessRaisedException, match="Incident: non-finite loss in epoch 0, batch 1"):
        trainer.fit(detector_of_the_data(), data_of(small_data))
    assert reports(tmp_path).keys() == {"incident-0-1.json"}
    report = reports(tmp_path)["incident-0-1.json"]
    batch = TrainBatches(24, 8, 0, lambda: 0).batches(0)[1]
    assert report["indices"] == [key.index for key in batch[1::2]]
    assert report["processes"] == [1]
    assert set(report["losses"].values()) == {"nan"}


@pytest.mark.parametrize("where", [COLLECTING, STEPPING], ids=["collecting", "stepping"])
def test_two_processes_skip_the_same_batch(where: list[tuple[int, int]], tmp_path: Path) -> None:
    """NaN in the second one only: as a loop that leaves the batches of both out. Each has batch norm statistics of its own."""
    wanted, whole = (loop_without(batches, None, set(), halves)[0] for batches in (set(where), set()))
    module, callbacks = small_detector(), [Warmup(warmup_epochs=0), EMA(), Poison(*where, rank=1), FlightRecorder("skip")]
    options = {"max_epochs": 2, "gradient_clip_val": CLIP, "callbacks": callbacks, "default_root_dir": tmp_path}
    spawn(2, **options).fit(module, Halves())
    assert [r["processes"] for r in reports(tmp_path).values()] == [[1]]
    for name, ours in module.network.named_parameters():
        counts = (whole[name] - wanted[name]).double().norm()  # what that batch would have changed
        assert (ours - wanted[name]).double().norm() <= 0.05 * counts, name
    assert finite(module)
