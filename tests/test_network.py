"""Fusion, free shapes, layer names, input errors of the network; assignment and loss against their definitions."""

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from made_heads import losses
from torch import Tensor, nn

from detector.model.assigner import assign_targets
from detector.model.layers import Conv
from detector.model.loss import DetectionLoss, scaled_gains
from detector.model.network import YOLOv5
from detector.model.postprocess import decode
from detector.model.sizes import SIZES
from detector.system.errors import InputError

STRIDES = [8, 16, 32]


def narrow(size: str = "n", num_classes: int = 2, seed: int = 0, **options: Any) -> YOLOv5:
    """A small network of this topology whose batch norms have seen something."""
    torch.manual_seed(seed)
    network = YOLOv5(num_classes, size, **{"depth_multiple": 0.33, "width_multiple": 0.125, **options})
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, 0, 0.3)
            nn.init.uniform_(module.running_var, 0.3, 3)
            nn.init.uniform_(module.weight, 0.5, 2)
            nn.init.normal_(module.bias, 0, 0.3)
    return network


# ---- shapes


@pytest.mark.parametrize(("size", "sides"), [("n", (64, 96)), ("n6", (64, 128)), ("p2", (96, 64))])
@torch.no_grad()
def test_fused_network_says_the_same(size: str, sides: tuple[int, int]) -> None:
    network = narrow(size)
    images = torch.rand(2, 3, *sides)
    in_training = network.train()(images)
    fused = network.fused()
    wanted = network.eval()(images)
    assert [r.shape[2:4] for r in wanted] == [(sides[0] // s, sides[1] // s) for s in network.strides]
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
    height, width = network.max_stride, 2 * network.max_stride
    raw = network(torch.zeros(1, 3, height, width))
    assert [r.shape for r in raw] == [(1, 3, height // 2**k, width // 2**k, 7) for k in levels]


def test_free_depth_and_width() -> None:
    """Repeats round half to even and are 1 at least; channels round up to multiples of 8; each replaces its own value alone."""
    network = YOLOv5(1, "m", depth_multiple=0.5, width_multiple=0.2)
    assert [len(network.backbone.c3[k].m) for k in "2345"] == [2, 3, 4, 2]  # of 3 6 9 3: 1.5 3 4.5 1.5
    assert [network.backbone.down[k].conv.out_channels for k in "2345"] == [32, 56, 104, 208]  # 25.6 51.2 102.4 204.8
    assert network.backbone.stem.conv.out_channels == 16  # 12.8
    assert {len(c.m) for c in [*network.neck.top_down.values(), *network.neck.bottom_up.values()]} == {2}
    shallow, slim = YOLOv5(1, "s", depth_multiple=0.01), YOLOv5(1, "x", width_multiple=0.01)
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
    covered = {p for name in names.values() for p, _ in network.get_submodule(name).named_parameters(prefix=name)}
    assert covered == {p for p, _ in network.named_parameters()}, "no parameter is without a number"


def test_neck_of_p2_is_not_repeated_on_level_2() -> None:
    """Specification 1.3: `C3 n1 128 (21, P2)`, never scaled; the others n3."""
    neck = YOLOv5(1, "p2", depth_multiple=1, width_multiple=0.01).neck
    assert {k: len(c.m) for k, c in neck.top_down.items()} == {"4": 3, "3": 3, "2": 1}
    assert {len(c.m) for c in neck.bottom_up.values()} == {3}


# ---- anchors and activations


def test_custom_anchors_are_pixels() -> None:
    anchors = [[10, 20], [30, 40], [64, 96]]
    network = narrow(anchors=anchors)
    assert network.anchors.tolist() == [[[1.25, 2.5]], [[1.875, 2.5]], [[2, 3]]]  # divided by 8, 16, 32
    assert network.head.anchors_px.flatten(1).tolist() == anchors
    assert "anchors" in network.state_dict()
    raw = network.eval()(torch.zeros(1, 3, 32, 32))
    assert [r.shape[1] for r in raw] == [1, 1, 1]
    decoded = decode([torch.zeros_like(r) for r in raw], network.anchors, network.strides)
    sizes = Counter((w, h) for w, h in decoded[0, :, 2:4].tolist())
    assert sizes == {(10, 20): 16, (30, 40): 4, (64, 96): 1}


def test_any_number_of_anchors() -> None:
    network = narrow(anchors=[[8.5, 9, 10, 11], [12, 13, 14, 15]], levels=[3, 4])
    assert [c.out_channels for c in network.head.convs] == [2 * 7, 2 * 7]
    assert network.anchors[0, 0, 0] == 8.5 / 8


@pytest.mark.parametrize(
    ("name", "kind"), [("silu", nn.SiLU), ("relu", nn.ReLU), ("leaky_relu", nn.LeakyReLU), ("hardswish", nn.Hardswish)]
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
        ({"size": "ss6"}, r"model.size 'ss6' is not known; did you mean 's6'\?"),
        ({"size": "yolov5-enormous"}, "model.size 'yolov5-enormous' is not known; choose from n, s, m, l, x, n6,"),
        ({"levels": [3, 5]}, r"model.levels \[3, 5\]: give consecutive levels between 2 and 7"),
        ({"levels": [5, 4, 3]}, r"model.levels \[5, 4, 3\]: give consecutive"),
        ({"levels": [1, 2, 3]}, r"model.levels \[1, 2, 3\]: give consecutive"),
        ({"levels": [7, 8]}, r"model.levels \[7, 8\]: give consecutive"),
        ({"levels": []}, r"model.levels \[\]: give consecutive"),
        ({"anchors": [[10, 13], [30, 61]]}, "model.anchors: give one row of positive pixels .* for each of the 3 levels"),
        ({"anchors": [[10, 13], [30, 61], [1, 2, 3, 4]]}, "model.anchors: give one row"),
        ({"anchors": [[10, 13, 5], [30, 61, 5], [1, 2, 3]]}, "model.anchors: give one row"),
        ({"anchors": [[10, 13], [30, 61], [0, 2]]}, "model.anchors: give one row of positive"),
        ({"anchors": [[10, 13], [30, 61], [math.nan, 2]]}, "model.anchors: give one row of positive"),
        ({"anchors": [[], [], []]}, "model.anchors: give one row"),
        ({"anchors": []}, "model.anchors: give one row"),
        ({"activation": "silly"}, r"model.activation 'silly' is not known; did you mean 'silu'\?"),
        ({"activation": "leaky"}, r"model.activation 'leaky' is not known; did you mean 'leaky_relu'\?"),
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


# ---- assignment


def slow_assignment(targets: Tensor, anchors: Tensor, shape: tuple[int, int], anchor_t: float) -> Counter[tuple]:
    """Specification 2.2 for one level, pair by pair, in the float32 arithmetic that decides at the edges."""
    rows: Counter[tuple] = Counter()
    ny, nx = (np.float32(s) for s in shape)
    half, one = np.float32(0.5), np.float32(1)
    for image, cls, *fractions in targets.numpy():
        x, y, w, h = (f * n for f, n in zip(fractions, (nx, ny, nx, ny), strict=True))
        for a, (aw, ah) in enumerate(anchors.numpy()):
            if not max(w / aw, aw / w, h / ah, ah / h) < anchor_t:
                continue
            places = [(x, y)]  # its own cell
            if x % one < half and x > one:
                places.append((x - half, y))
            if y % one < half and y > one:
                places.append((x, y - half))
            if (nx - x) % one < half and nx - x > one:
                places.append((x + half, y))
            if (ny - y) % one < half and ny - y > one:
                places.append((x, y + half))
            for px, py in places:
                column, row = min(max(int(px), 0), shape[1] - 1), min(max(int(py), 0), shape[0] - 1)
                box = tuple(float(v) for v in (x - column, y - row, w, h))
                rows[int(image), a, row, column, *box, float(aw), float(ah), int(cls)] += 1
    return rows


def random_targets(rng: torch.Generator, n: int, images: int = 3, classes: int = 4, lattice: int = 0) -> Tensor:
    """(n, 6); `lattice`: centres on multiples of 1/lattice, borders included."""
    targets = torch.rand(n, 6, generator=rng)
    targets[:, 0] = (targets[:, 0] * images).floor()
    targets[:, 1] = (targets[:, 1] * classes).floor()
    if lattice:
        targets[:, 2:4] = (targets[:, 2:4] * lattice).round() / lattice
    targets[:, 4:] = targets[:, 4:] ** 2 + 0.01
    return targets


@pytest.mark.parametrize("lattice", [0, 16, 32, 48])
@pytest.mark.parametrize("anchor_t", [1.5, 4.0])
def test_assignment_is_the_specified_loop(lattice: int, anchor_t: float) -> None:
    rng = torch.Generator().manual_seed(lattice)
    shapes = [(8, 16), (4, 8), (2, 4)]
    anchors = torch.tensor([[[1.0, 2.0], [3.0, 1.5]], [[2.0, 1.0], [1.0, 1.0]], [[0.5, 0.5], [1.0, 0.25]]])  # (3, 2, 2)
    targets = random_targets(rng, 400, lattice=lattice)
    for level, rows in enumerate(rows.only_valid() for rows in assign_targets(targets, anchors, shapes, anchor_t)):
        numbers = [rows.image, rows.anchor, rows.row, rows.column, *rows.box.T, *anchors[level][rows.anchor].T, rows.cls]
        ours = Counter(zip(*(v.tolist() for v in numbers), strict=True))
        wanted = slow_assignment(targets, anchors[level], shapes[level], anchor_t)
        assert ours == wanted
        assert len(wanted) > 20, "a test that says something"


def test_assignment_by_hand() -> None:
    """One object in an 8 x 8 map, centre (2.25, 5.75): its own cell (2, 5), left (1, 5), lower (2, 6), nothing else."""
    target = torch.tensor([[1, 3, 2.25 / 8, 5.75 / 8, 2 / 8, 2 / 8]])
    anchors = torch.tensor([[[1.0, 1.0], [2.0, 8.0], [2.0, 7.9]]])  # factors 2, 4 (not below 4), 3.95
    rows = assign_targets(target, anchors, [(8, 8)], 4.0)[0].only_valid()
    assert torch.stack((rows.image, rows.anchor, rows.column, rows.row, rows.cls), 1).tolist() == [
        [1, 0, 2, 5, 3],
        [1, 2, 2, 5, 3],
        [1, 0, 1, 5, 3],
        [1, 2, 1, 5, 3],
        [1, 0, 2, 6, 3],
        [1, 2, 2, 6, 3],
    ]
    assert rows.box[0::2].tolist() == [[0.25, 0.75, 2, 2], [1.25, 0.75, 2, 2], [0.25, -0.25, 2, 2]]


# ---- loss


def raw_maps(rng: torch.Generator, images: int = 3, classes: int = 4, levels: int = 3) -> list[Tensor]:
    shapes = [(8, 16), (4, 8), (2, 4), (1, 2)][:levels]
    return [torch.randn(images, 3, h, w, 5 + classes, generator=rng) for h, w in shapes]


def the_anchors() -> Tensor:
    return YOLOv5(1, width_multiple=0.01).anchors


def test_no_targets_leave_objectness_alone() -> None:
    """Every cell should say no: softplus of the logit, mean over the map, weighted 4, 1, 0.4, times images."""
    raw = [r.requires_grad_() for r in raw_maps(torch.Generator().manual_seed(0))]
    total, parts = losses(DetectionLoss(4, STRIDES, obj=0.7), raw, torch.zeros(0, 6), the_anchors())
    total.backward()
    wanted = sum(w * np.log1p(np.exp(r.detach()[..., 4].double())).mean() for w, r in zip((4, 1, 0.4), raw, strict=True))
    assert parts[0] == parts[2] == 0
    assert parts[1].item() == pytest.approx(0.7 * wanted.item(), rel=1e-6)
    assert total.item() == pytest.approx(3 * 0.7 * wanted.item(), rel=1e-6)
    for r in raw:
        assert r.grad[..., 4].min() > 0
        assert r.grad.isfinite().all()
        assert not r.grad[..., :4].any()
        assert not r.grad[..., 5:].any()


def test_loss_is_the_definition_in_a_loop() -> None:
    """Specification 2.3 and 2.4 row by row, in float64, with every weight away from its default."""
    rng = torch.Generator().manual_seed(1)
    raw, targets, anchors = raw_maps(rng), random_targets(rng, 30), the_anchors()
    options = {"cls_pw": 1.3, "obj_pw": 0.8, "label_smoothing": 0.1, "iou_ratio": 0.9}
    _, parts = losses(DetectionLoss(4, STRIDES, box=0.3, obj=0.5, cls=0.7, **options), raw, targets, anchors)

    def entropy(logit: float, wanted: float, positive: float) -> float:
        p = 1 / (1 + math.exp(-logit))
        return -(positive * wanted * math.log(p) + (1 - wanted) * math.log(1 - p))

    box = obj = cls = 0.0
    assigned = [rows.only_valid() for rows in assign_targets(targets, anchors, [(8, 16), (4, 8), (2, 4)], 4.0)]
    for maps, level_anchors, rows, balance in zip(raw, anchors, assigned, (4, 1, 0.4), strict=True):
        wanted_map: dict[tuple, float] = {}
        distances, entropies = [], []
        sides = level_anchors[rows.anchor].tolist()
        for *cell, true, c, (aw, ah) in zip(*(v.tolist() for v in rows[:6]), sides, strict=True):
            logits = maps[tuple(cell)].tolist()
            y = [1 / (1 + math.exp(-v)) for v in logits[:4]]
            pred = (2 * y[0] - 0.5, 2 * y[1] - 0.5, (2 * y[2]) ** 2 * aw, (2 * y[3]) ** 2 * ah)
            similarity = slow_ciou(pred, true)
            distances.append(1 - similarity)
            wanted_map[tuple(cell)] = max(wanted_map.get(tuple(cell), 0.0), 0.1 + 0.9 * max(similarity, 0.0))
            entropies += [entropy(v, 0.95 if k == c else 0.05, 1.3) for k, v in enumerate(logits[5:])]
        assert len(wanted_map) < len(distances), "some objects share a cell and anchor"
        box += sum(distances) / len(distances)
        cls += sum(entropies) / len(entropies)
        cells = [entropy(maps[i][4].item(), wanted_map.get(i, 0.0), 0.8) for i in np.ndindex(*maps.shape[:4])]
        obj += balance * sum(cells) / len(cells)
    assert parts.tolist() == pytest.approx([0.3 * box, 0.5 * obj, 0.7 * cls], rel=1e-5)


def slow_ciou(a: Any, b: Any) -> float:
    (ax, ay, aw, ah), (bx, by, bw, bh) = a, b
    left, right = [ax - aw / 2, bx - bw / 2], [ax + aw / 2, bx + bw / 2]
    top, bottom = [ay - ah / 2, by - bh / 2], [ay + ah / 2, by + bh / 2]
    shared = max(min(right) - max(left), 0) * max(min(bottom) - max(top), 0)
    iou = shared / (aw * ah + bw * bh - shared)
    diagonal = (max(right) - min(left)) ** 2 + (max(bottom) - min(top)) ** 2
    v = 4 / math.pi**2 * (math.atan(bw / bh) - math.atan(aw / ah)) ** 2
    return iou - ((ax - bx) ** 2 + (ay - by) ** 2) / diagonal - v * v / (v - iou + 1)


def test_order_of_targets_does_not_matter() -> None:
    rng = torch.Generator().manual_seed(2)
    raw, targets, anchors = raw_maps(rng), random_targets(rng, 60), the_anchors()
    best, last = DetectionLoss(4, STRIDES), DetectionLoss(4, STRIDES, shared_cell="last")
    (total, parts), (_, parts_last) = losses(best, raw, targets, anchors), losses(last, raw, targets, anchors)
    moved = set()
    for _ in range(5):
        shuffled = targets[torch.randperm(len(targets), generator=rng)]
        total_shuffled, parts_shuffled = losses(best, raw, shuffled, anchors)
        assert parts_shuffled[1] == parts[1], "the objectness target is the same to the last bit"
        torch.testing.assert_close(parts_shuffled, parts, rtol=1e-6, atol=0)
        torch.testing.assert_close(total_shuffled, total, rtol=1e-6, atol=0)
        moved.add(losses(last, raw, shuffled, anchors)[1][1].item())
    assert len({*moved, parts_last[1].item()}) > 1, "with `last` it does matter: there are shared cells here"


def test_shared_cell_takes_the_best_overlap() -> None:
    """Two like objects on one cell, the first fits the prediction: with `best` cell and anchor want 1, with `last` less."""
    raw = [torch.zeros(1, 1, 4, 4, 6)]
    anchors = torch.tensor([[[2.0, 2.0]]])
    targets = torch.tensor([[0, 0, 0.375, 0.375, 0.5, 0.5], [0, 0, 0.375, 0.375, 0.25, 0.5]])  # centre 1.5: no neighbours
    raw[0][0, 0, 1, 1, 4] = -10  # the loss is then all but linear in the target: 10 * target / 16 cells

    def lost(targets: Tensor, shared_cell: Any) -> float:
        loss = DetectionLoss(1, [8], box=0, shared_cell=shared_cell)
        none = losses(loss, raw, targets[:0], anchors)[1][1]
        return ((losses(loss, raw, targets, anchors)[1][1] - none) * 16 / 10 / loss.balance[0]).item()

    assert lost(targets, "best") == pytest.approx(1, abs=1e-5)
    assert lost(targets.flip(0), "best") == pytest.approx(1, abs=1e-5)
    assert lost(targets.flip(0), "last") == pytest.approx(1, abs=1e-5)
    assert lost(targets, "last") < 0.6  # overlap 1/2, less the penalty for the shape


def test_total_is_a_sum_over_images() -> None:
    """Twice the same batch is twice the loss: all parts are means over rows and cells, the total is multiplied by images."""
    rng = torch.Generator().manual_seed(3)
    raw, targets, anchors = raw_maps(rng), random_targets(rng, 20), the_anchors()
    second = targets + torch.tensor([3.0, 0, 0, 0, 0, 0])
    loss = DetectionLoss(4, STRIDES, fl_gamma=1.5)
    once, parts = losses(loss, raw, targets, anchors)
    twice, parts_twice = losses(loss, [torch.cat((r, r)) for r in raw], torch.cat((targets, second)), anchors)
    torch.testing.assert_close(twice, 2 * once, rtol=1e-6, atol=0)
    torch.testing.assert_close(parts_twice, parts, rtol=1e-6, atol=0)


def test_one_class_has_no_class_loss() -> None:
    rng = torch.Generator().manual_seed(4)
    raw = [r.requires_grad_() for r in raw_maps(rng, classes=1)]
    total, parts = losses(DetectionLoss(1, STRIDES), raw, random_targets(rng, 20, classes=1), the_anchors())
    total.backward()
    assert parts[2] == 0
    assert all(not r.grad[..., 5:].any() for r in raw)
    assert all(r.grad[..., :5].any() for r in raw)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_loss_is_computed_in_float32(dtype: torch.dtype) -> None:
    """Also under autocast, and also with logits whose exponential a float16 does not hold."""
    rng = torch.Generator().manual_seed(5)
    raw = [(r * 6).to(dtype).requires_grad_() for r in raw_maps(rng)]
    targets, anchors, loss = random_targets(rng, 20), the_anchors(), DetectionLoss(4, STRIDES, fl_gamma=1.5)
    with torch.autocast("cpu", dtype=dtype):
        total, parts = losses(loss, raw, targets, anchors)
    assert (total.dtype, parts.dtype) == (torch.float32, torch.float32)
    wanted, wanted_parts = losses(loss, [r.detach().float() for r in raw], targets, anchors)
    assert total.item() == wanted.item()
    assert torch.equal(parts, wanted_parts)
    total.backward()
    assert all(r.grad.dtype == dtype and r.grad.isfinite().all() for r in raw)


@pytest.mark.parametrize(("strides", "reference"), [([8, 16, 32], 1), ([4, 8, 16, 32], 2), ([8, 16, 32, 64], 1), ([16, 32], 0)])
def test_autobalance(strides: list[int], reference: int) -> None:
    rng = torch.Generator().manual_seed(6)
    raw, targets = raw_maps(rng, levels=len(strides)), random_targets(rng, 20)
    anchors = torch.rand(len(strides), 3, 2, generator=rng) * 3 + 0.5
    loss = DetectionLoss(4, strides, autobalance=True)
    start = loss.balance.clone()
    losses(loss.eval(), raw, targets, anchors)
    assert torch.equal(loss.balance, start), "evaluation does not move it"
    _, fixed = losses(DetectionLoss(4, strides), raw, targets, anchors)
    _, first = losses(loss.train(), raw, targets, anchors)
    assert torch.equal(first, fixed), "the loss of this call uses the weights before the update"
    before = loss.balance.clone()
    assert not torch.equal(before, start)
    for _ in range(20):
        losses(loss, raw, targets, anchors)
        assert loss.balance[reference] == 1
    assert not torch.equal(loss.balance, before)
    assert torch.equal(DetectionLoss(4, strides).train().balance, start), "without it nothing moves"
    assert "balance" in loss.state_dict()


def test_autobalance_by_hand() -> None:
    """Logits of 0 and no targets: every level loses ln 2."""
    loss = DetectionLoss(1, STRIDES, autobalance=True)
    maps = [torch.zeros_like(r) for r in raw_maps(torch.Generator(), classes=1)]
    losses(loss, maps, torch.zeros(0, 6), the_anchors())
    rise = 0.0001 / math.log(2)
    wanted = [(b * 0.9999 + rise) / (0.9999 + rise) for b in (4, 1, 0.4)]
    assert loss.balance.tolist() == pytest.approx(wanted, rel=1e-6)


def test_scaled_gains() -> None:
    assert scaled_gains(0.05, 1.0, 0.5, 3, 80, 640) == pytest.approx((0.05, 1.0, 0.5))
    assert scaled_gains(0.05, 1.0, 0.5, 4, 20, 1280) == pytest.approx((0.0375, 3.0, 0.09375))  # 3/4; 4 * 3/4; 1/4 * 3/4


def test_the_last_object_of_a_cell_is_the_last_with_several_threads() -> None:
    """torch's indexed assignment leaves that open there."""
    rng, count = torch.Generator().manual_seed(0), 3000
    raw, anchors = [torch.randn(2, 3, 8, 16, 9, generator=rng)], the_anchors()[:1]
    targets = random_targets(rng, count, images=2)
    loss = DetectionLoss(4, STRIDES[:1], shared_cell="last")
    (rows,) = (r.only_valid() for r in assign_targets(targets, anchors, [(8, 16)], 4.0))
    overlap, wanted = torch.rand(len(rows.cls), generator=rng), torch.zeros(2, 3, 8, 16)
    cell = (rows.image, rows.anchor, rows.row, rows.column)
    for *place, value in zip(*(v.tolist() for v in cell), overlap, strict=True):
        wanted[tuple(place)] = value
    threads = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        found = [loss._overlap_map(raw[0], cell, overlap, torch.ones_like(rows.cls).bool()) for _ in range(5)]
    finally:
        torch.set_num_threads(threads)
    assert len(rows.cls) > 10 * wanted.count_nonzero(), "most rows share their cell"
    assert all(torch.equal(f, wanted) for f in found)
