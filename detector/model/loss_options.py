"""The options of the loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from boltbox.detector.model.assigner import Assigner, YOLOv5Assigner
from boltbox.detector.model.loss import DetectionLoss, Loss
from boltbox.detector.model.parts import build_part, part_config
from boltbox.detector.system.ranges import ClosedUnitInterval, NonNegativeFloat, PositiveFloat


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

    def plain(self) -> dict[str, Any]:
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
        options = self.plain()
        assigner, function = options.pop("assigner"), options.pop("function")
        the_assigner: Assigner = YOLOv5Assigner(options.pop("anchor_t"))
        if assigner:
            the_assigner = build_part(assigner, Assigner, "model.loss.assigner")  # type: ignore[type-abstract]
        if function:
            needs = num_classes, strides, the_assigner
            return build_part(function, Loss, "model.loss.function", *needs)  # type: ignore[type-abstract]
        shared_cell: Literal["best", "last"] = "last" if literal else "best"
        return DetectionLoss(num_classes, strides, the_assigner, **options, shared_cell=shared_cell)
