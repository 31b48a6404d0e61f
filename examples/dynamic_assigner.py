"""An assigner that matches objects with the best predictions among candidate cells and anchors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from boltbox.detector.model.assigner import Assigner, Assignment
from boltbox.detector.model.boxes import iou_cxcywh
from boltbox.detector.model.head import Head

TOP = 13  # the sum of an object's largest overlaps is its number of predictions
ROUNDS = 3  # of assigning free predictions to objects without any
# the cell of the centre and its neighbours: columns, rows
NEAR = ((0, 0), (-1, 0), (0, -1), (1, 0), (0, 1))
AROUND = (*NEAR, (-1, -1), (1, -1), (-1, 1), (1, 1))


class DynamicAssigner(Assigner):
    """SimOTA (Ge et al. 2021, arXiv 2107.08430) with the cost of RTMDet (Lyu et al. 2022, arXiv
    2212.07784), on anchors or cells.

    With anchors, the candidates of an object are the anchors of similar shape, in the cell of its
    centre and the four neighbours, on all levels; without any, the anchor of the most similar shape
    in its cell. In an anchor-free head, they are its cell and the eight around it, on all levels.
    An object gets its k cheapest candidates, where k is the sum of its best overlaps, at least 1.
    If several objects choose one prediction, the object with the lowest cost gets it.

    Args:
        anchor_t: An anchor is a candidate if both sides differ by less than this factor.
    """

    def __init__(self, anchor_t: float = 4.0) -> None:
        self.anchor_t = anchor_t

    @torch.no_grad()
    def assign(self, raw: Sequence[Tensor], targets: Tensor, head: Head) -> list[Assignment]:
        """See Assigner. Rows of a level are ordered by object, anchor, cell; their number depends
        on the number of objects only."""
        shapes = [maps.shape[2:4] for maps in raw]
        steps = AROUND if head.anchors is None else NEAR
        levels = _candidates(targets, head.anchors, shapes, steps, self.anchor_t)
        n = len(targets)
        start = 0
        parts = []
        for level, (maps, rows) in enumerate(zip(raw, levels, strict=True)):
            anchors = None if head.anchors is None else head.anchors[level][rows.anchor]
            assert rows.valid is not None
            cell = (rows.image, rows.anchor, rows.row, rows.column)
            predicted = maps[cell]  # (n 5 A, 5 + C)
            overlap = iou_cxcywh(head.box_coder.decode(predicted[:, :4], anchors), rows.box, "iou")
            # from the centre of the cell to that of the object, in strides
            distance = (rows.box[:, :2] - 0.5).norm(dim=1)
            cost = _cost(_scores(predicted), rows.cls, overlap, distance).masked_fill(
                ~rows.valid, torch.inf
            )
            _, a, h, w = maps.shape[:4]
            place = start + ((rows.image * a + rows.anchor) * h + rows.row) * w + rows.column
            start += maps.shape[:4].numel()
            overlap = overlap.masked_fill(~rows.valid, 0)
            parts.append([part.view(n, a * len(steps)) for part in (cost, overlap, place)])
        cost, overlap, place = (torch.cat(part, 1) for part in zip(*parts, strict=True))
        chosen = choose(cost, overlap, place, start)
        widths = [part[0].shape[1] for part in parts]
        return [
            rows._replace(valid=own.flatten())
            for rows, own in zip(levels, chosen.split(widths, 1), strict=True)
        ]


def _candidates(
    targets: Tensor,
    anchors: Tensor | None,
    shapes: Sequence[torch.Size],
    steps: Sequence[tuple[int, int]],
    anchor_t: float,
) -> list[Assignment]:
    """Per level one row per object, anchor and step; `valid` marks candidates.

    Args:
        anchors: (levels, A, 2) in units of the strides.
        shapes: (rows, columns) of the map of each level.
    """
    grids = targets.new_tensor([(columns, rows) for rows, columns in shapes])  # (levels, 2)
    sides = targets[:, 4:6] * grids[:, None]  # (levels, n, 2) grid units
    if anchors is None:
        factor = sides[..., :1].transpose(0, 1) * 0  # any object fits any cell
        anchor_t = 1.0
    else:
        ratio = sides[:, :, None] / anchors[:, None]  # (levels, n, A, 2)
        factor = torch.max(ratio, 1 / ratio).amax(3).transpose(0, 1)  # (n, levels, A)
    matches = factor < anchor_t
    nearest = factor == factor.flatten(1).amin(1)[:, None, None]
    alone = ~matches.flatten(1).any(1)  # (n,) objects without a fitting anchor
    image, cls = targets[:, :2].long().unbind(1)
    step = torch.tensor(steps, device=targets.device)  # (steps, 2)
    levels = []
    for level, (rows, columns) in enumerate(shapes):
        centre = targets[:, 2:4] * grids[level]
        grid = step.new_tensor([columns, rows])
        own = centre.long().clamp(min=0).minimum(grid - 1)  # (n, 2)
        wanted = own[:, None] + step  # (n, steps, 2)
        cells = wanted.clamp(min=0).minimum(grid - 1)
        inside = (cells == wanted).all(2) & (~alone[:, None] | (step == 0).all(1))  # (n, steps)
        fits = torch.where(alone[:, None], nearest[:, level], matches[:, level])  # (n, A)
        valid = fits[:, :, None] & inside[:, None]  # (n, A, steps)
        column, row = cells[:, None].expand(*valid.shape, 2).unbind(-1)
        offset = (centre[:, None] - cells)[:, None].expand(*valid.shape, 2)
        size = sides[level][:, None, None].expand(*valid.shape, 2)
        anchor = torch.arange(fits.shape[1], device=row.device)[:, None].expand(valid.shape)
        levels.append(
            Assignment(
                image[:, None, None].expand(valid.shape).flatten(),
                anchor.flatten(),
                row.flatten(),
                column.flatten(),
                torch.cat((offset, size), -1).flatten(0, 2),
                cls[:, None, None].expand(valid.shape).flatten(),
                valid.flatten(),
            )
        )
    return levels


def _scores(predicted: Tensor) -> Tensor:
    """(n, 5 + C) logits -> (n, C) objectness times class. A single class is not learned: then
    objectness."""
    scores = predicted[:, 4:5].sigmoid()
    return scores if predicted.shape[1] == 6 else scores * predicted[:, 5:].sigmoid()


def _cost(scores: Tensor, cls: Tensor, overlap: Tensor, distance: Tensor) -> Tensor:
    """(n,) RTMDet's cost per candidate: class, overlap, and distance from the centre."""
    wanted = torch.zeros_like(scores).scatter_(
        1, cls[:, None].clamp(max=scores.shape[1] - 1), overlap[:, None]
    )
    entropy = torch.nn.functional.binary_cross_entropy(scores, wanted, reduction="none")
    by_class = (entropy * (wanted - scores) ** 2).sum(1)
    return by_class - 3 * overlap.clamp(min=1e-7).log() + 10 ** (distance - 3)


