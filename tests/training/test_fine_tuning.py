"""An image backbone with a rate of its own, or frozen."""

from pathlib import Path

import pytest
import timm
import torch
from made_backbones import FINE_TUNED, RESNET, settled
from safetensors.torch import save_file
from small_fit import small_fit

import cli
from boltbox.detector.model.network import YOLOv5
from boltbox.detector.training.optimizer import OptimOptions, StartingPoint
from boltbox.detector.weights.start import StartOptions


def test_a_rate_of_its_own(small_data: Path, here: Path) -> None:
    """The backbone moves at a twentieth of the others' rate."""
    torch.manual_seed(0)
    state = settled(timm.create_model(RESNET)).state_dict()
    save_file(state, here / "model.safetensors")
    one = "--trainer.max_epochs 1 --trainer.limit_val_batches 0"
    more = [*FINE_TUNED, "--model.start.backbone_weights", "model.safetensors"]
    cli.main(small_fit(small_data, here / "run", *more, *one.split()))
    content = torch.load(here / "run/checkpoints/last.ckpt", weights_only=True)
    weights, (saved,) = content["state_dict"], content["optimizer_states"]
    name = "conv1.0.weight"
    assert not torch.equal(weights[f"network.backbone.body.{name}"], state[name])
    groups = {group["name"]: group for group in saved["param_groups"]}
    for name in ("weight", "norm"):
        assert groups[f"backbone_{name}"]["lr"] == pytest.approx(groups[name]["lr"] / 20)
    assert groups["backbone_norm"]["weight_decay"] == groups["backbone_bias"]["weight_decay"] == 0


def test_fresh_layers_beside_the_backbone_are_trained_as_the_neck_is() -> None:
    network = YOLOv5(3, backbone=f"timm/{RESNET}")
    groups = (
        OptimOptions("Muon", backbone_lr=0.001)
        .resolve(StartingPoint.SCRATCH)
        .build(network, 64)
        .param_groups
    )
    group_of = {id(p): group["name"] for group in groups for p in group["params"]}
    StartOptions(freeze=10).frozen(network)
    for name, parameter in network.named_parameters():
        within = name.startswith("backbone.body.")
        assert group_of[id(parameter)].startswith("backbone_") == within
        assert parameter.requires_grad != within
