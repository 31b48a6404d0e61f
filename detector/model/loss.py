"""What the network is charged for its predictions. Box loss CIoU (arXiv 1911.08287), focal loss
(arXiv 1708.02002)."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from boltbox.detector.model.assigner import Assigner, YOLOv5Assigner
from boltbox.detector.model.boxes import iou_cxcywh
from boltbox.detector.model.head import Head
from boltbox.detector.model.parts import build_part, part_config
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.ranges import ClosedUnitInterval, NonNegativeFloat, PositiveFloat

_BATCHES = ""  # no part of a loss can have this name


class Loss(nn.Module, ABC):
    """The base class of losses. One of your own (`model.loss.function`, docs/parts.md) is called
    with `num_classes`, `strides` and `assigner`, and whatever its init_args say:

        def __init__(self, num_classes: int, strides: Sequence[int], assigner: Assigner, ...)
    """

    @abstractmethod
    def parts(self, raw: list[Tensor], targets: Tensor, head: Head) -> dict[str, Tensor]:
        """The parts of the loss of a batch by name, weighted, their sum what is trained on, as a
        mean over images.

        Names are those of the columns of metrics.csv, like `box_loss`; they are
        the same in every call.

        Args:
            raw: as the head gave it, a float32 tensor a level.
            targets: (N, 6) image, class, cx, cy, w, h; the last four as fractions of the network's
                input; N may be 0.
            head: what gave it: `strides`, `anchors`, `box_coder`.
        """

    def set_image_size(self, image_size: int) -> None:
        """Longer side of the network's input in pixels, for gains that go by it."""

    def forward(
        self, raw: Sequence[Tensor], targets: Tensor, head: Head
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of a batch, in float32 whatever the precision of the maps. Arguments: see
        `parts`.

        Returns:
            total: scalar, the sum of the parts times B (a sum over images, not a mean: gradients
                accumulate as sums).
            parts: by name, scalars without the factor B, detached.
        """
        with torch.autocast(raw[0].device.type, enabled=False):
            parts = self.parts([r.float() for r in raw], targets, head)
            values = torch.stack(list(parts.values()))
        return values.sum() * len(raw[0]), dict(zip(parts, values.detach().unbind(), strict=True))


class DetectionLoss(Loss):
    """Box + objectness + class loss over all levels: `box_loss`, `obj_loss`, `cls_loss`.

    Args:
        num_classes: C; with one class there is no class loss.
        strides: pixels per cell of each level.
        assigner: which predictions are charged for which object; default: YOLOv5's.
        box, obj, cls: gains, used as they are until `set_image_size` scales them; meant for 3
            levels, 80 classes, 640 px.
        cls_pw, obj_pw: weight of the positives in the two cross-entropies.
        label_smoothing: eps; classes are pulled to eps / 2 and 1 - eps / 2.
        fl_gamma: focal loss exponent; 0 is plain cross-entropy.
        autobalance: let the levels' weights follow their losses, slowly.
        shared_cell: objectness target of a cell and anchor that several objects were given: the
            `best` overlap, or the `last` in assignment order, as YOLOv5 on a CPU.
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
        self.shared_cell = shared_cell
        self.autobalance = autobalance
        self.reference_level = strides.index(16) if 16 in strides else 0
        balance = (
            [4.0, 1.0, 0.4]
            if len(strides) == 3
            else [4.0, 1.0, 0.25, 0.06, 0.02, 0.01][: len(strides)]
        )
        self.register_buffer("balance", torch.tensor(balance))

    def set_image_size(self, image_size: int) -> None:
        """Scale the gains for this size, and for this number of levels and classes."""
        box, obj, cls = self.unscaled_gains
        obj, cls = obj * (image_size / 640) ** 2, cls * self.num_classes / 80
        self.gains = box * 3 / self.levels, obj * 3 / self.levels, cls * 3 / self.levels

    def parts(self, raw: list[Tensor], targets: Tensor, head: Head) -> dict[str, Tensor]:
        """See Loss. raw: per level (B, A, H, W, 5 + C) logits. Shapes go by those of the arguments
        alone, not by values."""
        box_loss = obj_loss = cls_loss = raw[0].new_zeros(())
        level_losses = []
        assigned = self.assigner.assign(raw, targets, head)
        for level, (maps, rows, balance) in enumerate(
            zip(raw, assigned, self.balance.clone(), strict=True)
        ):
            cell = (rows.image, rows.anchor, rows.row, rows.column)
            # (n,)
            valid = (
                torch.ones_like(rows.cls, dtype=torch.bool) if rows.valid is None else rows.valid
            )
            # What does not count becomes harmless numbers, so that neither it nor its gradient is
            # ever infinite times 0.
            pred = maps[cell].where(valid[:, None], 0)  # (n, 5 + C)
            true_box = rows.box.where(valid[:, None], 1)
            anchors = None if head.anchors is None else head.anchors[level][rows.anchor]  # (n, 2)
            iou = iou_cxcywh(head.box_coder.decode(pred[:, :4], anchors), true_box)  # (n,)
            box_loss = box_loss + _mean(1 - iou, valid)
            overlap = self._overlap_map(maps, cell, iou.detach().clamp(0), valid)
            level_losses.append(self._cross_entropy(maps[..., 4], overlap, self.obj_pw))
            obj_loss = obj_loss + level_losses[-1] * balance
            if self.num_classes > 1:
                # (n, C)
                right = rows.cls[:, None] == torch.arange(self.num_classes, device=valid.device)
                wanted = torch.where(right, pred.new_full((), self.positive), self.negative)
                cls_loss = cls_loss + self._cross_entropy(pred[:, 5:], wanted, self.cls_pw, valid)
        if self.autobalance and self.training:
            self._rebalance(torch.stack(level_losses).detach())
        box, obj, cls = self.gains
        return {"box_loss": box * box_loss, "obj_loss": obj * obj_loss, "cls_loss": cls * cls_loss}

    def _overlap_map(
        self, maps: Tensor, cell: tuple[Tensor, ...], overlap: Tensor, valid: Tensor
    ) -> Tensor:
        """(B, A, H, W): `overlap` (n,) in the cells of the rows that count, 0 elsewhere."""
        shape = maps.shape[:4]
        image, anchor, row, column = cell
        flat = ((image * shape[1] + anchor) * shape[2] + row) * shape[3] + column
        nowhere = shape.numel()  # one place more, for the rows that do not count
        flat = torch.where(valid, flat, nowhere)
        if self.shared_cell == "last":  # by number, for threads and GPUs write in no certain order
            numbers = torch.arange(1, len(flat) + 1, device=flat.device)
            last = flat.new_zeros(nowhere + 1).scatter_reduce_(0, flat, numbers, "amax")
            overlaps = torch.cat((overlap.new_zeros(1), overlap))[last]
        else:
            overlaps = overlap.new_zeros(nowhere + 1).scatter_reduce_(0, flat, overlap, "amax")
        return overlaps[:nowhere].view(shape)

    def _cross_entropy(
        self, logits: Tensor, wanted: Tensor, positive_weight: float, valid: Tensor | None = None
    ) -> Tensor:
        """Mean over all elements, or of (n, C) over the rows that count."""
        weight = logits.new_full((), positive_weight) if positive_weight != 1 else None
        if self.fl_gamma == 0 and valid is None:
            return binary_cross_entropy_with_logits(logits, wanted, pos_weight=weight)
        loss = binary_cross_entropy_with_logits(logits, wanted, pos_weight=weight, reduction="none")
        if self.fl_gamma:
            p = logits.sigmoid()
            p_right = wanted * p + (1 - wanted) * (1 - p)
            loss = loss * (wanted * 0.25 + (1 - wanted) * 0.75) * (1 - p_right) ** self.fl_gamma
        return loss.mean() if valid is None else _mean(loss.mean(1), valid)

    def _rebalance(self, level_losses: Tensor) -> None:
        balance = self.balance * 0.9999 + 0.0001 / level_losses
        self.balance.copy_(balance / balance[self.reference_level])


def _mean(values: Tensor, valid: Tensor) -> Tensor:
    """Of the (n,) values that count; 0 if there is none."""
    return values.where(valid, 0).sum() / valid.sum().clamp(1)


def add_losses(sums: Mapping[str, Tensor], parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The sums of a loss's parts over batches, from none on, with one batch more; and how many
    batches these are.

    Raises:
        InputError: a name that no column can have, or other names than before.
    """
    wrong = next((name for name in parts if not name.isidentifier()), None)
    if wrong is not None or not parts:
        raise InputError(
            f"the loss has a part {wrong!r}: give names of letters, digits and _, like box_loss"
        )
    if sums and sums.keys() != {*parts, _BATCHES}:
        before = ", ".join(filter(None, sums))
        raise InputError(f"the loss has the parts {', '.join(parts)} now; it had {before}")
    return {name: sums.get(name, 0) + x for name, x in {**parts, _BATCHES: torch.ones(())}.items()}


def mean_losses(sums: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Each part's mean over the batches that were added."""
    return {name: total / sums[_BATCHES] for name, total in sums.items() if name != _BATCHES}


@dataclass
class LossOptions:
    """What the network is trained on.

    Args:
        box: Gain of the box loss.
        obj: Gain of the objectness loss, for 640 px.
        cls: Gain of the class loss, for 80 classes.
        cls_pw: Weight of positives in the class loss.
        obj_pw: Weight of positives in the objectness loss.
        label_smoothing: Epsilon of the class targets.
        fl_gamma: Exponent of the focal loss; 0 is off.
        anchor_t: Anchors whose sides differ from the object's by less than this factor are trained
            on it.
        autobalance: Adapt the weights of the levels' objectness losses.
        assigner: An assigner of your own instead of YOLOv5's, which has anchor_t, by class_path and
            init_args (docs/parts.md).
        function: A loss of your own instead of YOLOv5's, which has the options above.

    In Python assigner and function are a class, or functools.partial of a class and its arguments.
    """

    box: NonNegativeFloat = 0.05
    obj: NonNegativeFloat = 1.0
    cls: NonNegativeFloat = 0.5
    cls_pw: NonNegativeFloat = 1.0
    obj_pw: NonNegativeFloat = 1.0
    label_smoothing: ClosedUnitInterval = 0.0
    fl_gamma: NonNegativeFloat = 0.0
    anchor_t: PositiveFloat = 4.0
    autobalance: bool = False
    assigner: Callable[[], Assigner] | None = None
    function: Callable[[int, Sequence[int], Assigner], Loss] | None = None

    def to_dict(self) -> dict[str, Any]:
        """By name, in plain types that a checkpoint holds."""
        assigner = part_config(self.assigner, Assigner, "model.loss.assigner")
        function = part_config(self.function, Loss, "model.loss.function")
        return vars(self) | {"assigner": assigner, "function": function}

    def build(self, num_classes: int, strides: Sequence[int], literal: bool = False) -> Loss:
        """The loss of a network.

        Args:
            strides: pixels a cell of each level.
            literal: as YOLOv5 on a CPU: of objects that share cell and anchor, the last one gives
                the objectness target, instead of the best.
        """
        options = self.to_dict()
        assigner, function = options.pop("assigner"), options.pop("function")
        the_assigner: Assigner = YOLOv5Assigner(options.pop("anchor_t"))
        if assigner:
            the_assigner = build_part(assigner, Assigner, "model.loss.assigner")  # type: ignore[type-abstract]
        if function:
            needs = num_classes, strides, the_assigner
            return build_part(function, Loss, "model.loss.function", *needs)  # type: ignore[type-abstract]
        options["shared_cell"] = "last" if literal else "best"
        return DetectionLoss(num_classes, strides, the_assigner, **options)
