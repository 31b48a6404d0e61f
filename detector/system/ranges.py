"""Which numbers the options take."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from boltbox.detector.system.errors import InputError


class Range(NamedTuple):
    """Numbers from `low` to `high`; `above` and `below` say that the bound itself is not one of
    them."""

    low: float = -math.inf
    high: float = math.inf
    above: bool = False
    below: bool = False

    def __contains__(self, value: object) -> bool:
        """NaN and the infinities are in no range."""
        if not isinstance(value, int | float) or not math.isfinite(value):
            return False
        return (self.low < value if self.above else self.low <= value) and (
            value < self.high if self.below else value <= self.high
        )

    def __str__(self) -> str:
        """
        >>> str(Range(0, 1, above=True)), str(Range(1))
        ('above 0 and at most 1', 'at least 1')
        """
        low = (
            "" if self.low == -math.inf else f"{'above' if self.above else 'at least'} {self.low:g}"
        )
        high = (
            "" if self.high == math.inf else f"{'below' if self.below else 'at most'} {self.high:g}"
        )
        return " and ".join(part for part in (low, high) if part) or "a finite number"


POSITIVE, NOT_NEGATIVE, COUNT = Range(0, above=True), Range(0), Range(1)
MULTIPLE = Range(0, 16, above=True)  # of a network's depth and width
SHARE = Range(0, 1)  # probabilities, confidences, overlaps

# What is refused makes no sense at all; YOLOv5's bounds for evolution
# (detector/commands/evolve/space.py) are narrower.
RANGES = {
    "model.network.depth_multiple": MULTIPLE,
    "model.network.width_multiple": MULTIPLE,
    "model.loss.box": NOT_NEGATIVE,
    "model.loss.obj": NOT_NEGATIVE,
    "model.loss.cls": NOT_NEGATIVE,
    "model.loss.cls_pw": NOT_NEGATIVE,
    "model.loss.obj_pw": NOT_NEGATIVE,
    "model.loss.label_smoothing": SHARE,
    "model.loss.fl_gamma": NOT_NEGATIVE,
    "model.loss.anchor_t": Range(1, above=True),
    "model.optim.lr0": NOT_NEGATIVE,
    "model.optim.lrf": NOT_NEGATIVE,
    # Nesterov's needs one; Adam's beta1 is below 1
    "model.optim.momentum": Range(0, 1, above=True, below=True),
    "model.optim.weight_decay": NOT_NEGATIVE,
    "model.optim.backbone_lr": NOT_NEGATIVE,
    "model.network.bn_momentum": Range(0, 1, above=True),
    "model.optim.nominal_batch_size": COUNT,
    "conf": SHARE,
    "iou": SHARE,
    "max_det": COUNT,
    "image_size": COUNT,
    "batch_size": COUNT,
    "frame_step": COUNT,
    "tile_size": Range(32),
    "tile_overlap": Range(0, 1, below=True),
    "line_width": COUNT,
    "data.image_size": COUNT,
    "data.batch_size": COUNT,
    "data.val_batch_size": COUNT,
    "data.workers": NOT_NEGATIVE,
    "data.seed": NOT_NEGATIVE,
    "data.tile_size": Range(32),
    "data.tile_overlap": Range(0, 1, below=True),
    "data.augment.hsv_h": SHARE,
    "data.augment.hsv_s": SHARE,
    "data.augment.hsv_v": SHARE,
    "data.augment.degrees": Range(0, 180),
    "data.augment.translate": SHARE,
    "data.augment.scale": SHARE,
    "data.augment.shear": Range(0, 90, below=True),
    "data.augment.perspective": Range(0, 0.01),
    "data.augment.flipud": SHARE,
    "data.augment.fliplr": SHARE,
    "data.augment.mosaic": SHARE,
    "data.augment.close_mosaic": NOT_NEGATIVE,
    "data.augment.mixup": SHARE,
    "data.augment.copy_paste": SHARE,
    "trainer.max_epochs": NOT_NEGATIVE,  # 0: only the checks before a training
    "trainer.gradient_clip_val": NOT_NEGATIVE,
    "trainer.num_nodes": COUNT,
    "trainer.check_val_every_n_epoch": COUNT,
    "autoanchor.bpr_limit": SHARE,
    "warmup.warmup_epochs": NOT_NEGATIVE,
    "warmup.warmup_momentum": Range(0, 1, below=True),
    "warmup.warmup_bias_lr": NOT_NEGATIVE,
    "ema.decay": SHARE,
    "early_stop.patience": NOT_NEGATIVE,
    "checkpoints.save_period": Range(-1),
    "checkpoints.every_minutes": NOT_NEGATIVE,
    "dashboard.images": NOT_NEGATIVE,
    "watchdog.timeout": POSITIVE,
}


def check_ranges(options: Mapping[str, Any], group: str = "") -> None:
    """Numbers that are out of their option's range; what is None, no number or has no range is not
    looked at.

    Args:
        options: By name; within the group, if one is given.

    Raises:
        InputError: names the option, its value and the range.
    """
    for name, value in options.items():
        option = f"{group}.{name}" if group else name
        allowed = RANGES.get(option)
        if (
            allowed is not None
            and isinstance(value, int | float)
            and not isinstance(value, bool)
            and value not in allowed
        ):
            raise InputError(f"{option} is {value:g}; it must be {allowed}")
