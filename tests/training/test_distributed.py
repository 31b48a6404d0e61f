"""Several processes train and validate as one does."""

import json
from collections import defaultdict
from pathlib import Path

import cv2
import lightning as L
import numpy as np
import pytest
import torch
import yaml
from made_datasets import lay_out, picture, save, yolo_text
from made_runs import ROOT, SMALL, column, read, type_line
from ranks import together

from boltbox.detector.training.module import Detector

RANKS = 4


class Diary(L.Callback):
    """What a process sees, in rank<N>.pt of the run folder.

    Args:
        train_norms: Off: batch norms stay in evaluation mode; they are the only part of the network
            that looks across the images of a batch.
    """

    def __init__(self, train_norms):
        self.train_norms = train_norms
        self.batches = []
        self.gradients = {}
        self.start = {}

    def on_train_start(self, trainer, pl_module):
        self.start = {n: p.detach().clone() for n, p in pl_module.network.named_parameters()}

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        pl_module.network.train(self.train_norms)
        rates = [
            (group["lr"], group["weight_decay"]) for group in trainer.optimizers[0].param_groups
        ]
        self.batches.append(
            {"rates": rates, "images": len(batch.images), "window": trainer.accumulate_grad_batches}
        )

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        if not self.gradients:
            self.gradients = {n: p.grad.clone() for n, p in pl_module.network.named_parameters()}

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        parts = list(map(float, outputs["terms"].values()))
        self.batches[-1] |= {"parts": np.array(parts), "step": trainer.global_step}

    def on_fit_end(self, trainer, pl_module):
        weights = {"network": pl_module.network.state_dict(), "ema": pl_module.ema.state_dict()}
        content = {"batches": self.batches, "gradients": self.gradients, "start": self.start}
        file = Path(trainer.default_root_dir) / f"rank{trainer.global_rank}.pt"
        torch.save(content | weights, file)


@pytest.fixture(scope="module")
def alike(tmp_path_factory):
    """28 noisy images with the same three objects, and one to validate on: whichever images a
    process gets, it has the same share of the objects. Box and class losses are means over the
    objects of each process, as in YOLOv5."""
    root = tmp_path_factory.mktemp("alike")
    objects = [(0, 4, 4, 20, 24), (1, 30, 8, 60, 40), (0, 10, 36, 50, 60)]
    text = yolo_text(objects, 64, 64)
    for k in range(29):
        split = "train" if k else "val"
        save(root / f"images/{split}/{k}.png", picture(64, 64, k))
        lay_out(root, {f"labels/{split}/{k}.txt": text})
    lay_out(root, {"data.yaml": "path: .\ntrain: images/train\nval: images/val\nnames: [a, b]\n"})
    return root / "data.yaml"


def step_by_shares(self, batch, batch_idx):
    """A training step of one process: the images of each of RANKS are a batch, that of the first
    one the last, whose batch norm statistics stay."""
    total = torch.zeros(())
    terms = defaultdict(list)
    for rank in reversed(range(RANKS)):
        images = batch.images[rank::RANKS]
        targets = batch.targets[batch.targets[:, 0] % RANKS == rank]
        targets[:, 0] = targets[:, 0] // RANKS
        loss, of_share = self.loss(self.network(images), targets, self.network.head)
        total = total + loss
        for name, term in of_share.items():
            terms[name].append(term)
    for name, parts in terms.items():
        terms[name] = torch.stack(parts).mean()
    return {"loss": total * self.trainer.accumulate_grad_batches, "terms": terms}