def choose(cost: Tensor, overlap: Tensor, place: Tensor, places: int) -> Tensor:
    """Choose the predictions of each object among its candidates.

    Args:
        cost: (n, m) costs; infinite for an invalid candidate.
        overlap: (n, m) overlaps; 0 for an invalid candidate.
        place: (n, m) index of the prediction; different for all candidates of an object.
        places: Number of predictions.

    Returns:
        (n, m) bool. Each prediction is chosen at most once. Each object has at least one, unless
            other objects have all its candidates.
    """
    count = overlap.topk(min(TOP, overlap.shape[1]), 1).values.sum(1).long().clamp(min=1)  # (n,)
    rank = cost.argsort(dim=1, stable=True).argsort(dim=1)
    wanted = (rank < count[:, None]) & cost.isfinite()
    chosen = _cheapest(wanted, cost, place, places)
    for _ in range(ROUNDS):
        taken = torch.zeros(places, dtype=torch.bool, device=cost.device).scatter_(
            0, place[chosen], True
        )
        free = cost.masked_fill(taken[place], torch.inf)
        empty = ~chosen.any(1)
        best = torch.zeros_like(chosen).scatter_(1, free.argmin(1, keepdim=True), True)
        chosen |= _cheapest(best & free.isfinite() & empty[:, None], cost, place, places)
    return chosen


def _cheapest(wanted: Tensor, cost: Tensor, place: Tensor, places: int) -> Tensor:
    """Per prediction, the object with the lowest cost; of equals, the first object."""
    own = cost.masked_fill(~wanted, torch.inf).flatten()
    where = place.flatten()
    least = own.new_full((places,), torch.inf).scatter_reduce_(0, where, own, "amin")
    equal = wanted.flatten() & (own == least[where])
    number = torch.arange(len(own), device=own.device)
    first = number.new_full((places,), len(own)).scatter_reduce_(
        0, where[equal], number[equal], "amin"
    )
    return (equal & (first[where] == number)).view_as(wanted)
