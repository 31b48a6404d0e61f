"""What the network is charged for its predictions. Box loss CIoU (arXiv 1911.08287), focal loss (arXiv 1708.02002)."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from detector.model.assigner import Assigner, YOLOv5Assigner
from detector.model.boxes import iou_cxcywh
from detector.model.head import Head


class Loss(nn.Module, ABC):
    """The base class of losses. One of your own (`model.loss`, docs/parts.md) is called with `num_classes`, `strides` and
    `assigner`, and whatever its init_args say:

        def __init__(self, num_classes: int, strides: Sequence[int], assigner: Assigner, ...)
    """

    @abstractmethod
    def parts(self, raw: list[Tensor], targets: Tensor, head: Head) -> dict[str, Tensor]:
        """The parts of the loss of a batch by name, weighted, their sum what is trained on, as a mean over images.

        Names are those of the columns of metrics.csv and iterations.csv, like `box_loss`; they are the same in every call.

        Args:
            raw: as the head gave it, a float32 tensor a level.
            targets: (N, 6) image, class, cx, cy, w, h; the last four as fractions of the network's input; N may be 0.
            head: what gave it: `strides`, `anchors`, `box_coder`.
        """

    def set_image_size(self, image_size: int) -> None:
        """Longer side of the network's input in pixels, for gains that go by it."""

    def forward(self, raw: Sequence[Tensor], targets: Tensor, head: Head) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of a batch, in float32 whatever the precision of the maps. Arguments: see `parts`.

        Returns:
            total: scalar, the sum of the parts times B (a sum over images, not a mean: gradients accumulate as sums).
            parts: by name, scalars without the factor B, detached.
        """
        with torch.autocast(raw[0].device.type, enabled=False):
            parts = self.parts([r.float() for r in raw], targets, head)
            values = torch.stack(list(parts.values()))
        return values.sum() * len(raw[0]), dict(zip(parts, values.detach().unbind(), strict=True))


def scaled_gains(
    box: float, obj: float, cls: float, num_levels: int, num_classes: int, image_size: int
) -> tuple[float, float, float]:
    """Hyper-parameters `box`, `obj`, `cls` (meant for 3 levels, 80 classes, 640 px) -> the gains for this model and size."""
    return box * 3 / num_levels, obj * (image_size / 640) ** 2 * 3 / num_levels, cls * num_classes / 80 * 3 / num_levels


class DetectionLoss(Loss):
    """Box + objectness + class loss over all levels: `box_loss`, `obj_loss`, `cls_loss`.

    Args:
        num_classes: C; with one class there is no class loss.
        strides: pixels per cell of each level.
        assigner: which predictions are charged for which object; default: YOLOv5's.
        box, obj, cls: gains, used as they are until `set_image_size` scales them (see `scaled_gains`).
        cls_pw, obj_pw: weight of the positives in the two cross-entropies.
        label_smoothing: eps; classes are pulled to eps / 2 and 1 - eps / 2.
        fl_gamma: focal loss exponent; 0 is plain cross-entropy.
        iou_ratio: share of the predicted box's overlap in the objectness target; the rest is 1.
        autobalance: let the levels' weights follow their losses, slowly.
        shared_cell: objectness target of a cell and anchor that several objects were given: the `best` overlap, or the `last`
            in assignment order, as YOLOv5 on a CPU.
    """

    balance: Tensor

    def __init__(
        self,
        num_classes: int,
        strides: Sequence[int],
        assigner: Assigner | None = None,
        box: float = 0.05,
        obj: float = 1.0,
        cls: float = 0.5,
        cls_pw: float = 1.0,
        obj_pw: float = 1.0,
        label_smoothing: float = 0.0,
        fl_gamma: float = 0.0,
        iou_ratio: float = 1.0,
        autobalance: bool = False,
        shared_cell: Literal["best", "last"] = "best",
    ) -> None:
        super().__init__()
        self.num_classes, self.levels = num_classes, len(strides)
        self.assigner = assigner or YOLOv5Assigner()
        self.gains = self.unscaled_gains = (box, obj, cls)
        self.cls_pw, self.obj_pw = cls_pw, obj_pw
        self.positive, self.negative = 1 - 0.5 * label_smoothing, 0.5 * label_smoothing
        self.fl_gamma = fl_gamma
        self.iou_ratio = iou_ratio
        self.shared_cell = shared_cell
        self.autobalance = autobalance
        self.reference_level = strides.index(16) if 16 in strides else 0
        balance = [4.0, 1.0, 0.4] if len(strides) == 3 else [4.0, 1.0, 0.25, 0.06, 0.02, 0.01][: len(strides)]
        self.register_buffer("balance", torch.tensor(balance))

    def set_image_size(self, image_size: int) -> None:
        """Scale the gains for this size, and for this number of levels and classes."""
        self.gains = scaled_gains(*self.unscaled_gains, self.levels, self.num_classes, image_size)

    def parts(self, raw: list[Tensor], targets: Tensor, head: Head) -> dict[str, Tensor]:
        """See Loss. raw: per level (B, A, H, W, 5 + C) logits."""
        box_loss = obj_loss = cls_loss = raw[0].new_zeros(())
        level_losses = []
        assigned = self.assigner.assign(raw, targets, head)
        for level, (maps, rows, balance) in enumerate(zip(raw, assigned, self.balance.clone(), strict=True)):
            overlap_map = torch.zeros_like(maps[..., 4])  # (B, A, H, W)
            cell = (rows.image, rows.anchor, rows.row, rows.column)
            if len(rows.image):
                pred = maps[cell]  # (n, 5 + C)
                anchors = None if head.anchors is None else head.anchors[level][rows.anchor]  # (n, 2)
                iou = iou_cxcywh(head.box_coder.decode(pred[:, :4], anchors), rows.box)  # (n,)
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
        box, obj, cls = self.gains
        return {"box_loss": box * box_loss, "obj_loss": obj * obj_loss, "cls_loss": cls * cls_loss}

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
