"""Muon against torch's, and who is trained by it."""

from pathlib import Path

import lightning as L
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from made_options import made_detector
from small_fit import small_fit
from torch import nn

import boltbox.detector.training.pretrained_score
import cli
from boltbox.callbacks import AutoAnchor, Pictures, Report, recipe
from boltbox.detector.data.datamodule import DetectionData
from boltbox.detector.data.sample import Batch
from boltbox.detector.model.network import NetworkOptions, YOLOv5
from boltbox.detector.system.errors import InputError
from boltbox.detector.training.module import Detector
from boltbox.detector.training.muon import Muon, orthogonalised
from boltbox.detector.training.optimizer import OptimOptions, StartingPoint
from boltbox.detector.training.pretrained_score import score_pretrained


@given(
    st.integers(1, 3),
    st.integers(1, 40),
    st.integers(1, 40),
    st.integers(0, 2**31),
    st.floats(1e-6, 1e3),
)
def test_singular_values_become_about_one(
    count: int, rows: int, columns: int, seed: int, scale: float
) -> None:
    """The directions stay."""
    random = torch.randn(
        count, rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.double
    )
    left, _, right = torch.linalg.svd(random, full_matrices=False)
    values = torch.linspace(1, 0.03, left.shape[2], dtype=torch.double)
    found = orthogonalised(scale * left @ torch.diag(values) @ right)
    in_between = left.mT @ found @ right.mT
    assert (
        (in_between.diagonal(dim1=1, dim2=2) > 0.3) & (in_between.diagonal(dim1=1, dim2=2) < 1.3)
    ).all()
    assert torch.allclose(
        in_between, torch.diag_embed(in_between.diagonal(dim1=1, dim2=2)), atol=1e-6
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_no_gradient_no_step(dtype: torch.dtype) -> None:
    zeros = torch.zeros(1, 3, 4, dtype=dtype)
    assert torch.equal(orthogonalised(zeros), zeros)


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch has its own Muon since 2.9")
@pytest.mark.parametrize("shape", [(6, 20), (20, 6)])
def test_steps_are_those_of_torch(shape: tuple[int, int]) -> None:
    """torch's works on matrices only, and in bfloat16."""
    torch.manual_seed(0)
    ours, theirs = (nn.Parameter(torch.ones(shape)) for _ in range(2))
    a = Muon(
        [{"params": [ours], "orthogonal": True}], lr=0.1, betas=(0.9, 0.999), weight_decay=0.05
    )
    b = torch.optim.Muon(
        [theirs], lr=0.1, momentum=0.9, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"
    )
    for _ in range(5):
        before = theirs.detach().clone()
        ours.grad = torch.randn(shape)
        theirs.grad = ours.grad.clone()
        a.step(), b.step()
        assert (ours - theirs).norm() < 0.05 * (theirs - before).norm()
        ours.data.copy_(theirs)


def test_other_groups_are_trained_by_adamw() -> None:
    torch.manual_seed(0)
    ours, theirs = (
        [nn.Parameter(torch.ones(shape)) for shape in ((3,), (4, 1, 3, 3))] for _ in range(2)
    )
    a = Muon([{"params": ours, "orthogonal": False}], lr=0.1, betas=(0.9, 0.99), weight_decay=0.05)
    b = torch.optim.AdamW(theirs, lr=0.1, betas=(0.9, 0.99), weight_decay=0.05)
    for _ in range(5):
        for p, q in zip(ours, theirs, strict=True):
            p.grad = torch.randn(p.shape)
            q.grad = p.grad.clone()
        a.step(), b.step()
    assert all(torch.equal(p, q) for p, q in zip(ours, theirs, strict=True))


def test_weights_that_are_no_matrices_are_left_to_adamw() -> None:
    class Depthwise(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.backbone = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3, groups=8))
            self.head = nn.Linear(8, 4)

    def trained_by(**options: float) -> dict[str, bool]:
        optimizer = (
            OptimOptions("Muon", **options).resolve(StartingPoint.SCRATCH).build(Depthwise(), 64)
        )
        return {group["name"]: group["orthogonal"] for group in optimizer.param_groups}

    assert trained_by() == {"bias": False, "weight": True, "filter": False}
    assert trained_by(backbone_lr=0.001) == {
        "bias": False, "weight": True, "backbone_bias": False, "backbone_weight": False,
    }  # fmt: skip
    network = YOLOv5(3)
    sizes = {
        g["name"]: len(g["params"])
        for g in OptimOptions().resolve(StartingPoint.SCRATCH).build(network, 64).param_groups
    }
    assert sizes == {"bias": 60, "weight": 60, "norm": 57}


