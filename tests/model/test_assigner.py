"""YOLOv5's assigner against a slow loop over pairs, and by hand."""

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
                rows[int(image), a, row, column, *box, float(aw), float(ah), int(cls)] += 1
    return rows


@pytest.mark.parametrize("lattice", [0, 16, 32, 48])
@pytest.mark.parametrize("anchor_t", [1.5, 4.0])
def test_assignment_is_the_specified_loop(lattice: int, anchor_t: float) -> None:
    rng = torch.Generator().manual_seed(lattice)
    shapes = [(8, 16), (4, 8), (2, 4)]
    # (3, 2, 2)
    anchors = torch.tensor(
        [[[1.0, 2.0], [3.0, 1.5]], [[2.0, 1.0], [1.0, 1.0]], [[0.5, 0.5], [1.0, 0.25]]]
    )
    targets = random_targets(rng, 400, lattice=lattice)
    for level, rows in enumerate(
        only_valid(rows) for rows in assign_targets(targets, anchors, shapes, anchor_t)
    ):
        numbers = [
            rows.image,
            rows.anchor,
            rows.row,
            rows.column,
            *rows.box.T,
            *anchors[level][rows.anchor].T,
            rows.cls,
        ]
        ours = Counter(zip(*(v.tolist() for v in numbers), strict=True))
        wanted = slow_assignment(targets, anchors[level], shapes[level], anchor_t)
        assert ours == wanted
        assert len(wanted) > 20, "a test that says something"


def test_assignment_by_hand() -> None:
    """One object in an 8 x 8 map, centre (2.25, 5.75): its own cell (2, 5), left (1, 5), lower (2,
    6), nothing else."""
    target = torch.tensor([[1, 3, 2.25 / 8, 5.75 / 8, 2 / 8, 2 / 8]])
    # factors 2, 4 (not below 4), 3.95
    anchors = torch.tensor([[[1.0, 1.0], [2.0, 8.0], [2.0, 7.9]]])
    rows = only_valid(assign_targets(target, anchors, [(8, 8)], 4.0)[0])
    assert torch.stack((rows.image, rows.anchor, rows.column, rows.row, rows.cls), 1).tolist() == [
        [1, 0, 2, 5, 3],
        [1, 2, 2, 5, 3],
        [1, 0, 1, 5, 3],
        [1, 2, 1, 5, 3],
        [1, 0, 2, 6, 3],
        [1, 2, 2, 6, 3],
    ]
    assert rows.box[0::2].tolist() == [[0.25, 0.75, 2, 2], [1.25, 0.75, 2, 2], [0.25, -0.25, 2, 2]]
