"""AutoAnchor: never worse, always the same, and it says what it did."""

import re
import shutil
from functools import partial

import lightning as L
import numpy as np
import pytest
import torch
import yaml
from made_datasets import image_set, picture
from made_runs import column, load, read, train, type_line
from plain_loop import spawn

from boltbox.callbacks import EMA, AutoAnchor
from boltbox.detector.data.datamodule import DetectionData
from boltbox.detector.model.anchors import (
    default_anchors,
    find_anchors,
    measure,
    search_anchors,
)
from boltbox.detector.model.network import NetworkOptions
from boltbox.detector.training.module import Detector

STRIDES = (8, 16, 32)


def fit(data, options):
    """A batch, whatever its anchors."""
    more = "--model.network.levels [3,4,5] --autoanchor.enabled true --trainer.max_epochs 1"
    train(
        data,
        "run",
        f"{more} --trainer.limit_train_batches 1 --trainer.limit_val_batches 0 {options}",
    )


def defaults(per_level=3):
    return np.array(default_anchors((3, 4, 5), per_level)).reshape(3, -1, 2)


def random_sizes(rng):
    """Label sizes of every kind: few and many, flat, tiny, huge, in a few clumps, all alike."""
    n = int(rng.choice([1, 3, 9, 10, 30, 200, 1000]))
    sides = np.exp(rng.normal(rng.uniform(1, 5, 2), rng.uniform(0.1, 1.5, 2), (n, 2)))
    match rng.integers(5):
        case 0:
            return np.full((n, 2), rng.uniform(1, 300, 2))
        case 1:
            return np.column_stack((sides[:, 0], np.full(n, 40.0)))
        case 2:
            return rng.choice(rng.uniform(2, 400, (4, 2)), n)
        case 3:
            return sides * 1000
    return sides


def test_measures_of_many_labels_are_those_of_their_parts():
    sizes = np.exp(np.random.default_rng(0).normal(3, 1, (70_000, 2)))
    whole = np.array(measure(defaults().reshape(-1, 2), sizes))
    parts = [measure(defaults().reshape(-1, 2), part) for part in (sizes[:35_000], sizes[35_000:])]
    assert whole == pytest.approx(np.mean(parts, 0), abs=1e-12)


@pytest.mark.parametrize("seed", range(20))
def test_never_worse(seed):
    rng = np.random.default_rng(seed)
    labels = random_sizes(rng)
    seen = None if rng.random() < 0.5 else random_sizes(rng)
    start = defaults() * np.exp(rng.normal(0, 0.5, 2))
    bases = [labels] if seen is None else [seen, labels]
    choice = search_anchors(start, STRIDES, bases, seed=seed, generations=30)
    assert choice.anchors.shape == start.shape
    assert choice.reason
    if not choice.changed:
        assert np.array_equal(choice.anchors, start)
    for sizes in bases:
        old = measure(start.reshape(-1, 2), sizes)
        new = measure(choice.anchors.reshape(-1, 2), sizes)
        assert new.bpr >= old.bpr
        assert new.fitness >= old.fitness
    assert np.isfinite(choice.anchors).all()
    assert (choice.anchors > 0).all()


def test_badly_fitting_anchors_get_better():
    """Flat boxes, 30 times as wide as high."""
    rng = np.random.default_rng(2)
    heights = np.exp(rng.normal(2.0, 0.4, 400))
    sizes = np.column_stack((heights * 30, heights)) * np.exp(rng.normal(0, 0.1, (400, 2)))
    choice = search_anchors(defaults(), STRIDES, [sizes])
    assert measure(defaults().reshape(-1, 2), sizes).bpr < 0.5
    assert choice.changed
    assert measure(choice.anchors.reshape(-1, 2), sizes).bpr > 0.99
    assert choice.reason.startswith("new ones, BPR 0.")
    assert (np.diff(choice.anchors.prod(-1).mean(-1)) > 0).all(), (
        "finer levels get the smaller ones"
    )


@pytest.mark.parametrize("labels", [9, 30_000])
def test_as_many_different_sizes_as_anchors(labels):
    """Random starts draw some of them twice and lose clusters; there are as many anchors as asked
    for nevertheless."""
    rng = np.random.default_rng(0)
    different = rng.uniform(10, 400, (9, 2)).round()
    sizes = np.concatenate((different, different[rng.integers(0, 8, labels - 9)]))
    found = find_anchors(rng.permutation(sizes), 9, generations=0)
    assert len(np.unique(found.round(3), axis=0)) == 9
    assert measure(found, different).fitness > 0.95


@pytest.fixture(scope="module")
def flat_data(tmp_path_factory):
    """The data.yaml of 24 images with objects ten times as wide as high, which the default anchors
    fit badly."""
    root = tmp_path_factory.mktemp("flat")
    rng = np.random.default_rng(0)
    texts = []
    for i in range(24):
        w = rng.uniform(0.4, 0.9, 3)
        h = w / 10 * rng.uniform(0.7, 1.4, 3)
        texts.append("".join(f"{i % 2} .5 .5 {w[k]} {h[k]}\n" for k in range(3)))
    return image_set(root, [picture(64, 64, i) for i in range(24)], texts)


