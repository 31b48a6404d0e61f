"""Small networks, and what YOLOv5 would pickle of them."""

import sys
import types

import pytest
import torch
from torch import nn

from boltbox.detector.model.network import YOLOv5
from boltbox.detector.weights.yolov5 import key_map

MULTIPLES = {"depth_multiple": 0.33, "width_multiple": 0.125}


def small(num_classes=3, seed=0, **options):
    torch.manual_seed(seed)
    network = YOLOv5(num_classes, **MULTIPLES | options)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean)
    return network


def converter(monkeypatch):
    """A function: our network -> what YOLOv5 would pickle, a tree of modules under its names, with
    these attributes."""
    package = types.ModuleType("models")
    module = types.ModuleType("models.yolo")
    model_class = type("DetectionModel", (nn.Module,), {"__module__": "models.yolo"})
    module.DetectionModel = model_class
    monkeypatch.setitem(sys.modules, "models", package)
    monkeypatch.setitem(sys.modules, "models.yolo", module)

    def convert(network, **attributes):
        root = model_class()
        state = network.state_dict()
        parameters = dict(network.named_parameters())
        for theirs, ours in key_map(network).items():
            *path, leaf = theirs.split(".")
            place = root
            for part in path:
                if part not in place._modules:
                    place.add_module(part, nn.Sequential())
                place = place._modules[part]
            tensor = state[ours].clone()
            if ours in parameters:
                place.register_parameter(leaf, nn.Parameter(tensor))
            else:
                place.register_buffer(leaf, tensor)
        for name, value in attributes.items():
            setattr(root, name, value)
        return root

    return convert


yolov5_converter = pytest.fixture(converter, name="as_yolov5")


def same(a, b, atol=0):
    return a.keys() == b.keys() and all(
        torch.allclose(a[name], b[name], rtol=0, atol=atol) for name in a
    )


def copied(module):
    """Its state, which it does not change any more."""
    found = {}
    for name, tensor in module.state_dict().items():
        found[name] = tensor.clone()
    return found
