"""Which cells and anchors answer for which object, and what they are charged for it.

The assignment is YOLOv5's: every anchor whose shape is within a factor of the box's, in the box's cell and the two nearest
neighbour cells. Box loss CIoU (arXiv 1911.08287), focal loss (arXiv 1708.02002).
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from detector.model.boxes import iou_cxcywh


class Assignment(NamedTuple):
    """The n rows of one level, each an (object, anchor, cell) triple: image, anchor, row, column (n,) int64 index the raw map;
    box (n, 4) cxcywh in grid units relative to the cell's corner; anchor_wh (n, 2) grid units; cls (n,) int64."""

    image: Tensor
    anchor: Tensor
    row: Tensor
    column: Tensor
    box: Tensor
    anchor_wh: Tensor
    cls: Tensor


def assign_targets(targets: Tensor, anchors: Tensor, shapes: list[tuple[int, int]], anchor_t: float) -> list[Assignment]:
    """Match objects with anchors and cells on every level; nothing is exclusive.

    Args:
        targets: (N, 6) image, class, cx, cy, w, h; the last four as fractions of the network's input.
        anchors: (levels, A, 2) in units of each level's stride.
        shapes: (rows, columns) of each level's map.
        anchor_t: an anchor is matched if neither side differs by this factor or more.

    Returns:
        One Assignment a level. Rows: own cells, then left, upper, right, lower neighbours, each by anchor, then by target.
    """
    levels = []
    for level_anchors, (rows, columns) in zip(anchors, shapes, strict=True):
        grid = targets.new_tensor([columns, rows])  # (2,) width and height of the map
        centre, size = targets[:, 2:4] * grid, targets[:, 4:6] * grid  # (N, 2) grid units
        ratio = size / level_anchors[:, None]  # (A, N, 2)
        matches = torch.max(ratio, 1 / ratio).amax(2) < anchor_t  # (A, N)
        anchor, target = matches.nonzero(as_tuple=True)
        xy = centre[target]  # (m, 2)

        # A neighbour shares the object if the centre lies in the half of the cell next to it and the neighbour exists.
        near_low = (xy % 1 < 0.5) & (xy > 1)  # (m, 2): left, upper
        near_high = ((grid - xy) % 1 < 0.5) & (grid - xy > 1)  # (m, 2): right, lower
        shifts = xy.new_tensor([[0, 0], [-0.5, 0], [0, -0.5], [0.5, 0], [0, 0.5]])
        chosen = torch.stack([torch.ones_like(near_low[:, 0]), *near_low.T, *near_high.T])  # (5, m)
        shift, match = chosen.nonzero(as_tuple=True)
        anchor, target, xy = anchor[match], target[match], xy[match]

        cell = (xy + shifts[shift]).long()  # truncation toward zero, as YOLOv5's
        column, row = cell[:, 0].clamp(0, columns - 1), cell[:, 1].clamp(0, rows - 1)
        box = torch.cat((xy - torch.stack((column, row), 1), size[target]), 1)
        image, cls = targets[target, :2].long().T
        levels.append(Assignment(image, anchor, row, column, box, level_anchors[anchor], cls))
    return levels


def scaled_gains(
    box: float, obj: float, cls: float, num_levels: int, num_classes: int, image_size: int
) -> tuple[float, float, float]:
    """Hyper-parameters `box`, `obj`, `cls` (meant for 3 levels, 80 classes, 640 px) -> the gains for this model and size."""
    return box * 3 / num_levels, obj * (image_size / 640) ** 2 * 3 / num_levels, cls * num_classes / 80 * 3 / num_levels


