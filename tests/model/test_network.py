"""The network: fusion, free shapes, layer names, anchors, activations, input errors."""

import math
from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn

from boltbox.detector.model.layers import Conv
from boltbox.detector.model.network import SIZES, YOLOv5
from boltbox.detector.system.errors import InputError


def narrow(size: str = "n", num_classes: int = 2, seed: int = 0, **options: Any) -> YOLOv5:
    """A small network of this topology whose batch norms have seen something."""
    torch.manual_seed(seed)
    network = YOLOv5(
        num_classes, size, **{"depth_multiple": 0.33, "width_multiple": 0.125, **options}
    )
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, 0, 0.3)
            nn.init.uniform_(module.running_var, 0.3, 3)
            nn.init.uniform_(module.weight, 0.5, 2)
            nn.init.normal_(module.bias, 0, 0.3)
    return network


@pytest.mark.parametrize(("size", "sides"), [("n", (64, 96)), ("n6", (64, 128)), ("p2", (96, 64))])
@torch.no_grad()
def test_fused_network_says_the_same(size: str, sides: tuple[int, int]) -> None:
    network = narrow(size)
    images = torch.rand(2, 3, *sides)
    in_training = network.train()(images)
    fused = network.fused()
    wanted = network.eval()(images)
    assert [r.shape[2:4] for r in wanted] == [
        (sides[0] // s, sides[1] // s) for s in network.strides
    ]
    for ours, theirs, other in zip(fused(images), wanted, in_training, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)
        assert (theirs - other).abs().max() > 0.01, "the statistics matter"
    assert not any(isinstance(m, nn.BatchNorm2d) for m in fused.modules())
    assert not any(p.requires_grad for p in fused.parameters())
    assert not fused.training


def test_fusing_leaves_the_network_as_it_is() -> None:
    network = narrow()
    before = {name: t.clone() for name, t in network.state_dict().items()}
    network.fused()
    after = network.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert all(p.requires_grad for p in network.parameters())
    assert network.training


@pytest.mark.parametrize("levels", [(2,), (3,), (7,), (2, 3), (4, 5), (5, 6), (2, 3, 4, 5, 6, 7)])
@torch.no_grad()
def test_free_levels(levels: tuple[int, ...]) -> None:
    network = narrow(levels=levels).eval()
    assert network.strides == [2**k for k in levels]
    assert network.max_stride == 2 ** max(5, *levels)
    assert network.anchors.shape == (len(levels), 3, 2)
    height = network.max_stride
    width = 2 * network.max_stride
    raw = network(torch.zeros(1, 3, height, width))
    assert [r.shape for r in raw] == [(1, 3, height // 2**k, width // 2**k, 7) for k in levels]


def test_free_depth_and_width() -> None:
    """Repeats round half to even and are 1 at least; channels round up to multiples of 8; each
    replaces its own value alone."""
    network = YOLOv5(1, "m", depth_multiple=0.5, width_multiple=0.2)
    # of 3 6 9 3: 1.5 3 4.5 1.5
    assert [len(network.backbone.c3[k].m) for k in "2345"] == [2, 3, 4, 2]
    # 25.6 51.2 102.4 204.8
    assert [network.backbone.down[k].conv.out_channels for k in "2345"] == [32, 56, 104, 208]
    assert network.backbone.stem.conv.out_channels == 16  # 12.8
    assert {
        len(c.m) for c in [*network.neck.top_down.values(), *network.neck.bottom_up.values()]
    } == {2}
    shallow = YOLOv5(1, "s", depth_multiple=0.01)
    slim = YOLOv5(1, "x", width_multiple=0.01)
    assert [len(shallow.backbone.c3[k].m) for k in "2345"] == [1, 1, 1, 1]
    assert shallow.backbone.stem.conv.out_channels == 32
    assert [len(slim.backbone.c3[k].m) for k in "2345"] == [4, 8, 12, 4]
    assert slim.backbone.c3["5"].cv3.conv.out_channels == 16  # 10.24
    assert slim.backbone.c3["4"].cv3.conv.out_channels == 8  # 5.12


def test_every_size_starts_with_its_row() -> None:
    with torch.device("meta"):
        for name, row in SIZES.items():
            network = YOLOv5(1, name)
            assert network.levels == row.levels
            assert len(network.backbone.c3["4"].m) == round(9 * row.depth)
            assert network.backbone.c3["3"].cv3.conv.out_channels == 256 * row.width


# Specification 1.3: YOLOv5's layer numbers.
LAYERS = {
    "p2": {
        2: "backbone.c3.2",
        9: "backbone.sppf",
        10: "neck.lateral.4",
        13: "neck.top_down.4",
        14: "neck.lateral.3",
        17: "neck.top_down.3",
        18: "neck.lateral.2",
        21: "neck.top_down.2",
        22: "neck.down.3",
        24: "neck.bottom_up.3",
        27: "neck.bottom_up.4",
        30: "neck.bottom_up.5",
        31: "head",
    },
    "n6": {
        0: "backbone.stem",
        8: "backbone.c3.5",
        10: "backbone.c3.6",
        11: "backbone.sppf",
        12: "neck.lateral.5",
        16: "neck.lateral.4",
        20: "neck.lateral.3",
        23: "neck.top_down.3",
        26: "neck.bottom_up.4",
        29: "neck.bottom_up.5",
        32: "neck.bottom_up.6",
        33: "head",
    },
    "p34": {17: "neck.top_down.3", 20: "neck.bottom_up.4", 21: "head"},
    "p7": {13: "backbone.sppf", 29: "neck.top_down.3", 41: "neck.bottom_up.7", 42: "head"},
}


@pytest.mark.parametrize("size", LAYERS)
def test_layer_names(size: str) -> None:
    with torch.device("meta"):
        network = YOLOv5(1, size)
    names = network.layer_names()
    assert {i: names[i] for i in LAYERS[size]} == LAYERS[size]
    for name in names.values():
        network.get_submodule(name)
    assert {n.partition(".")[0] for n in names.values()} == {"backbone", "neck", "head"}
    covered = {
        p
        for name in names.values()
        for p, _ in network.get_submodule(name).named_parameters(prefix=name)
    }
    assert covered == {p for p, _ in network.named_parameters()}, "no parameter is without a number"


def test_neck_of_p2_is_not_repeated_on_level_2() -> None:
    """Specification 1.3: `C3 n1 128 (21, P2)`, never scaled; the others n3."""
    neck = YOLOv5(1, "p2", depth_multiple=1, width_multiple=0.01).neck
    assert {k: len(c.m) for k, c in neck.top_down.items()} == {"4": 3, "3": 3, "2": 1}
    assert {len(c.m) for c in neck.bottom_up.values()} == {3}


def test_custom_anchors_are_pixels() -> None:
    anchors = [[10, 20], [30, 40], [64, 96]]
    network = narrow(anchors=anchors)
    # divided by 8, 16, 32
    assert network.anchors.tolist() == [[[1.25, 2.5]], [[1.875, 2.5]], [[2, 3]]]
    assert network.head.anchors_px.flatten(1).tolist() == anchors
    assert "head.anchors" in network.state_dict()
    raw = network.eval()(torch.zeros(1, 3, 32, 32))
    assert [r.shape[1] for r in raw] == [1, 1, 1]
    decoded = network.decode([torch.zeros_like(r) for r in raw])
    sizes = Counter((w, h) for w, h in decoded[0, :, 2:4].tolist())
    assert sizes == {(10, 20): 16, (30, 40): 4, (64, 96): 1}


def test_any_number_of_anchors() -> None:
    network = narrow(anchors=[[8.5, 9, 10, 11], [12, 13, 14, 15]], levels=[3, 4])
    assert [c.out_channels for c in network.head.convs] == [2 * 7, 2 * 7]
    assert network.anchors[0, 0, 0] == 8.5 / 8


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("silu", nn.SiLU),
        ("relu", nn.ReLU),
        ("leaky_relu", nn.LeakyReLU),
        ("hardswish", nn.Hardswish),
    ],
)
def test_activation(name: str, kind: type[nn.Module]) -> None:
    """It belongs to this network alone, other than YOLOv5's (specification 8.12)."""
    acts = [m.act for m in narrow(activation=name).modules() if isinstance(m, Conv)]
    assert {type(a) for a in acts} == {kind}
    assert all(a.negative_slope == 0.1 for a in acts if isinstance(a, nn.LeakyReLU))
    assert {type(m.act) for m in narrow().modules() if isinstance(m, Conv)} == {nn.SiLU}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": "ss6"}, r"model.network.size 'ss6' is not known; did you mean 's6'\?"),
        (
            {"size": "yolov5-enormous"},
            "model.network.size 'yolov5-enormous' is not known; choose from n, s, m, l, x, n6,",
        ),
        (
            {"levels": [3, 5]},
            r"model.network.levels \[3, 5\]: give consecutive levels between 2 and 7",
        ),
        ({"levels": [5, 4, 3]}, r"model.network.levels \[5, 4, 3\]: give consecutive"),
        ({"levels": [1, 2, 3]}, r"model.network.levels \[1, 2, 3\]: give consecutive"),
        ({"levels": [7, 8]}, r"model.network.levels \[7, 8\]: give consecutive"),
        ({"levels": []}, r"model.network.levels \[\]: give consecutive"),
        (
            {"anchors": [[10, 13], [30, 61]]},
            "model.network.anchors: give one row of positive pixels .* for each of the 3 levels",
        ),
        ({"anchors": [[10, 13], [30, 61], [1, 2, 3, 4]]}, "model.network.anchors: give one row"),
        ({"anchors": [[10, 13, 5], [30, 61, 5], [1, 2, 3]]}, "model.network.anchors: give one row"),
        (
            {"anchors": [[10, 13], [30, 61], [0, 2]]},
            "model.network.anchors: give one row of positive",
        ),
        (
            {"anchors": [[10, 13], [30, 61], [math.nan, 2]]},
            "model.network.anchors: give one row of positive",
        ),
        ({"anchors": [[], [], []]}, "model.network.anchors: give one row"),
        ({"anchors": []}, "model.network.anchors: give one row"),
        (
            {"activation": "silly"},
            r"model.network.activation 'silly' is not known; did you mean 'silu'\?",
        ),
        (
            {"activation": "leaky"},
            r"model.network.activation 'leaky' is not known; did you mean 'leaky_relu'\?",
        ),
    ],
    ids=str,
)
def test_input_errors(options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        YOLOv5(2, **{"width_multiple": 0.125, **options})


@torch.no_grad()
def test_state_dict_round_trip() -> None:
    network = narrow("n6", anchors=[[5, 6], [20, 30], [40, 50], [100, 90]], seed=0)
    other = narrow("n6", anchors=[[1, 1]] * 4, seed=1)
    assert not torch.equal(other.anchors, network.anchors)
    other.load_state_dict(network.state_dict())
    images = torch.rand(1, 3, 64, 64)
    for ours, theirs in zip(other.eval()(images), network.eval()(images), strict=True):
        assert torch.equal(ours, theirs)
    assert torch.equal(other.anchors, network.anchors), "anchors travel with the weights"
