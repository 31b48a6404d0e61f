"""The loss: how far the predictions are from the objects.

Box loss: CIoU (Zheng et al. 2019, arXiv 1911.08287). Focal loss: Lin et al. 2017, arXiv 1708.02002.
"""

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
from boltbox.detector.system.ranges import (
    CheckedOptions,
    ClosedUnitInterval,
    NonNegativeFloat,
    PositiveFloat,
)

BATCHES = "batches"  # key of the number of batches in the sums of `add_losses`


class Loss(nn.Module, ABC):
    """The base class of losses.

    A custom loss (`model.loss.function`, docs/parts.md) is constructed with `num_classes`,
    `strides` and `assigner`, by position, and its init_args by name:

        def __init__(self, num_classes: int, strides: Sequence[int], assigner: Assigner, ...)
    """

    @abstractmethod
    def terms(self, raw: list[Tensor], targets: Tensor, head: Head) -> dict[str, Tensor]:
        """The weighted terms of a batch's loss, which do not grow with the batch: `forward`
        multiplies their sum by the batch size.

        Args:
            raw: the head's output, a float32 tensor per level; of YOLOv5's heads (B, A, H, W,
                5 + C) logits.
            targets: (N, 6) image, class, cx, cy, w, h; the last four as fractions of the network's
                input; N may be 0.
            head: the head that computed `raw`: its `strides`, `anchors` and `box_coder`.

        Returns:
            Scalars by name. The names are columns of metrics.csv, like `box_loss`, and are the same
            in every call.
        """

    def set_image_size(self, image_size: int) -> None:
        """Adapt gains that depend on the image size.

        Args:
            image_size: longer side of the network's input in pixels.
        """

    def forward(
        self, raw: Sequence[Tensor], targets: Tensor, head: Head, ignored: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of a batch, in float32 whatever the precision of `raw`.

        Args:
            raw: see `terms`, in any precision.
            targets: see `terms`.
            head: see `terms`.
            ignored: (M, 6) like `targets`: regions that are neither object nor background. This
                base class does not use them: they count as background.

        Returns:
            total: scalar, the sum of the terms times B, as in YOLOv5: it grows with the batch like
                a sum over images.
            terms: by name, scalars without the factor B, detached.
        """
        with torch.autocast(raw[0].device.type, enabled=False):
            terms = self.terms([maps.float() for maps in raw], targets, head)
            total = sum(terms.values(), start=raw[0].new_zeros(()))
        batch_size = len(raw[0])
        return total * batch_size, {name: term.detach() for name, term in terms.items()}


class DetectionLoss(Loss):
    """Box + objectness + class loss over all levels: `box_loss`, `obj_loss`, `cls_loss`.

    Args:
        num_classes: C; with one class there is no class loss.
        strides: pixels per cell of each level.
        assigner: which predictions are trained on which object; default: YOLOv5's.
        box: gain of the box loss. box, obj and cls are meant for 3 levels, 80 classes and 640 px;
            `set_image_size` scales them.
        obj: gain of the objectness loss.
        cls: gain of the class loss.
        cls_pw: weight of positives in the class loss.
        obj_pw: weight of positives in the objectness loss.
        label_smoothing: eps; class targets are 1 - eps / 2 and eps / 2 instead of 1 and 0.
        fl_gamma: focal loss exponent (alpha 0.25); 0 is plain cross-entropy.
        shared_cell: objectness target of a cell and anchor with several objects: the largest
            overlap (`best`), or that of the last match (`last`), as in YOLOv5 on a CPU.
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
        shared_cell: Literal["best", "last"] = "best",
    ) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.levels = len(strides)
        self.assigner = YOLOv5Assigner() if assigner is None else assigner
        self.unscaled_gains = (box, obj, cls)
        self.gains = self.unscaled_gains  # until set_image_size
        self.cls_pw = cls_pw
        self.obj_pw = obj_pw
        self.positive_target = 1 - 0.5 * label_smoothing  # of a class
        self.negative_target = 0.5 * label_smoothing
        self.fl_gamma = fl_gamma
        self.shared_cell = shared_cell
        # weight of each level's objectness, as in YOLOv5
        balance = [4.0, 1.0, 0.4]
        if self.levels != 3:
            balance = [4.0, 1.0, 0.25, 0.06, 0.02][: self.levels]
            balance += [0.01] * (self.levels - len(balance))
        self.register_buffer("balance", torch.tensor(balance))

    def set_image_size(self, image_size: int) -> None:
        """Scale the gains to this size, and to the number of levels and classes."""
        box, obj, cls = self.unscaled_gains
        obj = obj * (image_size / 640) ** 2
        cls = cls * self.num_classes / 80
        self.gains = (box * 3 / self.levels, obj * 3 / self.levels, cls * 3 / self.levels)

    def forward(
        self, raw: Sequence[Tensor], targets: Tensor, head: Head, ignored: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """See Loss. Cells that an ignored region touches, but that are not near an object, train no
        objectness: they count in the mean over all cells, but have no gradient."""
        if ignored is not None:
            raw = [_detach_objectness(maps, ignored, targets) for maps in raw]
        return super().forward(raw, targets, head)

    def terms(self, raw: list[Tensor], targets: Tensor, head: Head) -> dict[str, Tensor]:
        """See Loss.

        The n matches of a level are (object, anchor, cell) triples. n depends on the shapes of the
        arguments only, not on values, which suits GPUs and compilers: the list is padded with
        matches that are not `valid`, whose indices still lie within the maps.

        Args:
            raw: per level (B, A, H, W, 5 + C) logits: four of the box, objectness, classes.
            targets: see Loss.
            head: see Loss.
        """
        box_loss = obj_loss = cls_loss = raw[0].new_zeros(())
        assignments = self.assigner.assign(raw, targets, head)
        for level, (maps, assigned) in enumerate(zip(raw, assignments, strict=True)):
            # (n,) each; together they index the maps
            index = (assigned.image, assigned.anchor, assigned.row, assigned.column)
            valid = assigned.valid  # (n,)
            if valid is None:  # all are
                valid = torch.ones_like(assigned.cls, dtype=torch.bool)
            # target_box and box: cx, cy, w, h in cells, from the upper left corner of the match's
            # cell.
            # Invalid matches get harmless numbers, so that neither their loss nor its gradient is
            # NaN (infinity times 0).
            logits = maps[index].where(valid[:, None], 0)  # (n, 5 + C)
            target_box = assigned.box.where(valid[:, None], 1)  # (n, 4)

            # Boxes: that of each match is to overlap with its object.
            anchors = None
            if head.anchors is not None:
                anchors = head.anchors[level][assigned.anchor]  # (n, 2), in cells
            box = head.box_coder.decode(logits[:, :4], anchors)  # (n, 4)
            ciou = iou_cxcywh(box, target_box, "ciou")  # (n,)
            box_loss = box_loss + _mean(1 - ciou, valid)

            # Objectness: all cells predict their box's overlap with an object, 0 without one.
            overlap = ciou.detach().clamp(min=0)  # (n,)
            overlap_map = self._overlap_map(maps, index, overlap, valid)  # (B, A, H, W)
            level_loss = self._cross_entropy(maps[..., 4], overlap_map, self.obj_pw)
            obj_loss = obj_loss + level_loss * self.balance[level]

            # Classes: the matches predict the class of their object.
            if self.num_classes > 1:
                classes = torch.arange(self.num_classes, device=valid.device)
                is_class = assigned.cls[:, None] == classes  # (n, C)
                target = torch.where(is_class, self.positive_target, self.negative_target)  # (n, C)
                cls_loss = cls_loss + self._cross_entropy(logits[:, 5:], target, self.cls_pw, valid)
        box_gain, obj_gain, cls_gain = self.gains
        return {
            "box_loss": box_gain * box_loss,
            "obj_loss": obj_gain * obj_loss,
            "cls_loss": cls_gain * cls_loss,
        }

    def _overlap_map(
        self, maps: Tensor, index: tuple[Tensor, ...], overlap: Tensor, valid: Tensor
    ) -> Tensor:
        """(B, A, H, W): `overlap` (n,) at the index of the valid matches, 0 elsewhere."""
        shape = maps.shape[:4]
        image, anchor, row, column = index
        place = ((image * shape[1] + anchor) * shape[2] + row) * shape[3] + column  # (n,)
        size = shape.numel()
        place = torch.where(valid, place, size)  # invalid ones go behind the end, which is cut off
        if self.shared_cell == "best":
            flat = overlap.new_zeros(size + 1).scatter_reduce_(0, place, overlap, "amax")
        else:
            # Writing `overlap` itself would leave the choice among several matches to the threads.
            # So first, per place, the number of its last match, from 1 (0: no match).
            numbers = torch.arange(1, len(place) + 1, device=place.device)
            last_number = place.new_zeros(size + 1).scatter_reduce_(0, place, numbers, "amax")
            overlap_of_number = torch.cat((overlap.new_zeros(1), overlap))
            flat = overlap_of_number[last_number]
        return flat[:size].view(shape)

    def _cross_entropy(
        self, logits: Tensor, target: Tensor, positive_weight: float, valid: Tensor | None = None
    ) -> Tensor:
        """Mean over all elements, or over the valid matches of (n, C)."""
        weight = None if positive_weight == 1 else logits.new_full((), positive_weight)
        if self.fl_gamma == 0 and valid is None:
            return binary_cross_entropy_with_logits(logits, target, pos_weight=weight)
        loss = binary_cross_entropy_with_logits(logits, target, pos_weight=weight, reduction="none")
        if self.fl_gamma:
            p = logits.sigmoid()
            p_target = target * p + (1 - target) * (1 - p)
            alpha = target * 0.25 + (1 - target) * 0.75
            # fl_gamma below 1 is a root, whose gradient at 0 is infinite
            distance = (1 - p_target).clamp(torch.finfo(p.dtype).tiny)
            loss = loss * alpha * distance**self.fl_gamma
        return loss.mean() if valid is None else _mean(loss.mean(1), valid)


def _detach_objectness(maps: Tensor, ignored: Tensor, targets: Tensor) -> Tensor:
    """The same maps (B, A, H, W, 5 + C); no gradient reaches the objectness of cells that an
    ignored region touches, but that are neither in nor near an object."""
    # YOLOv5's assigner also takes cells beside the object's, up to half a cell away
    cells = _touched(ignored, maps) & ~_touched(targets, maps, margin=0.5)  # (B, H, W)
    is_objectness = torch.arange(maps.shape[4], device=maps.device) == 4
    return torch.where(cells[:, None, :, :, None] & is_objectness, maps.detach(), maps)


def _touched(rows: Tensor, maps: Tensor, margin: float = 0.0) -> Tensor:
    """(B, H, W) bool: the cells that the boxes in `rows`, (N, 6) like `targets`, touch, or miss by
    less than `margin` cells."""
    batch, _, height, width, _ = maps.shape
    image, _, cx, cy, w, h = rows.unbind(1)
    x = (torch.arange(width, device=rows.device) + 0.5) / width  # centres of the cells
    y = (torch.arange(height, device=rows.device) + 0.5) / height
    # they touch if, in x and in y, their centres are closer than half the sum of their sides
    reach = 0.5 + margin  # half a cell and the margin, in cells
    in_columns = (x - cx[:, None]).abs() < w[:, None] / 2 + reach / width  # (N, W)
    in_rows = (y - cy[:, None]).abs() < h[:, None] / 2 + reach / height  # (N, H)
    boxes = (in_rows[:, :, None] & in_columns[:, None]).float()
    return boxes.new_zeros(batch, height, width).index_add_(0, image.long(), boxes) > 0


def _mean(values: Tensor, valid: Tensor) -> Tensor:
    """Mean of the valid ones of (n,) values; 0 if there is none."""
    return values.where(valid, 0).sum() / valid.sum().clamp(1)


def add_losses(sums: Mapping[str, Tensor], terms: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Add the terms of one batch to the sums over batches.

    Args:
        sums: what this function returned for the batches before; empty at first.
        terms: of a Loss, by name.

    Returns:
        The new sums and the number of batches, for `mean_losses`.

    Raises:
        InputError: no terms, a name that no column of metrics.csv can have or that is the
            counter's, or other names than before.
    """
    if not terms or BATCHES in terms or not all(name.isidentifier() for name in terms):
        raise InputError(
            f"the loss has the terms {list(terms)}: give names of letters, digits and _, like"
            f" box_loss, not {BATCHES}"
        )
    new = dict(terms)
    new[BATCHES] = torch.ones(())
    if sums and sums.keys() != new.keys():
        raise InputError(f"the loss has the terms {list(new)} now; it had {list(sums)}")
    return {name: sums.get(name, 0) + value for name, value in new.items()}


def mean_losses(sums: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Each term's mean over the batches that `add_losses` added."""
    return {name: total / sums[BATCHES] for name, total in sums.items() if name != BATCHES}


@dataclass(frozen=True)
class LossOptions(CheckedOptions):
    """The loss that the network is trained with.

    Args:
        box: Gain of the box loss.
        obj: Gain of the objectness loss, for 640 px.
        cls: Gain of the class loss, for 80 classes.
        cls_pw: Weight of positives in the class loss.
        obj_pw: Weight of positives in the objectness loss.
        label_smoothing: Epsilon of the class targets.
        fl_gamma: Exponent of the focal loss; 0 is off.
        anchor_t: An object is assigned to the anchors whose width and height are within this factor
            of its own, up or down.
        assigner: Custom assigner by class_path and init_args (docs/parts.md). Then
            anchor_t has no effect.
        function: Class of a custom loss, likewise. Then the options from box to
            fl_gamma have no effect.

    In Python assigner and function are a class, or functools.partial of a class and its arguments;
    from a checkpoint, class_path and init_args.
    """

    box: NonNegativeFloat = 0.05
    obj: NonNegativeFloat = 1.0
    cls: NonNegativeFloat = 0.5
    cls_pw: NonNegativeFloat = 1.0
    obj_pw: NonNegativeFloat = 1.0
    label_smoothing: ClosedUnitInterval = 0.0
    fl_gamma: NonNegativeFloat = 0.0
    anchor_t: PositiveFloat = 4.0
    assigner: Callable[[], Assigner] | None = None
    function: Callable[[int, Sequence[int], Assigner], Loss] | None = None

    def to_dict(self) -> dict[str, Any]:
        """The options by name, in plain types that a checkpoint holds."""
        return vars(self) | {
            "assigner": part_config(self.assigner, Assigner, "model.loss.assigner"),
            "function": part_config(self.function, Loss, "model.loss.function"),
        }

    def build(self, num_classes: int, strides: Sequence[int], literal: bool = False) -> Loss:
        """The loss of a network.

        Args:
            num_classes: of the network.
            strides: pixels per cell of each level.
            literal: `shared_cell` of DetectionLoss is `last`, as in YOLOv5.
        """
        # to_dict: assigner and function by class_path and init_args, however they were given
        options = self.to_dict()
        assigner_config = options.pop("assigner")
        loss_config = options.pop("function")
        anchor_t = options.pop("anchor_t")
        assigner: Assigner = YOLOv5Assigner(anchor_t)
        if assigner_config:
            assigner = build_part(assigner_config, Assigner, "model.loss.assigner")  # type: ignore[type-abstract]
        if loss_config:
            arguments = (num_classes, strides, assigner)
            return build_part(loss_config, Loss, "model.loss.function", *arguments)  # type: ignore[type-abstract]
        options["shared_cell"] = "last" if literal else "best"
        return DetectionLoss(num_classes, strides, assigner, **options)
