"""Non-finite numbers in real trainings, and the policy `skip`: as if the batch had never been."""

import copy
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
from original_recipe import yolov5_average
from plain_loop import BATCH, BATCHES, CLIP, Halves, Steps, batches, halves, small_detector, spawn
from torch import Tensor, nn
from torch.utils.data import DataLoader

from boltbox.callbacks.training_guard import MOST_IN_A_ROW, TrainingGuard
from boltbox.callbacks.warmup import Warmup
from boltbox.detector.data.sample import Batch
from boltbox.detector.training.incident import Incident
from boltbox.detector.training.optimizer import build_optimizer
from boltbox.detector.training.schedule import effective_weight_decay, ema_decay

WINDOW = 4  # batches: 64 / BATCH
Loop = tuple[dict[str, Tensor], dict[str, Tensor], list[Tensor], list[int]]


def loop_without(
    left_out: set[tuple[int, int]],
    scaler: Any,
    bad: set[tuple[int, int]],
    shards: Callable[[Batch], list[Batch]],
) -> Loop:
    """Two epochs that never see some batches, and make no step of a window with a bad gradient or
    with no batch left.

    Returns:
        weights and statistics; their average; momenta; iterations that stepped.
    """
    module = small_detector()
    network, h = module.network, module.hparams
    optimizer = build_optimizer(
        network,
        "SGD",
        h["lr0"],
        h["momentum"],
        effective_weight_decay(h["weight_decay"], 64, BATCH),
    )
    average, updates, stepped, last_step, spoilt = copy.deepcopy(network), 0, [], -1, False
    parameters = [p for g in optimizer.param_groups for p in g["params"]]
    network.train()
    for epoch in range(2):
        for group in optimizer.param_groups:
            group["lr"] = h["lr0"] * (1, 0.505)[epoch]
        for i, batch in enumerate(batches()):
            if (epoch, i) not in left_out:
                with torch.autocast(
                    "cpu", torch.half, enabled=scaler is not None, cache_enabled=False
                ):
                    total = sum(
                        module.loss(network(b.images), b.targets, network.head)[0]
                        for b in shards(batch)
                    )
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
                        for a, w in zip(
                            average.state_dict().values(),
                            network.state_dict().values(),
                            strict=True,
                        ):
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

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, out: Any, batch: Batch, idx: int
    ) -> None:
        self.parts[trainer.current_epoch, idx] = torch.stack(list(out["parts"].values()))


COLLECTING, STEPPING, BOTH, ALL = (
    [(0, 1)],
    [(1, 3)],
    [(0, 2), (0, 3), (1, 6)],
    [(1, i) for i in range(4, 7)],
)


@pytest.mark.parametrize("half", [False, True], ids=["float32", "float16 with scaler"])
@pytest.mark.parametrize(
    "where",
    [COLLECTING, STEPPING, BOTH, ALL],
    ids=["collecting", "stepping", "several", "whole window"],
)
def test_skip_equals_a_loop_without_the_batch(
    where: list[tuple[int, int]], half: bool, tmp_path: Path
) -> None:
    """To the last bit: weights, batch norm statistics, average, momenta, the state of the scaler.
    Mean losses: of the rest."""
    scalers = [
        torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3) if half else None
        for _ in range(2)
    ]
    weights, average, momenta, stepped = loop_without(set(where), scalers[0], set(), lambda b: [b])

    module, steps, shown = small_detector(), Steps(), Shown()
    plugins = [MixedPrecision("16-mixed", "cpu", scalers[1])] if half else None
    callbacks = [
        Warmup(warmup_epochs=0),
        yolov5_average(),
        Poison(*where),
        TrainingGuard("skip"),
        steps,
        shown,
    ]
    trainer = trainer_in(tmp_path, *callbacks, plugins=plugins)
    trainer.fit(module, DataLoader(batches(), batch_size=None))  # type: ignore[arg-type]
    assert steps.taken == stepped
    assert module.ema is not None
    for ours, theirs in ((module.network, weights), (module.ema, average)):
        assert all(torch.equal(v, theirs[k]) for k, v in ours.state_dict().items())
        assert finite(ours)
    optimizer = trainer.optimizers[0]
    for parameter, buffer in zip(
        [p for g in optimizer.param_groups for p in g["params"]], momenta, strict=True
    ):
        assert torch.equal(optimizer.state[parameter]["momentum_buffer"], buffer)
    if half:
        assert scalers[1].state_dict() == scalers[0].state_dict()
    found = reports(tmp_path).values()
    assert [(r["epoch"], r["batch"]) for r in found] == where
    assert {(r["kind"], r["done"]) for r in found} == {("non-finite loss", "the batch is left out")}
    assert all(bool(parts.isfinite().all()) for parts in shown.parts.values())
    mean = torch.stack([shown.parts[1, i] for i in range(BATCHES) if (1, i) not in where]).mean(0)
    assert [
        float(trainer.callback_metrics[f"train/{k}_loss"]) for k in ("box", "obj", "cls")
    ] == pytest.approx(mean.tolist())


