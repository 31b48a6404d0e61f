"""What a Detector expects of its Trainer: data of its own image size, and the callbacks of the
recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import lightning as L

from boltbox.detector.data.datamodule import DetectionData
from boltbox.detector.data.transforms.letterbox import round_up
from boltbox.detector.model.network import Network
from boltbox.detector.system.errors import InputError
from boltbox.detector.training.gradient_window import COLLECT
from boltbox.detector.training.optimizer import RATES

# of a Detector before it is given its data
UNLESS_GIVEN = {"image_size": 640, "batch_size": 16, "seed": 0}
OPTIMIZER_RULES = {"AdamW": " (auto: for trained weights)", "Muon": " (auto: for a fresh network)"}
FEW_STEPS = 200  # a run with fewer gains by smaller batches (docs/recipe.md)
# of the package `callbacks`, which detector/ does not import: what is missing without them
CALLBACKS = {
    "Warmup": "no warm-up, no accumulation to model.nominal_batch_size",
    "EMA": "no moving average of the weights",
    "AutoAnchor": "no look at whether the anchors fit",
}


def data_of(trainer: L.Trainer) -> DetectionData:
    """The data module of a Trainer.

    Raises:
        InputError: it has none, or one of another kind.
    """
    data = getattr(trainer, "datamodule", None)
    if not isinstance(data, DetectionData):
        raise InputError(
            "boltbox's callbacks need boltbox's data module: trainer.fit(detector,"
            " datamodule=DetectionData(...))"
        )
    return data


def recipe_line(
    options: Mapping[str, Any], left_open: Sequence[str], steps: int, window: int, average: str
) -> str:
    """What a run trains with, and which rule chose it.

    Args:
        options: of the Detector, by name. left_open: those that were chosen for it. steps: of the
            whole run. window: batches that a step collects gradients over. average: about the
            moving average.

    >>> options = {"optimizer": "AdamW", "lr0": 0.001, "lr_schedule": "linear", "batch_size": 16, "nominal_batch_size": "auto"}
    >>> recipe_line(options, ["optimizer", "lr0"], 390, 1, "no average")
    "recipe: AdamW (auto: for trained weights), lr0 0.001 (linear), 390 steps of 16 images \
(auto: of 64 in a longer run), no average; YOLOv5's: --config configs/yolov5.yaml"
    >>> recipe_line(options | {"batch_size": 64}, [], 60, 1, "no average")
    "recipe: AdamW, lr0 0.001 (linear), 60 steps of 64 images, which are few: a smaller data.batch_size \
and model.nominal_batch_size take more, no average; YOLOv5's: --config configs/yolov5.yaml"
    """  # noqa: E501
    h, images = options, options["batch_size"] * window
    rule = (
        " (auto: of 64 in a longer run)"
        if h["nominal_batch_size"] == "auto" and images < 64
        else ""
    )
    if steps < FEW_STEPS and images > 8:
        rule += ", which are few: a smaller data.batch_size and model.nominal_batch_size take more"
    chosen = OPTIMIZER_RULES.get(h["optimizer"], "") if "optimizer" in left_open else ""
    rate = f"{h['optimizer']}{chosen}, lr0 {h['lr0']:g} ({h['lr_schedule']})"
    if h["lr0"] >= 10 * RATES[h["optimizer"]].lr0 and h["optimizer"] != "SGD":
        rate += f", which is a rate for SGD: {h['optimizer']}'s is {RATES[h['optimizer']].lr0:g}"
    if h.get("backbone_lr") is not None:
        rate += f", the backbone's {h['backbone_lr']:g}"
    return (
        f"recipe: {rate}, {steps} steps of {images} images{rule}, {average}; YOLOv5's: --config"
        " configs/yolov5.yaml"
    )


class FollowsItsData(Protocol):
    """A detector whose image size, batch size and seed may be those of its data:
    boltbox.detector.training.module.Detector.

    not_given: those of UNLESS_GIVEN that it was made without · names: of its classes · hparams: its
    options by name.
    """

    not_given: list[str]

    @property
    def names(self) -> list[str]: ...

    @property
    def network(self) -> Network: ...

    @property
    def hparams(self) -> Any: ...

    def set_image_size(self, image_size: int) -> None: ...


def follow(detector: FollowsItsData, data: DetectionData) -> None:
    """Give the detector the image size, batch size and seed of the training data, unless it was
    made with its own.

    Raises:
        InputError: its own differ from those of the data; or the class names do.
    """
    if list(data.names) != detector.names:
        raise InputError(
            f"the Detector knows the classes {detector.names}, its data have {data.names}: give it"
            " data.names"
        )
    h, stride = detector.hparams, detector.network.max_stride
    for name in detector.not_given:
        h[name] = getattr(data, name)
    own, theirs = (
        (round_up(h["image_size"], stride), h["batch_size"]),
        (round_up(data.image_size, stride), data.batch_size),
    )
    for name, ours, needed in zip(("image_size", "batch_size"), own, theirs, strict=True):
        if ours != needed:
            raise InputError(
                f"{name} is {ours} in the Detector and {needed} in its data: leave it out of the"
                " Detector"
            )
    detector.set_image_size(h["image_size"])


def missing(trainer: L.Trainer) -> list[str]:
    """The parts of the recipe that a fit with this Trainer lacks. A callback that is switched off
    is not missing."""
    names = {kind.__name__ for callback in trainer.callbacks for kind in type(callback).__mro__}  # type: ignore[attr-defined]
    parts = [
        f"{what} (boltbox.callbacks.{name})"
        for name, what in CALLBACKS.items()
        if name not in names
    ]
    if trainer.gradient_clip_val is None:
        parts.append("no gradient clipping (gradient_clip_val=10.0)")
    if "Warmup" in names and trainer.accumulate_grad_batches not in (1, COLLECT):
        parts.append(
            f"accumulate_grad_batches={trainer.accumulate_grad_batches} gives way to"
            " model.nominal_batch_size"
        )
    return parts
