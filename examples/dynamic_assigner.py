"""Assignment by what was predicted, among the candidates that cells and, if there are any, anchors
give."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from boltbox.detector.model.assigner import Assigner, Assignment
from boltbox.detector.model.boxes import iou_cxcywh
from boltbox.detector.model.head import Head

TOP = 13  # overlaps whose sum tells how many predictions an object gets
ROUNDS = 3  # in which objects that were left without a prediction look for a free one
# own cell and its neighbours: columns, rows
NEAR = ((0, 0), (-1, 0), (0, -1), (1, 0), (0, 1))
AROUND = (*NEAR, (-1, -1), (1, -1), (-1, 1), (1, 1))


class DynamicAssigner(Assigner):
    """SimOTA (Ge et al. 2021, arXiv 2107.08430) with RTMDet's cost (Lyu et al. 2022, arXiv
    2212.07784), on anchors or cells.

    Candidates of an object are the anchors whose shape is within a factor of its own, in its cell
    and the four neighbours, on all levels; without any, the anchor nearest in shape in its cell. In
    a head without anchors they are its cell and the eight around it, on all levels. An object
    gets as many of the cheapest as its best overlaps add up to, at least one. A prediction that
    several objects want goes to the one for which it is cheapest.

    Args:
        anchor_t: an anchor is a candidate if neither side differs by this factor or more.
    """

    def __init__(self, anchor_t: float = 4.0) -> None:
        self.anchor_t = anchor_t

    @torch.no_grad()
    def assign(self, raw: Sequence[Tensor], targets: Tensor, head: Head) -> list[Assignment]:
        """See Assigner. Rows of a level: by object, then anchor, then cell; their number goes by
        that of the objects alone."""
        shapes = [maps.shape[2:4] for maps in raw]
        steps = AROUND if head.anchors is None else NEAR
        levels = _candidates(targets, head.anchors, shapes, steps, self.anchor_t)
        n, start, parts = len(targets), 0, []
        for level, (maps, rows) in enumerate(zip(raw, levels, strict=True)):
            anchors = None if head.anchors is None else head.anchors[level][rows.anchor]
            assert rows.valid is not None
            cell = (rows.image, rows.anchor, rows.row, rows.column)
            predicted = maps[cell]  # (n 5 A, 5 + C)
            overlap = iou_cxcywh(head.box_coder.decode(predicted[:, :4], anchors), rows.box, "iou")
            # of the object's centre from that of the cell, in strides
            distance = (rows.box[:, :2] - 0.5).norm(dim=1)
            cost = _cost(_scores(predicted), rows.cls, overlap, distance).masked_fill(
                ~rows.valid, torch.inf
            )
            _, a, h, w = maps.shape[:4]
            place = start + ((rows.image * a + rows.anchor) * h + rows.row) * w + rows.column
            start += maps.shape[:4].numel()
            parts.append(
                [
                    part.view(n, a * len(steps))
                    for part in (cost, overlap.masked_fill(~rows.valid, 0), place)
                ]
            )
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
    """Per level a row for each object, anchor and step; `valid` where one is a candidate.

    anchors: (levels, A, 2) in units of the strides. shapes: (rows, columns) of each level's map."""
    grids = targets.new_tensor([(columns, rows) for rows, columns in shapes])  # (levels, 2)
    sides = targets[:, 4:6] * grids[:, None]  # (levels, n, 2) grid units
    if anchors is None:
        factor, anchor_t = sides[..., :1].transpose(0, 1) * 0, 1.0  # any object fits any cell
    else:
        ratio = sides[:, :, None] / anchors[:, None]  # (levels, n, A, 2)
        factor = torch.max(ratio, 1 / ratio).amax(3).transpose(0, 1)  # (n, levels, A)
    matches = factor < anchor_t
    nearest = factor == factor.flatten(1).amin(1)[:, None, None]
    alone = ~matches.flatten(1).any(1)  # (n,) objects that no anchor fits
    image, cls = targets[:, :2].long().unbind(1)
    step = torch.tensor(steps, device=targets.device)  # (steps, 2)
    levels = []
    for level, (rows, columns) in enumerate(shapes):
        centre, grid = targets[:, 2:4] * grids[level], step.new_tensor([columns, rows])
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
    """(n, 5 + C) logits -> (n, C) objectness times class; with one class, which is not learned,
    objectness."""
    scores = predicted[:, 4:5].sigmoid()
    return scores if predicted.shape[1] == 6 else scores * predicted[:, 5:].sigmoid()


def _cost(scores: Tensor, cls: Tensor, overlap: Tensor, distance: Tensor) -> Tensor:
    """(n,) RTMDet's cost of each candidate: by class, by overlap, and by distance from the
    centre."""
    wanted = torch.zeros_like(scores).scatter_(
        1, cls[:, None].clamp(max=scores.shape[1] - 1), overlap[:, None]
    )
    entropy = torch.nn.functional.binary_cross_entropy(scores, wanted, reduction="none")
    by_class = (entropy * (wanted - scores) ** 2).sum(1)
    return by_class - 3 * overlap.clamp(min=1e-7).log() + 10 ** (distance - 3)


def choose(cost: Tensor, overlap: Tensor, place: Tensor, places: int) -> Tensor:
    """Which candidates each object gets.

    Args:
        cost: (n, m) of each object's candidates; infinite: it is none.
        overlap: (n, m) 0 where it is none.
        place: (n, m) number of the prediction that a candidate is; no two candidates of an object
            are the same.
        places: how many predictions there are.

    Returns:
        (n, m) bool. No prediction twice; each object has at least one, unless others have taken all
            its candidates.
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
    """Of those that want the same prediction the cheapest; of equals the first object."""
    own = cost.masked_fill(~wanted, torch.inf).flatten()
    where = place.flatten()
    least = own.new_full((places,), torch.inf).scatter_reduce_(0, where, own, "amin")
    equal = wanted.flatten() & (own == least[where])
    number = torch.arange(len(own), device=own.device)
    first = number.new_full((places,), len(own)).scatter_reduce_(
        0, where[equal], number[equal], "amin"
    )
    return (equal & (first[where] == number)).view_as(wanted)