def test_auto_goes_by_what_a_training_starts_from(
    small_data: Path,
    here: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Muon for a fresh network and for weights that see no objects, AdamW for those that
    do, at a lower rate if they know the classes too; a run goes on as it began."""

    def told(run: str, *more: str) -> str:
        one = "--trainer.limit_train_batches 1 --trainer.limit_val_batches 0"
        cli.main(small_fit(small_data, here / run, *one.split(), *more))
        lines = capsys.readouterr().out.splitlines()
        return "\n".join(line for line in lines if line.startswith(("weights:", "optimizer:")))

    one, two = (["--trainer.max_epochs", str(epochs)] for epochs in (1, 2))
    assert "optimizer: Muon (auto: from scratch), lr0 0.008" in told(
        "fresh", "--seed_everything", "1", *one
    )
    weights = ["--model.start.weights", "fresh/checkpoints/last.ckpt"]
    last = ["--ckpt_path", "last"]
    monkeypatch.setattr(boltbox.detector.training.pretrained_score, "MIN_OBJECTNESS", 0.99)
    unknown = told("unknown", *weights, *one)
    assert "weights:   they do not recognise these objects (objectness 0." in unknown
    assert "optimizer: Muon (auto: from scratch), lr0 0.008" in unknown
    for option, value in (("lr0", "0.002"), ("momentum", "0.8"), ("weight_decay", "0.01")):
        said = told(option, *weights, *one, f"--model.optim.{option}", value)
        assert "optimizer: AdamW (auto: for pretrained weights)" in said
    monkeypatch.setattr(boltbox.detector.training.pretrained_score, "MIN_OBJECTNESS", 0.0)
    tuned = told("tuned", *weights, *one)
    assert tuned.splitlines()[1].startswith(
        "optimizer: AdamW (auto: for pretrained weights), lr0 0.001"
    )
    monkeypatch.setattr(boltbox.detector.training.pretrained_score, "MIN_MAP50", 0.0)
    known = told("known", *weights, *one)
    assert ": lower learning rate, lr0 0.0003\noptimizer: AdamW (auto:" in known
    monkeypatch.setattr(boltbox.detector.training.pretrained_score, "MIN_OBJECTNESS", 0.99)
    assert "AdamW (auto: for pretrained weights), lr0 0.0003" in told("known", *last, *two)
    goes_on = told("tuned", *last, *two)
    assert goes_on.startswith("optimizer: AdamW (auto: for pretrained weights), lr0 0.001")


class Told(nn.Module):
    """A network that says these boxes, whatever the image."""

    def __init__(self, boxes: torch.Tensor) -> None:
        super().__init__()
        self.boxes = nn.Parameter(boxes)

    def forward(self, images: torch.Tensor) -> list[torch.Tensor]:
        return [self.boxes.expand(len(images), -1, -1)]

    def decode(self, raw: list[torch.Tensor]) -> torch.Tensor:
        return raw[0]


def test_what_weights_know_of_the_objects() -> None:
    """How sure they are of as many boxes as there are objects, and what they detect."""
    boxes = torch.tensor(
        [
            [8.0, 8, 8, 8, 0.9, 0.0],  # exactly the first object
            [40.0, 8, 8, 8, 0.002, 0.0],  # the second, shifted by a quarter
            [8.0, 40, 8, 8, 0.9, 0.0],  # the third, shifted by half
            [40.0, 40, 8, 8, 0.0005, 0.0],  # the fourth, too unsure
        ]
    )
    objects = torch.tensor([[8.0, 8, 8, 8], [38.0, 8, 8, 8], [8.0, 44, 8, 8], [40.0, 40, 8, 8]])
    targets = torch.cat((torch.zeros(4, 2), objects / 64), 1)
    targets[:, 1] = torch.arange(4)
    batch = Batch(torch.zeros(1, 3, 64, 64, dtype=torch.uint8), targets, [0], [None], [])
    network = Told(boxes).train()
    assert score_pretrained(network, [batch], [0]).objectness == pytest.approx(
        (0.9 + 0.9 + 0.002) / 4
    )
    assert network.training
    assert score_pretrained(network, [batch._replace(targets=targets[:0])], [0]) == (1.0, 0.0)
    boxes[:, 5] = 1
    targets[:, 1] = 0
    # recall .25 at precision 1, then .5 at 2/3, from where on YOLOv5 draws a line to 0 at recall 1
    wanted = 0.25 + 0.25 * 2 / 3 + 0.5 * 2 / 3 / 2
    assert score_pretrained(network, [batch], [0]).map50 == pytest.approx(wanted, abs=0.01)
    assert score_pretrained(network, [batch], []).map50 == 0


def test_a_script_goes_on_as_it_began(small_data: Path, here: Path) -> None:
    """With the optimizer and the rates of its checkpoint, where the Detector is given none."""
    data = DetectionData(str(small_data), image_size=64, batch_size=8, workers=0)
    small = {"width_multiple": 0.125, "depth_multiple": 0.1}
    off = {"enable_progress_bar": False, "limit_train_batches": 1, "limit_val_batches": 0}
    quiet = [Report(enabled=False), Pictures(enabled=False), AutoAnchor(enabled=False)]
    began = made_detector(data.names, optimizer="AdamW", lr0=0.002, **small)
    L.Trainer(**recipe(run="run", max_epochs=1, callbacks=quiet, **off)).fit(began, data)
    goes_on = made_detector(data.names, **small)
    trainer = L.Trainer(**recipe(run="run", max_epochs=2, callbacks=quiet, **off))
    trainer.fit(goes_on, data, ckpt_path="run/checkpoints/last.ckpt")
    assert isinstance(trainer.optimizers[0], torch.optim.AdamW)
    assert goes_on.lr == 0.002


def test_no_such_optimizer() -> None:
    with pytest.raises(
        InputError, match=r"model.optim.optimizer Sgd: it is auto, SGD, Adam, AdamW, Muon"
    ):
        Detector(
            ["a"], network=NetworkOptions(width_multiple=0.125), optim=OptimOptions(optimizer="Sgd")
        )  # type: ignore[arg-type]