def test_new_anchors_travel(flat_data, here, capsys):
    """Two a level, as asked for: into network, average, checkpoint and predictions; a resume keeps
    them although the labels have changed."""
    shutil.copytree(flat_data.parent, here / "data")
    fit(here / "data/data.yaml", "--model.network.anchors 2")
    told = capsys.readouterr().out
    assert re.search(r"^anchors:   new ones, BPR 0\.\d+ -> ", told, re.M)
    state = load(here / "run/checkpoints/last.ckpt")["state_dict"]
    report = read(here / "run/anchors.json")
    assert state["network.head.anchors"].shape == (3, 2, 2)
    assert state["network.head.convs.0.bias"].shape == (2 * 7,)
    assert report["changed"] is True
    stored = (state["network.head.anchors"] * torch.tensor(STRIDES).view(3, 1, 1)).flatten(1)
    assert torch.equal(state["ema.head.anchors"], state["network.head.anchors"])
    assert stored.tolist() == pytest.approx(np.array(report["after"]["anchors"]), abs=0.006)
    assert report["after"]["bpr"] > report["before"]["bpr"]

    for label in (here / "data/labels").iterdir():
        label.write_text("0 .5 .5 .1 .9\n")
    type_line("fit --run run --ckpt_path last --trainer.max_epochs 2")
    assert "anchors:   those of the checkpoint" in capsys.readouterr().out
    resumed = load(here / "run/checkpoints/last.ckpt")["state_dict"]
    for name in ("network.head.anchors", "ema.head.anchors"):
        assert torch.equal(resumed[name], state[name])


def test_the_command_trains_nothing_and_its_line_can_be_pasted(flat_data, here, capsys):
    line = f"anchors --data.dataset {flat_data} --data.image_size 64"
    type_line(line)
    told = capsys.readouterr().out
    report = read(here / "runs/anchors-1/anchors.json")
    assert report["changed"] is True
    options = told.partition("to use them: ")[2].partition("\nreport: ")[0]
    assert yaml.safe_load(options)["model"]["network"]["anchors"] == report["after"]["anchors"]
    (here / "pasted.yaml").write_text(options)
    fit(flat_data, "--config pasted.yaml")
    assert "anchors:   those of model.network.anchors" in capsys.readouterr().out
    state = load(here / "run/checkpoints/last.ckpt")["state_dict"]
    assert state["network.head.anchors"].flatten(1)[0].tolist() == pytest.approx(
        np.array(report["after"]["anchors"][0]) / 8
    )
    line += " --model.network.width_multiple 0.125 --model.network.depth_multiple 0.1"
    type_line(f"{line} --model.start.weights run/checkpoints/last.ckpt")
    again = read(here / "runs/anchors-2/anchors.json")
    assert again["before"]["anchors"] == report["after"]["anchors"]


def test_anchors_that_boxes_were_trained_with_are_kept_longer(flat_data, here, monkeypatch):
    """One label of 18 does not fit them."""
    shutil.copytree(flat_data.parent, here / "data")
    for i, label in enumerate((here / "data/labels").iterdir()):
        sides = [f".{k % 60 + 20} .{k % 50 + 25}" for k in range(7 * i, 7 * i + 17)]
        label.write_text("".join(f"0 .5 .5 {side}\n" for side in sides + [".9 .02"]))
    data = DetectionData(str(here / "data/data.yaml"), image_size=64, batch_size=8, workers=0)
    data.setup("fit")
    detector = Detector(["a", "b"], network=NetworkOptions(width_multiple=0.125))
    short = partial(search_anchors, generations=10)
    monkeypatch.setattr("boltbox.callbacks.autoanchor.search_anchors", short)
    fresh, _ = AutoAnchor().examine(detector, data)
    detector.loaded = detector.loaded._replace(has_head=True)
    trained, _ = AutoAnchor().examine(detector, data)
    asked, _ = AutoAnchor(bpr_limit=0.98).examine(detector, data)
    assert column((fresh, trained, asked), "changed") == [True, False, True]


@pytest.mark.parametrize(
    "sizes",
    [
        np.full((50, 2), 300.0) * [1, 0.01],
        np.column_stack((np.arange(50) + 200.0, np.full(50, 5.0))),
        np.full((50, 2), 0.5),
    ],
)
def test_labels_of_which_none_can_be_made(sizes):
    choice = search_anchors(defaults(), STRIDES, [sizes])
    assert not choice.changed
    assert np.array_equal(choice.anchors, defaults())


class Remember(L.Callback):
    """Each process writes its anchors to a file of its own."""

    def __init__(self, folder):
        self.folder = folder

    def on_train_start(self, trainer, pl_module):
        assert torch.equal(pl_module.ema.head.anchors, pl_module.network.head.anchors)
        torch.save(pl_module.network.head.anchors, self.folder / f"{trainer.global_rank}.pt")


def test_two_processes_have_the_same_anchors(flat_data, here):
    module = Detector(["a", "b"], network=NetworkOptions(width_multiple=0.125))
    data = DetectionData(str(flat_data), image_size=64, batch_size=8, workers=0)
    callbacks = [EMA(), AutoAnchor(), Remember(here)]
    limits = {"max_epochs": 1, "limit_train_batches": 1, "limit_val_batches": 0}
    trainer = spawn(2, callbacks=callbacks, default_root_dir=here, **limits)
    trainer.fit(module, data)
    first = load(here / "0.pt")
    assert torch.equal(first, load(here / "1.pt"))
    assert not torch.allclose(first, Detector(["a", "b"]).network.head.anchors)
