"""Optimizers of torch by their class, a rate of its own for a backbone, and what a resume changes."""

import pytest
import timm
import torch
from made_backbones import BACKBONE, RESNET, settled
from made_networks import same
from made_runs import load, train, type_line
from safetensors.torch import save_file

from boltbox.detector.model.network import YOLOv5
from boltbox.detector.training.optimizer import OptimOptions, StartingPoint
from boltbox.detector.weights.start import StartOptions

SHORT = "--trainer.limit_train_batches 1 --trainer.limit_val_batches 0 --trainer.max_epochs"


def test_a_class_trains_and_resumes_exactly(small_data, here, refused):
    """Its state is unlike SGD's and Adam's. A script's checkpoint lacks arguments of the class that
    are its defaults."""
    options = "--model.optim.optimizer torch.optim.Adagrad --model.optim.lr0 0.02"
    train(small_data, "whole", f"{SHORT} 2 {options} --checkpoints.save_period 1")
    content = load(here / "whole/checkpoints/epoch0.ckpt")
    content["hyper_parameters"]["optim"]["optimizer"]["init_args"] = {}
    torch.save(content, here / "of_a_script.ckpt")
    resume = "fit --ckpt_path of_a_script.ckpt --run resumed"
    assert "another optimizer" in refused(f"{resume} --model.optim.optimizer SGD")
    type_line(resume)
    whole = load(here / "whole/checkpoints/last.ckpt")
    resumed = load(here / "resumed/checkpoints/last.ckpt")
    assert whole["hyper_parameters"]["optim"]["optimizer"]["class_path"].endswith(".Adagrad")
    (state,) = whole["optimizer_states"]
    assert state["state"][0].keys() == {"step", "sum"}
    assert same(whole["state_dict"], resumed["state_dict"])


def test_a_resume_takes_the_options_that_are_typed(small_data, here, refused):
    """Those of the optimizer too, which Lightning restores with its state; not other groups."""
    train(small_data, "run", f"{SHORT} 1 --model.optim.optimizer AdamW")
    resume = "fit --ckpt_path last --run run --trainer.max_epochs 2"
    refused(f"{resume} --model.optim.backbone_lr 0.0005")
    type_line(f"{resume} --model.optim.momentum 0.8 --model.optim.weight_decay 0.2")
    content = load(here / "run/checkpoints/last.ckpt")
    groups = {group["name"]: group for group in content["optimizer_states"][0]["param_groups"]}
    assert {group["betas"][0] for group in groups.values()} == {0.8}
    assert [groups[name]["weight_decay"] for name in ("weight", "bias", "norm")] == [0.2, 0, 0]
    assert content["hyper_parameters"]["optim"]["weight_decay"] == 0.2


def test_a_backbone_with_its_own_rate(small_data, here):
    """A twentieth of the others' rate."""
    torch.manual_seed(0)
    state = settled(timm.create_model(RESNET)).state_dict()
    save_file(state, here / "model.safetensors")
    more = "--trainer.max_epochs 1 --trainer.limit_val_batches 0"
    more += " --model.start.backbone_weights model.safetensors --model.optim.backbone_lr 0.0008"
    train(small_data, "run", " ".join([more] + BACKBONE))
    content = load(here / "run/checkpoints/last.ckpt")
    name = "conv1.0.weight"
    assert not torch.equal(content["state_dict"][f"network.backbone.body.{name}"], state[name])
    groups = {group["name"]: group for group in content["optimizer_states"][0]["param_groups"]}
    for name in ("weight", "norm"):
        assert groups[f"backbone_{name}"]["lr"] == pytest.approx(groups[name]["lr"] / 20)
    assert groups["backbone_norm"]["weight_decay"] == groups["backbone_bias"]["weight_decay"] == 0


def test_fresh_layers_beside_the_backbone_are_trained_as_the_neck_is():
    network = YOLOv5(3, backbone=f"timm/{RESNET}")
    optim = OptimOptions("Muon", backbone_lr=0.001).resolve(StartingPoint.SCRATCH)
    group_of = {}
    for group in optim.build(network, 64).param_groups:
        group_of |= dict.fromkeys(map(id, group["params"]), group["name"])
    StartOptions(freeze=10).freeze_layers(network)
    for name, parameter in network.named_parameters():
        is_within = name.startswith("backbone.body.")
        assert group_of[id(parameter)].startswith("backbone_") == is_within
        assert parameter.requires_grad != is_within


def test_defaults_of_sgd_are_those_of_yolov5():
    optim = OptimOptions("SGD").resolve(StartingPoint.SCRATCH)
    assert (optim.lr0, optim.momentum, optim.weight_decay) == (0.01, 0.937, 0.0005)
