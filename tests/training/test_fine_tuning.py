"""An image backbone with a rate of its own, frozen epochs, frozen batch norm."""

from pathlib import Path

import pytest
import timm
import torch
from made_backbones import FINE_TUNED, RESNET, settled
from safetensors.torch import save_file
from small_fit import small_fit

import cli
from boltbox.detector.model.network import YOLOv5
from boltbox.detector.training.freezing import FrozenLayers
from boltbox.detector.training.optimizer import build_optimizer


def test_a_rate_of_its_own_and_frozen_epochs(small_data: Path, here: Path) -> None:
    """The backbone stays in the first epoch and moves in the second, at a twentieth of the others'
    rate; its batch norm stays. The fresh layers between it and the neck move from the start, batch
    norm and all."""
    torch.manual_seed(0)
    state = settled(timm.create_model(RESNET)).state_dict()
    save_file(state, here / "model.safetensors")
    more = [*FINE_TUNED, "--model.start.backbone_weights", "model.safetensors", "--model.start.freeze_backbone_bn", "true",
            "--ema.enabled", "false", "--checkpoints.save_period", "1"]  # fmt: skip
    cli.main(small_fit(small_data, here / "run", *more, "--trainer.max_epochs", "2"))
    names = {name for name in state if not name.startswith("fc.")}
    for epoch, file in enumerate(["epoch0.ckpt", "last.ckpt"]):
        content = torch.load(here / "run/checkpoints" / file, weights_only=True)
        weights = content["state_dict"]
        moved = {
            name
            for name in names
            if not torch.equal(weights[f"network.backbone.body.{name}"], state[name])
        }
        norms = {name for name in names if f"{name.rpartition('.')[0]}.running_mean" in names}
        assert moved == (names - norms if epoch else set())
        assert (weights["network.backbone.sppf.cv1.bn.running_mean"] != 0).all()
        rates = {
            group["name"]: group["lr"] for group in content["optimizer_states"][0]["param_groups"]
        }
        for name in ("weight", "norm"):
            assert rates[f"backbone_{name}"] == pytest.approx(rates[name] / 20)
        decays = {
            group["name"]: group["weight_decay"]
            for group in content["optimizer_states"][0]["param_groups"]
        }
        assert decays["backbone_weight"] < decays["weight"]
        assert decays["backbone_norm"] == decays["backbone_bias"] == 0


def test_fresh_layers_beside_the_backbone_are_trained_as_the_neck_is() -> None:
    network = YOLOv5(3, backbone=f"timm/{RESNET}")
    groups = build_optimizer(network, "Muon", 0.008, 0.95, 0.05, backbone_lr=0.001).param_groups
    group_of = {id(p): group["name"] for group in groups for p in group["params"]}
    FrozenLayers(network, freeze=10, epochs=None, batch_norm=False, backbone_batch_norm=False)
    for name, parameter in network.named_parameters():
        within = name.startswith("backbone.body.")
        assert group_of[id(parameter)].startswith("backbone_") == within
        assert parameter.requires_grad != within
