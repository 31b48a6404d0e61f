"""Muon against torch's, and what is trained by it."""

import pytest
import torch
from made_runs import train
from torch import nn

import boltbox.detector.training.pretrained_score
from boltbox.detector.data.sample import Batch
from boltbox.detector.model.network import YOLOv5
from boltbox.detector.training.muon import Muon, orthogonalised
from boltbox.detector.training.optimizer import OptimOptions, StartingPoint
from boltbox.detector.training.pretrained_score import score_pretrained


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch has its own Muon since 2.9")
@pytest.mark.parametrize("shape", [(6, 20), (20, 6)])
def test_steps_are_those_of_torch(shape):
    """torch's takes matrices only, and computes in bfloat16."""
    torch.manual_seed(0)
    ours = nn.Parameter(torch.ones(shape))
    reference = nn.Parameter(torch.ones(shape))
    options = {"lr": 0.1, "weight_decay": 0.05}
    muon = Muon([{"params": [ours], "orthogonal": True}], betas=(0.9, 0.999), **options)
    expected = torch.optim.Muon(
        [reference], momentum=0.9, adjust_lr_fn="match_rms_adamw", **options
    )
    for _ in range(5):
        before = reference.detach().clone()
        ours.grad = torch.randn(shape)
        reference.grad = ours.grad.clone()
        muon.step()
        expected.step()
        assert (ours - reference).norm() < 0.05 * (reference - before).norm()
        ours.data.copy_(reference)
    zeros = torch.zeros(1, 3, 4)
    assert torch.equal(orthogonalised(zeros), zeros), "no gradient, no step"


def test_other_groups_are_trained_by_adamw():
    torch.manual_seed(0)
    ours = nn.Parameter(torch.ones(4, 1, 3, 3))
    reference = nn.Parameter(torch.ones(4, 1, 3, 3))
    options = {"lr": 0.1, "betas": (0.9, 0.99), "weight_decay": 0.05}
    muon = Muon([{"params": [ours], "orthogonal": False}], **options)
    adamw = torch.optim.AdamW([reference], **options)
    for _ in range(3):
        ours.grad = torch.randn(ours.shape)
        reference.grad = ours.grad.clone()
        muon.step()
        adamw.step()
    assert torch.equal(ours, reference)


def test_muon_trains_the_matrices():
    network = nn.Module()
    network.backbone = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3, groups=8))
    network.head = nn.Linear(8, 4)

    def trained_by(network, **options):
        optim = OptimOptions(**options).resolve(StartingPoint.SCRATCH)
        groups = optim.build(network, 64).param_groups
        return {group["name"]: (group["orthogonal"], len(group["params"])) for group in groups}

    # a depthwise filter is no matrix
    assert trained_by(network) == {"bias": (False, 3), "weight": (True, 2), "filter": (False, 1)}
    assert trained_by(network, backbone_lr=0.001) == {
        "bias": (False, 1), "weight": (True, 1), "backbone_bias": (False, 2), "backbone_weight": (False, 2),
    }  # fmt: skip
    assert trained_by(YOLOv5(3)) == {"bias": (False, 60), "weight": (True, 60), "norm": (False, 57)}


def test_auto_goes_by_what_a_training_starts_from(
    small_data,
    here,
    capsys,
    monkeypatch,
):
    """Muon for a fresh network and for weights that do not see the objects, AdamW for those that
    do, at a lower rate if they know the classes too; a resumed run keeps its optimizer."""

    def optimizer(run, epochs, more=""):
        limits = f"--trainer.max_epochs {epochs} --trainer.limit_train_batches 1"
        train(small_data, run, f"{limits} --trainer.limit_val_batches 0 {more}")
        lines = capsys.readouterr().out.splitlines()
        (line,) = [line for line in lines if line.startswith("optimizer:")]
        return line

    def set_limit(name, value):
        monkeypatch.setattr(boltbox.detector.training.pretrained_score, name, value)

    assert ": Muon (auto: from scratch), lr0 0.008 " in optimizer("fresh", 1)
    weights = "--model.start.weights fresh/checkpoints/last.ckpt"
    set_limit("MIN_OBJECTNESS", 0.99)
    assert ": Muon (auto: from scratch), lr0 0.008 " in optimizer("unknown", 1, weights)
    given = optimizer("given", 1, f"{weights} --model.optim.momentum 0.8")
    assert ": AdamW (auto: for pretrained weights)" in given
    set_limit("MIN_OBJECTNESS", 0.0)
    assert ": AdamW (auto: for pretrained weights), lr0 0.001 " in optimizer("tuned", 1, weights)
    set_limit("MIN_MAP50", 0.0)
    assert ": AdamW (auto: for pretrained weights), lr0 0.0003 " in optimizer("known", 1, weights)
    set_limit("MIN_OBJECTNESS", 0.99)
    assert ": AdamW (auto: for pretrained weights), lr0 0.0003 " in optimizer(
        "known", 2, "--ckpt_path last"
    )


class Fixed(nn.Module):
    """A network that predicts these rows, whatever the image; its head too."""

    def __init__(self, rows):
        super().__init__()
        self.rows = nn.Parameter(rows)

    def forward(self, images):
        return self.rows[None]

    @property
    def head(self):
        return self

    def decode(self, raw):
        return raw


def test_what_weights_know_of_the_objects():
    """The confidence of as many boxes as there are objects, and what they detect."""
    rows = torch.tensor(
        [
            [8.0, 8, 8, 8, 0.9, 0.0],  # exactly the first object
            [40.0, 8, 8, 8, 0.002, 0.0],  # the second, shifted by a quarter
            [8.0, 40, 8, 8, 0.9, 0.0],  # the third, shifted by half
            [40.0, 40, 8, 8, 0.0005, 0.0],  # the fourth, below the minimum confidence
        ]
    )
    objects = torch.tensor([[8.0, 8, 8, 8], [38.0, 8, 8, 8], [8.0, 44, 8, 8], [40.0, 40, 8, 8]])
    targets = torch.cat((torch.zeros(4, 2), objects / 64), 1)
    targets[:, 1] = torch.arange(4)
    batch = Batch(torch.zeros(1, 3, 64, 64, dtype=torch.uint8), targets, [0], [None], [])
    network = Fixed(rows)
    objectness = score_pretrained(network, [batch], [0]).objectness
    assert objectness == pytest.approx((0.9 + 0.9 + 0.002) / 4)
    assert network.training
    assert score_pretrained(network, [], [0]) == (1.0, 0.0)
    rows[:, 5] = 1
    targets[:, 1] = 0
    # recall .25 at precision 1, then .5 at 2/3, from where on YOLOv5 draws a line to 0 at recall 1
    map50 = 0.25 + 0.25 * 2 / 3 + 0.5 * 2 / 3 / 2
    assert score_pretrained(network, [batch], [0]).map50 == pytest.approx(map50, abs=0.01)
    assert score_pretrained(network, [batch], []).map50 == 0
