"""Forward pass, sizes, parameter groups, head biases."""

import pytest
import torch
from golden.cases import ALL, BASES_NOT_COVERED, close, each, shape_of, size_of
from made_runs import column
from torch import nn

from boltbox.detector.model.network import YOLOv5
from boltbox.detector.training.optimizer import parameter_groups
from boltbox.detector.weights.yolov5 import by_our_names, key_map


@each("forward")
def test_forward(case):
    network = case.network()
    network.load_state_dict(by_our_names(network, case.tensors("in_w::")))
    names = key_map(network)
    assert sum(map(torch.numel, network.parameters())) == case.meta["n_params"]
    images = case.tensor("in_images_u8").float() / 255
    with torch.no_grad():
        raw = network.eval()(images)
        for ours, theirs in zip(raw, case.numbered("out_raw"), strict=True):
            close(ours, theirs, 1e-4)
        decoded = network.head.decode(raw)
        close(decoded, case["out_decoded"], 2e-3, 1e-5)

        fused = network.fused()
        close(fused.head.decode(fused(images)), case["out_fused_decoded"], 2e-2)
        for m in fused.modules():
            assert not isinstance(m, nn.BatchNorm2d)
        state = fused.state_dict()
        for k, key in enumerate(case.meta["fused_keys"]):
            ours = names[key.replace(".bias", ".weight")]
            close(state[ours], case[f"out_fused_weight_{k}"], 1e-5)
            close(state[ours.replace(".weight", ".bias")], case[f"out_fused_bias_{k}"], 1e-5)

        for ours, theirs in zip(
            network.train()(images), case.numbered("out_trainbn_raw"), strict=True
        ):
            close(ours, theirs, 1e-3)
    state = network.state_dict()
    for place, key in zip(("first", "mid", "last"), case.meta["bn_keys"], strict=True):
        close(state[names[key]], case[f"out_trainbn_{place}_running_mean"], 1e-5)
        close(
            state[names[key.replace("running_mean", "running_var")]],
            case[f"out_trainbn_{place}_running_var"],
            1e-5,
            1e-5,
        )


def entries(kind, key):
    """Of all files of a kind."""
    found = []
    for case in ALL:
        if case.kind == kind:
            found += case.meta[key]
    return found


MODELS = entries("models", "models")
COVERED = [m for m in MODELS if size_of(m["base"])]


def test_models_left_out_are_listed():
    left_out = set(column(MODELS, "base")) - set(column(COVERED, "base"))
    for base in left_out:
        assert any(part in base for part in BASES_NOT_COVERED), left_out


PARAM_GROUPS = {group["base"]: group for group in entries("param_groups", "groups")}


@pytest.mark.parametrize("model", COVERED, ids=column(COVERED, "base"))
def test_models(model):
    """Not compared: modules_total, modules_leaf, top_layers, save_layers, which count YOLOv5's own
    containers."""
    with torch.device("meta"):
        network = YOLOv5(model["nc"], **shape_of(model))
        inputs = zip(model["head_in_channels"], model["strides"], strict=True)
        raw = network.head([torch.zeros(1, c, 640 // s, 640 // s) for c, s in inputs])
        fused = network.fused()
    assert sum(map(torch.numel, network.parameters())) == model["params"]
    assert len(list(network.parameters())) == model["n_param_tensors"]
    assert len(network.state_dict()) == model["n_state_entries"]
    assert network.strides == model["strides"]
    assert list(network.head.anchors.shape) == [model["nl"], model["na"], 2]
    assert column(network.head.convs, "in_channels") == model["head_in_channels"]
    assert set(column(network.head.convs, "out_channels")) == {model["head_channels"]}
    assert max(network.layer_names()) + 1 == model["top_layers"]
    assert list(map(list, column(raw, "shape"))) == model["level_shapes_640"]
    assert sum(r[..., 0].numel() for r in raw) == model["eval_rows_640"]
    assert sum(map(torch.numel, fused.parameters())) == model["fused"]["params"]
    if model["base"] in PARAM_GROUPS:
        expected = PARAM_GROUPS[model["base"]]
        groups = parameter_groups(network)
        names = {"bias": "bias", "weights_decay": "weight", "norm_weights": "norm"}
        assert list(map(names.get, expected["optimizer_group_order"])) == list(groups)
        for g in expected["groups"]:
            ours = groups[names[g["group"]]]
            assert (len(ours), sum(map(torch.numel, ours))) == (g["n_tensors"], g["n_params"])


@pytest.mark.parametrize(
    "model", [m for m in COVERED if not m["anchors_are_placeholder"]], ids=lambda m: m["base"]
)
def test_default_anchors(model):
    network = YOLOv5(1, **shape_of(model) | {"width_multiple": 0.125, "depth_multiple": 0.1})
    close(network.head.anchors_px.flatten(1), model["anchors_px"], 1e-4)
    close(network.head.anchors.flatten(1), model["anchors_grid"], 1e-4)


@each("bias")
def test_bias(case):
    network = case.network()
    if "in_class_freq" in case.arrays:
        return  # YOLOv5 never passes class frequencies in its training
    for conv in network.head.convs:
        nn.init.zeros_(conv.bias)
    network.head.add_priors()
    for conv, theirs in zip(network.head.convs, case.numbered("out_bias"), strict=True):
        close(conv.bias.detach().view(theirs.shape), theirs, 1e-5)
