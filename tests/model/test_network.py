"""The network: free shapes, activations, input errors."""

import pytest
import torch
import yaml
from made_networks import small
from made_runs import column
from torch import nn

from boltbox.detector.model.boxes import iou_cxcywh
from boltbox.detector.model.layers import Conv, concatenate
from boltbox.detector.model.network import YOLOv5
from boltbox.detector.system.errors import InputError


@pytest.mark.parametrize("levels", [(2,), (5, 6), (2, 3, 4, 5, 6, 7)])
@torch.no_grad()
def test_free_levels(levels):
    network = small(2, levels=levels).eval()
    assert network.strides == [2**k for k in levels]
    assert network.max_stride == 2 ** max(5, *levels)
    height = network.max_stride
    width = 2 * network.max_stride
    raw = network(torch.zeros(1, 3, height, width))
    assert column(raw, "shape") == [(1, 3, height // 2**k, width // 2**k, 7) for k in levels]


def test_activation_and_momentum():
    """They belong to this network alone, other than YOLOv5's (specification 8.12)."""
    for options, kind, momentum in (
        ({}, nn.SiLU, 0.1),
        ({"activation": "leaky_relu", "bn_momentum": 0.03}, nn.LeakyReLU, 0.03),
    ):
        blocks = [m for m in small(**options).modules() if isinstance(m, Conv)]
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
