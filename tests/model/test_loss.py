"""YOLOv5's loss against its definition in a loop; shared cells, precision, the sums over batches."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from made_heads import assign_targets, losses, only_valid
from made_maps import STRIDES, random_targets, raw_maps, the_anchors

from boltbox.detector.model.loss import DetectionLoss, add_losses, mean_losses
from boltbox.detector.system.errors import InputError


def test_loss_is_the_definition_in_a_loop() -> None:
    """Specification 2.3 and 2.4 row by row, in float64, with every weight away from its default."""
    rng = torch.Generator().manual_seed(1)
    raw = raw_maps(rng)
    targets = random_targets(rng, 30)
    anchors = the_anchors()
    options = {"cls_pw": 1.3, "obj_pw": 0.8, "label_smoothing": 0.1}
    total, parts = losses(
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
    expected = [0.3 * box, 0.5 * obj, 0.7 * cls]
    assert parts.tolist() == pytest.approx(expected, rel=1e-5)
    assert total.item() == pytest.approx(3 * sum(expected), rel=1e-5), "of three images"


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


@pytest.mark.parametrize("classes", [1, 4])
@pytest.mark.parametrize("objects", [0, 20])
def test_gradients_are_where_something_is_to_learn(classes: int, objects: int) -> None:
    """Also under autocast, in the precision of the maps; with logits whose exponential a float16
    does not hold the loss is computed in float32."""
    rng = torch.Generator().manual_seed(5)
    raw = [(r * 6).half().requires_grad_() for r in raw_maps(rng, classes=classes)]
    targets = random_targets(rng, objects, classes=classes)
    loss = DetectionLoss(classes, STRIDES, fl_gamma=1.5)
    with torch.autocast("cpu", dtype=torch.float16):
        total, parts = losses(loss, raw, targets, the_anchors())
    total.backward()
    single, expected = losses(loss, [r.detach().float() for r in raw], targets, the_anchors())
    assert total.item() == single.item()
    assert torch.equal(parts, expected)
    for r in raw:
        assert r.grad is not None
        assert r.grad.isfinite().all()
        assert r.grad[..., 4].any()
        assert bool(r.grad[..., :4].any()) == (objects > 0)
        assert bool(r.grad[..., 5:].any()) == (objects > 0 and classes > 1)


def test_scaled_gains() -> None:
    usual = DetectionLoss(80, STRIDES)
    other = DetectionLoss(20, [8, 16, 32, 64])
    usual.set_image_size(640)
    other.set_image_size(1280)
    assert usual.gains == pytest.approx((0.05, 1.0, 0.5))
    assert other.gains == pytest.approx((0.0375, 3.0, 0.09375))  # 3/4; 4 * 3/4; 1/4 * 3/4


def test_the_last_object_of_a_cell_is_the_last() -> None:
    rng = torch.Generator().manual_seed(0)
    index = tuple(torch.randint(0, n, (500,), generator=rng) for n in (2, 3, 2, 3))
    overlap = torch.rand(500, generator=rng)
    valid = torch.rand(500, generator=rng) > 0.2
    expected = torch.zeros(2, 3, 2, 3)
    for *place, value, counts in zip(*(v.tolist() for v in index), overlap, valid, strict=True):
        if counts:
            expected[tuple(place)] = value
    loss = DetectionLoss(4, STRIDES[:1], shared_cell="last")
    assert torch.equal(
        loss._overlap_map(torch.zeros(2, 3, 2, 3, 9), index, overlap, valid), expected
    )


def test_means_over_batches() -> None:
    sums = add_losses({}, {"box_loss": torch.tensor(1.0)})
    sums = add_losses(sums, {"box_loss": torch.tensor(4.0)})
    assert mean_losses(sums) == {"box_loss": torch.tensor(2.5)}
    for terms in (
        {},
        {"a b": torch.ones(())},
        {"batches": torch.ones(())},
        {"other": torch.ones(())},
    ):
        with pytest.raises(InputError, match="the loss has the terms"):
            add_losses(sums, terms)
