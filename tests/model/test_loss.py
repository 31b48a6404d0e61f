"""YOLOv5's loss against its definition in a loop; shared cells, balance, number types, the order of
targets."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from made_heads import assign_targets, losses, only_valid
from made_maps import STRIDES, random_targets, raw_maps, the_anchors
from torch import Tensor

from boltbox.detector.model.loss import DetectionLoss


def test_no_targets_leave_objectness_alone() -> None:
    """Every cell should say no: softplus of the logit, mean over the map, weighted 4, 1, 0.4, times
    images."""
    raw = [r.requires_grad_() for r in raw_maps(torch.Generator().manual_seed(0))]
    total, parts = losses(DetectionLoss(4, STRIDES, obj=0.7), raw, torch.zeros(0, 6), the_anchors())
    total.backward()
    wanted = sum(
        w * np.log1p(np.exp(r.detach()[..., 4].double())).mean()
        for w, r in zip((4, 1, 0.4), raw, strict=True)
    )
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
    raw = raw_maps(rng)
    targets = random_targets(rng, 30)
    anchors = the_anchors()
    options = {"cls_pw": 1.3, "obj_pw": 0.8, "label_smoothing": 0.1}
    _, parts = losses(
        DetectionLoss(4, STRIDES, box=0.3, obj=0.5, cls=0.7, **options), raw, targets, anchors
    )

    def entropy(logit: float, wanted: float, positive: float) -> float:
        p = 1 / (1 + math.exp(-logit))
        return -(positive * wanted * math.log(p) + (1 - wanted) * math.log(1 - p))

    box = obj = cls = 0.0
    assigned = [
        only_valid(rows)
        for rows in assign_targets(targets, anchors, [(8, 16), (4, 8), (2, 4)], 4.0)
    ]
    for maps, level_anchors, rows, balance in zip(raw, anchors, assigned, (4, 1, 0.4), strict=True):
        wanted_map: dict[tuple, float] = {}
        distances = []
        entropies = []
        sides = level_anchors[rows.anchor].tolist()
        for *cell, true, c, (aw, ah) in zip(*(v.tolist() for v in rows[:6]), sides, strict=True):
            logits = maps[tuple(cell)].tolist()
            y = [1 / (1 + math.exp(-v)) for v in logits[:4]]
            pred = (2 * y[0] - 0.5, 2 * y[1] - 0.5, (2 * y[2]) ** 2 * aw, (2 * y[3]) ** 2 * ah)
            similarity = slow_ciou(pred, true)
            distances.append(1 - similarity)
            wanted_map[tuple(cell)] = max(wanted_map.get(tuple(cell), 0.0), max(similarity, 0.0))
            entropies += [
                entropy(v, 0.95 if k == c else 0.05, 1.3) for k, v in enumerate(logits[5:])
            ]
        assert len(wanted_map) < len(distances), "some objects share a cell and anchor"
        box += sum(distances) / len(distances)
        cls += sum(entropies) / len(entropies)
        cells = [
            entropy(maps[i][4].item(), wanted_map.get(i, 0.0), 0.8)
            for i in np.ndindex(*maps.shape[:4])
        ]
        obj += balance * sum(cells) / len(cells)
    assert parts.tolist() == pytest.approx([0.3 * box, 0.5 * obj, 0.7 * cls], rel=1e-5)


def slow_ciou(a: Any, b: Any) -> float:
    (ax, ay, aw, ah), (bx, by, bw, bh) = a, b
    left = [ax - aw / 2, bx - bw / 2]
    right = [ax + aw / 2, bx + bw / 2]
    top = [ay - ah / 2, by - bh / 2]
    bottom = [ay + ah / 2, by + bh / 2]
    shared = max(min(right) - max(left), 0) * max(min(bottom) - max(top), 0)
    iou = shared / (aw * ah + bw * bh - shared)
    diagonal = (max(right) - min(left)) ** 2 + (max(bottom) - min(top)) ** 2
    v = 4 / math.pi**2 * (math.atan(bw / bh) - math.atan(aw / ah)) ** 2
    return iou - ((ax - bx) ** 2 + (ay - by) ** 2) / diagonal - v * v / (v - iou + 1)


def test_order_of_targets_does_not_matter() -> None:
    rng = torch.Generator().manual_seed(2)
    raw = raw_maps(rng)
    targets = random_targets(rng, 60)
    anchors = the_anchors()
    best = DetectionLoss(4, STRIDES)
    last = DetectionLoss(4, STRIDES, shared_cell="last")
    (total, parts), (_, parts_last) = (
        losses(best, raw, targets, anchors),
        losses(last, raw, targets, anchors),
    )
    moved = set()
    for _ in range(5):
        shuffled = targets[torch.randperm(len(targets), generator=rng)]
        total_shuffled, parts_shuffled = losses(best, raw, shuffled, anchors)
        assert parts_shuffled[1] == parts[1], "the objectness target is the same to the last bit"
        torch.testing.assert_close(parts_shuffled, parts, rtol=1e-6, atol=0)
        torch.testing.assert_close(total_shuffled, total, rtol=1e-6, atol=0)
        moved.add(losses(last, raw, shuffled, anchors)[1][1].item())
    assert len({*moved, parts_last[1].item()}) > 1, (
        "with `last` it does matter: there are shared cells here"
    )


def test_shared_cell_takes_the_best_overlap() -> None:
    """Two like objects on one cell, the first fits the prediction: with `best` cell and anchor want
    1, with `last` less."""
    raw = [torch.zeros(1, 1, 4, 4, 6)]
    anchors = torch.tensor([[[2.0, 2.0]]])
    # centre 1.5: no neighbours
    targets = torch.tensor([[0, 0, 0.375, 0.375, 0.5, 0.5], [0, 0, 0.375, 0.375, 0.25, 0.5]])
    # the loss is then all but linear in the target: 10 * target / 16 cells
    raw[0][0, 0, 1, 1, 4] = -10

    def lost(targets: Tensor, shared_cell: Any) -> float:
        loss = DetectionLoss(1, [8], box=0, shared_cell=shared_cell)
        none = losses(loss, raw, targets[:0], anchors)[1][1]
        return (
            (losses(loss, raw, targets, anchors)[1][1] - none) * 16 / 10 / loss.balance[0]
        ).item()

    assert lost(targets, "best") == pytest.approx(1, abs=1e-5)
    assert lost(targets.flip(0), "best") == pytest.approx(1, abs=1e-5)
    assert lost(targets.flip(0), "last") == pytest.approx(1, abs=1e-5)
    assert lost(targets, "last") < 0.6  # overlap 1/2, less the penalty for the shape


def test_total_is_a_sum_over_images() -> None:
    """Twice the same batch is twice the loss: all parts are means over rows and cells, the total is
    multiplied by images."""
    rng = torch.Generator().manual_seed(3)
    raw = raw_maps(rng)
    targets = random_targets(rng, 20)
    anchors = the_anchors()
    second = targets + torch.tensor([3.0, 0, 0, 0, 0, 0])
    loss = DetectionLoss(4, STRIDES, fl_gamma=1.5)
    once, parts = losses(loss, raw, targets, anchors)
    twice, parts_twice = losses(
        loss, [torch.cat((r, r)) for r in raw], torch.cat((targets, second)), anchors
    )
    torch.testing.assert_close(twice, 2 * once, rtol=1e-6, atol=0)
    torch.testing.assert_close(parts_twice, parts, rtol=1e-6, atol=0)


def test_one_class_has_no_class_loss() -> None:
    rng = torch.Generator().manual_seed(4)
    raw = [r.requires_grad_() for r in raw_maps(rng, classes=1)]
    total, parts = losses(
        DetectionLoss(1, STRIDES), raw, random_targets(rng, 20, classes=1), the_anchors()
    )
    total.backward()
    assert parts[2] == 0
    assert all(not r.grad[..., 5:].any() for r in raw)
    assert all(r.grad[..., :5].any() for r in raw)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_loss_is_computed_in_float32(dtype: torch.dtype) -> None:
    """Also under autocast, and also with logits whose exponential a float16 does not hold."""
    rng = torch.Generator().manual_seed(5)
    raw = [(r * 6).to(dtype).requires_grad_() for r in raw_maps(rng)]
    targets = random_targets(rng, 20)
    anchors = the_anchors()
    loss = DetectionLoss(4, STRIDES, fl_gamma=1.5)
    with torch.autocast("cpu", dtype=dtype):
        total, parts = losses(loss, raw, targets, anchors)
    assert (total.dtype, parts.dtype) == (torch.float32, torch.float32)
    wanted, wanted_parts = losses(loss, [r.detach().float() for r in raw], targets, anchors)
    assert total.item() == wanted.item()
    assert torch.equal(parts, wanted_parts)
    total.backward()
    assert all(r.grad.dtype == dtype and r.grad.isfinite().all() for r in raw)


def test_scaled_gains() -> None:
    usual = DetectionLoss(80, STRIDES)
    other = DetectionLoss(20, [8, 16, 32, 64])
    usual.set_image_size(640)
    other.set_image_size(1280)
    assert usual.gains == pytest.approx((0.05, 1.0, 0.5))
    assert other.gains == pytest.approx((0.0375, 3.0, 0.09375))  # 3/4; 4 * 3/4; 1/4 * 3/4


def test_the_last_object_of_a_cell_is_the_last_with_several_threads() -> None:
    """torch's indexed assignment leaves that open there."""
    rng = torch.Generator().manual_seed(0)
    count = 3000
    raw = [torch.randn(2, 3, 8, 16, 9, generator=rng)]
    anchors = the_anchors()[:1]
    targets = random_targets(rng, count, images=2)
    loss = DetectionLoss(4, STRIDES[:1], shared_cell="last")
    (rows,) = (only_valid(r) for r in assign_targets(targets, anchors, [(8, 16)], 4.0))
    overlap = torch.rand(len(rows.cls), generator=rng)
    wanted = torch.zeros(2, 3, 8, 16)
    cell = (rows.image, rows.anchor, rows.row, rows.column)
    for *place, value in zip(*(v.tolist() for v in cell), overlap, strict=True):
        wanted[tuple(place)] = value
    threads = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        found = [
            loss._overlap_map(raw[0], cell, overlap, torch.ones_like(rows.cls).bool())
            for _ in range(5)
        ]
    finally:
        torch.set_num_threads(threads)
    assert len(rows.cls) > 10 * wanted.count_nonzero(), "most rows share their cell"
    assert all(torch.equal(f, wanted) for f in found)