class DetectionLoss(nn.Module):
    """Box + objectness + class loss over all levels.

    Args:
        num_classes: C; with one class there is no class loss.
        strides: pixels per cell of each level.
        box, obj, cls: gains, as `scaled_gains` gives them.
        cls_pw, obj_pw: weight of the positives in the two cross-entropies.
        label_smoothing: eps; classes are pulled to eps / 2 and 1 - eps / 2.
        fl_gamma: focal loss exponent; 0 is plain cross-entropy.
        anchor_t: see `assign_targets`.
        iou_ratio: share of the predicted box's overlap in the objectness target; the rest is 1.
        autobalance: let the levels' weights follow their losses, slowly.
        shared_cell: objectness target of a cell and anchor that several objects were given: the `best` overlap, or the `last`
            in assignment order, as YOLOv5 on a CPU.
    """

    balance: Tensor

    def __init__(
        self,
        num_classes: int,
        strides: list[int],
        box: float = 0.05,
        obj: float = 1.0,
        cls: float = 0.5,
        cls_pw: float = 1.0,
        obj_pw: float = 1.0,
        label_smoothing: float = 0.0,
        fl_gamma: float = 0.0,
        anchor_t: float = 4.0,
        iou_ratio: float = 1.0,
        autobalance: bool = False,
        shared_cell: Literal["best", "last"] = "best",
    ) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.gains = (box, obj, cls)
        self.cls_pw, self.obj_pw = cls_pw, obj_pw
        self.positive, self.negative = 1 - 0.5 * label_smoothing, 0.5 * label_smoothing
        self.fl_gamma = fl_gamma
        self.anchor_t = anchor_t
        self.iou_ratio = iou_ratio
        self.shared_cell = shared_cell
        self.autobalance = autobalance
        self.reference_level = strides.index(16) if 16 in strides else 0
        balance = [4.0, 1.0, 0.4] if len(strides) == 3 else [4.0, 1.0, 0.25, 0.06, 0.02, 0.01][: len(strides)]
        self.register_buffer("balance", torch.tensor(balance))

    def forward(self, raw: list[Tensor], targets: Tensor, anchors: Tensor) -> tuple[Tensor, Tensor]:
        """The loss of a batch, in float32 whatever the precision of the maps.

        Args:
            raw: per level (B, A, H, W, 5 + C) logits, as the network gives them.
            targets: (N, 6), as in `assign_targets`; N may be 0.
            anchors: (levels, A, 2) in units of each level's stride.

        Returns:
            total: scalar, the weighted sum times B (a sum over images, not a mean: gradients accumulate as sums).
            parts: (3,) weighted box, objectness, class loss without the factor B, detached.
        """
        with torch.autocast(raw[0].device.type, enabled=False):
            return self._forward([r.float() for r in raw], targets, anchors)

    def _forward(self, raw: list[Tensor], targets: Tensor, anchors: Tensor) -> tuple[Tensor, Tensor]:
        box_loss = obj_loss = cls_loss = raw[0].new_zeros(())
        level_losses = []
        shapes = [(r.shape[2], r.shape[3]) for r in raw]
        for maps, rows, balance in zip(
            raw, assign_targets(targets, anchors, shapes, self.anchor_t), self.balance.clone(), strict=True
        ):
            overlap_map = torch.zeros_like(maps[..., 4])  # (B, A, H, W)
            cell = (rows.image, rows.anchor, rows.row, rows.column)
            if len(rows.image):
                pred = maps[cell]  # (n, 5 + C)
                xy = pred[:, :2].sigmoid() * 2 - 0.5
                wh = (pred[:, 2:4].sigmoid() * 2) ** 2 * rows.anchor_wh
                iou = iou_cxcywh(torch.cat((xy, wh), 1), rows.box)  # (n,)
                box_loss = box_loss + (1 - iou).mean()
                self._write(overlap_map, cell, (1 - self.iou_ratio) + self.iou_ratio * iou.detach().clamp(0))
                if self.num_classes > 1:
                    wanted = torch.full_like(pred[:, 5:], self.negative)
                    wanted[torch.arange(len(rows.cls), device=wanted.device), rows.cls] = self.positive
                    cls_loss = cls_loss + self._cross_entropy(pred[:, 5:], wanted, self.cls_pw)
            level_losses.append(self._cross_entropy(maps[..., 4], overlap_map, self.obj_pw))
            obj_loss = obj_loss + level_losses[-1] * balance
        if self.autobalance and self.training:
            self._rebalance(torch.stack(level_losses).detach())
        parts = torch.stack([g * p for g, p in zip(self.gains, (box_loss, obj_loss, cls_loss), strict=True)])
        return parts.sum() * len(raw[0]), parts.detach()

    def _write(self, overlap_map: Tensor, cell: tuple[Tensor, ...], iou: Tensor) -> None:
        if self.shared_cell == "last":
            overlap_map[cell] = iou
        else:
            _, a, h, w = overlap_map.shape
            image, anchor, row, column = cell
            flat = ((image * a + anchor) * h + row) * w + column
            overlap_map.view(-1).scatter_reduce_(0, flat, iou, "amax")

    def _cross_entropy(self, logits: Tensor, wanted: Tensor, positive_weight: float) -> Tensor:
        weight = logits.new_tensor(positive_weight) if positive_weight != 1 else None
        if self.fl_gamma == 0:
            return binary_cross_entropy_with_logits(logits, wanted, pos_weight=weight)
        loss = binary_cross_entropy_with_logits(logits, wanted, pos_weight=weight, reduction="none")
        p = logits.sigmoid()
        p_right = wanted * p + (1 - wanted) * (1 - p)
        return (loss * (wanted * 0.25 + (1 - wanted) * 0.75) * (1 - p_right) ** self.fl_gamma).mean()

    def _rebalance(self, level_losses: Tensor) -> None:
        balance = self.balance * 0.9999 + 0.0001 / level_losses
        self.balance.copy_(balance / balance[self.reference_level])
