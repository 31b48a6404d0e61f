"""The network: free shapes, layer names, anchors, activations, input errors."""

from collections import Counter

import pytest
import torch
import yaml
from made_networks import MULTIPLES
from made_runs import column
from torch import nn

from boltbox.detector.model.boxes import (
    iou_cxcywh,
)
from boltbox.detector.model.layers import Conv, concatenate
from boltbox.detector.model.network import YOLOv5
from boltbox.detector.system.errors import InputError


def narrow(size="n", num_classes=2, **options):
    """A small network of this topology."""
    return YOLOv5(num_classes, size, **MULTIPLES | options)


@pytest.mark.parametrize("levels", [(2,), (5, 6), (2, 3, 4, 5, 6, 7)])
@torch.no_grad()
def test_free_levels(levels):
    network = narrow(levels=levels).eval()
    assert network.strides == [2**k for k in levels]
    assert network.max_stride == 2 ** max(5, *levels)
    height = network.max_stride
    width = 2 * network.max_stride
    raw = network(torch.zeros(1, 3, height, width))
    assert column(raw, "shape") == [(1, 3, height // 2**k, width // 2**k, 7) for k in levels]


# Specification 1.3: YOLOv5's layer numbers.
LAYERS = {
    "p2": {
        2: "backbone.c3.2",
        9: "backbone.sppf",
        10: "neck.lateral.4",
        13: "neck.top_down.4",
        21: "neck.top_down.2",
        22: "neck.down.3",
        24: "neck.bottom_up.3",
        31: "head",
    },
    "p34": {0: "backbone.stem", 17: "neck.top_down.3", 20: "neck.bottom_up.4", 21: "head"},
    "p7": {13: "backbone.sppf", 29: "neck.top_down.3", 41: "neck.bottom_up.7", 42: "head"},
}


@pytest.mark.parametrize("size", LAYERS)
def test_layer_names(size):
    with torch.device("meta"):
        network = YOLOv5(1, size)
    names = network.layer_names()
    for number, name in LAYERS[size].items():
        assert names[number] == name
    covered = set()
    for name in names.values():
        covered |= dict(network.get_submodule(name).named_parameters(prefix=name)).keys()
    assert covered == dict(network.named_parameters()).keys(), "no parameter is without a number"


def test_custom_anchors_are_pixels():
    anchors = [[10, 20], [30, 40], [64, 96]]
    network = narrow(anchors=anchors)
    # divided by 8, 16, 32
    assert network.head.anchors.tolist() == [[[1.25, 2.5]], [[1.875, 2.5]], [[2, 3]]]
    assert network.head.anchors_px.flatten(1).tolist() == anchors
    raw = network.eval()(torch.zeros(1, 3, 32, 32))
    decoded = network.head.decode(list(map(torch.zeros_like, raw)))
    sizes = Counter(map(tuple, decoded[0, :, 2:4].tolist()))
    assert sizes == {(10, 20): 16, (30, 40): 4, (64, 96): 1}


def test_activation_and_momentum():
    """They belong to this network alone, other than YOLOv5's (specification 8.12)."""
    for options, kind, momentum in (
        ({}, nn.SiLU, 0.1),
        ({"activation": "leaky_relu", "bn_momentum": 0.03}, nn.LeakyReLU, 0.03),
    ):
        blocks = [m for m in narrow(**options).modules() if isinstance(m, Conv)]
        assert set(map(type, column(blocks, "act"))) == {kind}
        assert set(column(column(blocks, "bn"), "momentum")) == {momentum}
    assert blocks[0].act.negative_slope == 0.1


ERRORS = {  # options, and what the message names
    "size: ss6": "size .*'s6'",
    "levels: [3, 5]": r"levels \[3, 5\]",
    "levels: [7, 8]": "levels",
    "levels: []": "levels",
    "width_multiple: 17": "width_multiple",
    "anchors: 21": "anchors 21",
    "anchors: [[10, 13], [30, 61]]": "anchors",
    "anchors: [[10, 13], [30, 61], [1, 2, 3, 4]]": "anchors",
    "anchors: [[10, 13], [30, 61], [0, 2]]": "anchors",
    "anchors: [[10, 13], [30, 61], [.nan, 2]]": "anchors",
    "anchors: [[], [], []]": "anchors",
    "activation: leaky": "activation .*'leaky_relu'",
    "backbone: yolov": "backbone .*'yolov5'",
}


@pytest.mark.parametrize("given", ERRORS)
def test_input_errors(given):
    options = {"width_multiple": 0.125} | yaml.safe_load(given)
    with pytest.raises(InputError, match=f"model.network.{ERRORS[given]}"):
        YOLOv5(2, **options)


@pytest.mark.parametrize("sides", [(0.0, 0.0), (1e-30, 1e-40)])
def test_ciou_of_a_box_without_area_is_finite(sides):
    """A network may predict sides that underflow."""
    pred = torch.tensor([(1.0, 2.0) + sides], requires_grad=True)
    value = iou_cxcywh(pred, torch.tensor([[1.0, 2.0, 3.0, 4.0]]), kind="ciou")
    value.sum().backward()
    assert value.isfinite().all()
    assert pred.grad.isfinite().all()


def test_concatenation_is_torchs_with_dense_gradients():
    maps = [torch.randn(2, channels, 4, 6, requires_grad=True) for channels in (3, 5)]
    weight = torch.randn(2, 8, 4, 6)
    ours = torch.autograd.grad((concatenate(*maps) * weight).sum(), maps)
    reference = torch.autograd.grad((torch.cat(maps, 1) * weight).sum(), maps)
    for gradient, expected in zip(ours, reference, strict=True):
        assert torch.equal(gradient, expected)
        assert gradient.is_contiguous()


def test_a_fused_block_works_in_place_and_one_in_training_does_not():
    block = Conv(3, 4)
    assert not block.act.inplace
    block.fuse()
    assert block.act.inplace
