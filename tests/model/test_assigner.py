"""YOLOv5's assigner against a slow loop over pairs."""

from collections import Counter

import numpy as np
import pytest
import torch
from made_heads import assign_targets, only_valid
from made_maps import random_targets
from torch import Tensor


def slow_assignment(
    targets: Tensor, anchors: Tensor, shape: tuple[int, int], anchor_t: float
) -> Counter[tuple]:
    """Specification 2.2 for one level, pair by pair, in the float32 arithmetic that decides at the
    edges."""
    rows: Counter[tuple] = Counter()
    ny, nx = (np.float32(s) for s in shape)
    half = np.float32(0.5)
    one = np.float32(1)
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
                column = min(max(int(px), 0), shape[1] - 1)
                row = min(max(int(py), 0), shape[0] - 1)
                box = tuple(float(v) for v in (x - column, y - row, w, h))
                rows[int(image), a, row, column, *box, int(cls)] += 1
    return rows


@pytest.mark.parametrize(("lattice", "anchor_t"), [(0, 4.0), (16, 1.5), (32, 4.0)])
def test_assignment_is_the_specified_loop(lattice: int, anchor_t: float) -> None:
    rng = torch.Generator().manual_seed(lattice)
    shapes = [(8, 16), (4, 8)]
    anchors = torch.tensor([[[1.0, 2.0], [3.0, 1.5]], [[2.0, 1.0], [0.5, 0.5]]])  # (2, 2, 2)
    targets = random_targets(rng, 300, lattice=lattice)
    for level, assigned in enumerate(assign_targets(targets, anchors, shapes, anchor_t)):
        rows = only_valid(assigned)
        numbers = [rows.image, rows.anchor, rows.row, rows.column, *rows.box.T, rows.cls]
        ours = Counter(zip(*(v.tolist() for v in numbers), strict=True))
        expected = slow_assignment(targets, anchors[level], shapes[level], anchor_t)
        assert ours == expected
        assert len(expected) > 20, "a test that says something"