@pytest.mark.parametrize("train_norms", [False, True])
def test_steps_equal_those_of_one_process(train_norms, alike, small_data, here, monkeypatch):
    """Loss and gradients of the first step; rates, windows and steps at each batch; weights and
    average in the end. The last batch of each epoch is smaller.

    Without batch norms and where objects are spread evenly, four processes equal one with the same
    batch; else one that computes the batch norms and losses of each share by themselves."""
    data = alike
    optimizer = ""
    if train_norms:  # long steps would make much of the rounding
        data = small_data
        optimizer = (
            "--model.optim.optimizer SGD --model.optim.lr0 1e-4 --warmup.warmup_bias_lr 1e-3"
        )
    line = f"fit --config {ROOT}/configs/hyp/none.yaml --data.dataset {data} {SMALL} {optimizer}"
    line += " --data.batch_size 8 --model.optim.nominal_batch_size 16 --warmup.warmup_epochs 1"
    line += " --trainer.max_epochs 3 --trainer.limit_val_batches 0"
    line += " --trainer.callbacks test_distributed.Diary"
    line += f" --trainer.callbacks.train_norms {train_norms}"
    together(type_line, f"{line} --run many --trainer.devices {RANKS}", ranks=RANKS)
    if train_norms:
        monkeypatch.setattr(Detector, "training_step", step_by_shares)
    type_line(f"{line} --run one")
    one = torch.load(here / "one/rank0.pt", weights_only=False)
    many = []
    for rank in range(RANKS):
        many.append(torch.load(here / f"many/rank{rank}.pt", weights_only=False))
    assert one["batches"][-1]["step"] >= 5
    rates = map(str, column(one["batches"], "rates"))
    assert len(set(rates)) > 4, "there is a warm-up"
    assert len(set(column(one["batches"], "window"))) == 2, "there are windows"
    for batch, *shares in zip(one["batches"], *column(many, "batches"), strict=True):
        for share in shares:
            for key in ("rates", "window", "step"):
                assert share[key] == batch[key], key
        assert batch["images"] == sum(column(shares, "images"))
        mean = np.mean(column(shares, "parts"), 0)
        assert batch["parts"] == pytest.approx(mean, rel=1e-4)
    for rank in many:
        for name, gradient in one["gradients"].items():
            error = (rank["gradients"][name] - gradient).norm()
            assert error <= 1e-5 * gradient.norm().clamp(1e-3), name
        for name, before in one["start"].items():
            moved = (one["network"][name] - before).norm()
            error = (rank["network"][name] - one["network"][name]).norm()
            assert error <= 1e-3 * moved + 1e-6, name
    for kind in ("network", "ema"):  # with the statistics of batch norms, which are the first's
        for name, tensor in one[kind].items():
            if tensor.is_floating_point():  # not the number of batches
                torch.testing.assert_close(many[0][kind][name], tensor, rtol=1e-4, atol=1e-4)


class Figures(L.Callback):
    """All that was logged at a validation or test, with the batch norm statistics of the average,
    in figures<N>.json of the run folder."""

    def on_validation_end(self, trainer, pl_module):
        figures = {}
        for name, value in trainer.callback_metrics.items():
            if not name.startswith("train/"):
                figures[name] = float(value)
        for name, norm in pl_module.evaluated_network().named_buffers():
            figures[name] = float(norm.double().sum())
        file = Path(trainer.default_root_dir) / f"figures{trainer.global_rank}.json"
        file.write_text(json.dumps(figures))

    on_test_end = on_validation_end


@pytest.fixture(scope="module")
def seven(small_data, tmp_path_factory):
    """7 training and 7 validation images of the demo, of different shapes, 4 of the first without
    labels; test: one image."""
    root = tmp_path_factory.mktemp("seven")
    for split in ("train", "val"):
        for k, file in enumerate(sorted((small_data.parent / f"images/{split}").glob("*.jpg"))[:7]):
            image = cv2.imread(str(file))[:: 1 + k % 2]
            save(root / f"images/{split}/{k}.png", image)
            text = (small_data.parent / f"labels/{split}/{file.stem}.txt").read_text()
            is_empty = split == "train" and k % 2 == 0
            lay_out(root, {f"labels/{split}/{k}.txt": "" if is_empty else text})
    splits = {"path": ".", "train": "images/train", "val": "images/val", "test": "one.txt"}
    names = read(small_data)["names"]
    lay_out(root, {"one.txt": "./images/val/3.png\n", "data.yaml": yaml.safe_dump(splits | {"names": names})})  # fmt: skip
    return root / "data.yaml"


def test_uneven_shares(seven, here):
    """A training of two processes with a last batch of three images, images without labels, and
    validations in the middle of accumulation windows. The figures of its last validation, of seven
    images, and those of a test on one image are the same by one process."""
    line = f"--data.dataset {seven} {SMALL} --data.batch_size 4 --data.tile_size 0"
    line += " --trainer.callbacks test_distributed.Figures"
    fit = (
        "--trainer.max_epochs 1 --trainer.val_check_interval 1 --warmup.warmup_epochs 0 --run fit2"
    )
    fit += " --model.network.bn_momentum 0.03 --trainer.devices 2 --data.val_batch_size 3"
    fit += " --model.network.anchors [[15,15,25,25,40,40]]"  # an untrained network finds some
    checkpoint = "--ckpt_path fit2/checkpoints/last.ckpt --trainer.devices"

    def of_two():
        type_line(f"fit {line} {fit}")
        type_line(f"test {line} {checkpoint} 2 --run test2")

    together(of_two)
    type_line(f"validate {line} {checkpoint} 1 --run validate1")
    type_line(f"test {line} {checkpoint} 1 --run test1")
    for two, one in (("fit2", "validate1"), ("test2", "test1")):
        figures = read(f"{two}/figures0.json")
        assert figures == read(f"{two}/figures1.json")
        assert figures == read(f"{one}/figures0.json")
        rows = [read(f"{run}/metrics.json")["per_class"] for run in (one, two)]
        assert rows[0] == rows[1]
    assert read("test1/metrics.json")["images"] == 1
    assert read("validate1/metrics.json")["R"] > 0