def test_skip_of_a_bad_gradient_costs_the_window(tmp_path: Path) -> None:
    """No step, and weights, momenta and average are those of a loop that makes none either."""
    weights, average, momenta, stepped = loop_without(set(), None, {(0, 1), (1, 6)}, lambda b: [b])
    module, steps, name = small_detector(), Steps(), "network.head.convs.0.weight"
    callbacks = [
        Warmup(warmup_epochs=0),
        yolov5_average(),
        BadGradient(name, (0, 1), (1, 6)),
        TrainingGuard("skip"),
        steps,
    ]
    trainer = trainer_in(tmp_path, *callbacks)
    trainer.fit(module, DataLoader(batches(), batch_size=None))  # type: ignore[arg-type]
    assert steps.taken == stepped
    assert len(stepped) == 2  # of four
    assert module.ema is not None
    for ours, theirs in ((module.network, weights), (module.ema, average)):
        assert all(torch.equal(v, theirs[k]) for k, v in ours.state_dict().items())
    optimizer = trainer.optimizers[0]
    for parameter, buffer in zip(
        [p for g in optimizer.param_groups for p in g["params"]], momenta, strict=True
    ):
        assert torch.equal(optimizer.state[parameter]["momentum_buffer"], buffer)
    found = reports(tmp_path)
    assert found.keys() == {"incident-0-3.json", "incident-1-6.json"}  # where the windows end
    assert {(r["kind"], r["done"]) for r in found.values()} == {
        ("non-finite gradient", "the accumulation window is left out")
    }
    assert {tuple(r["parameters"]) for r in found.values()} == {(name,)}


def test_skip_of_a_batch_does_not_hide_a_bad_gradient_before_it(tmp_path: Path) -> None:
    weights, _, _, stepped = loop_without({(0, 3)}, None, {(0, 1)}, lambda b: [b])
    module, steps = small_detector(), Steps()
    callbacks = [
        Poison((0, 3)),
        BadGradient("network.head.convs.0.weight", (0, 1)),
        TrainingGuard("skip"),
        steps,
    ]
    trainer = trainer_in(tmp_path, Warmup(warmup_epochs=0), *callbacks)
    trainer.fit(module, DataLoader(batches(), batch_size=None))  # type: ignore[arg-type]
    assert steps.taken == stepped
    assert all(torch.equal(v, weights[k]) for k, v in module.network.state_dict().items())
    found = reports(tmp_path)
    assert [found[f"incident-0-3{again}.json"]["kind"] for again in ("", "-2")] == [
        "non-finite loss",
        "non-finite gradient",
    ]
    assert found["incident-0-3-2.json"]["window"] == 3 * list(range(BATCH))


def test_skip_gives_up_when_no_batch_is_good(small_data: Path, tmp_path: Path) -> None:
    everywhere = [(epoch, batch) for epoch in range(8) for batch in range(3)]
    trainer = trainer_in(
        tmp_path,
        Warmup(),
        yolov5_average(),
        Poison(*everywhere),
        TrainingGuard("skip"),
        max_epochs=8,
        limit_val_batches=0,
    )
    module = detector_of_the_data()
    with pytest.raises(Incident, match=f"after {MOST_IN_A_ROW} batches in a row"):
        trainer.fit(module, data_of(small_data))
    assert len(reports(tmp_path)) == MOST_IN_A_ROW + 1


@pytest.mark.parametrize("where", [COLLECTING, STEPPING], ids=["collecting", "stepping"])
def test_two_processes_skip_the_same_batch(where: list[tuple[int, int]], tmp_path: Path) -> None:
    """NaN in the second one only: as a loop that leaves the batches of both out. Each has batch
    norm statistics of its own."""
    wanted, whole = (
        loop_without(batches, None, set(), halves)[0] for batches in (set(where), set())
    )
    module, callbacks = (
        small_detector(),
        [Warmup(warmup_epochs=0), yolov5_average(), Poison(*where, rank=1), TrainingGuard("skip")],
    )
    options = {
        "max_epochs": 2,
        "gradient_clip_val": CLIP,
        "callbacks": callbacks,
        "default_root_dir": tmp_path,
    }
    spawn(2, **options).fit(module, Halves())
    assert [r["processes"] for r in reports(tmp_path).values()] == [[1]]
    for name, ours in module.network.named_parameters():
        counts = (whole[name] - wanted[name]).double().norm()  # what that batch would have changed
        assert (ours - wanted[name]).double().norm() <= 0.05 * counts, name
    assert finite(module)
