"""What a step of the augmentation is, and steps of the user's own."""

import inspect
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from boltbox.detector.data.sample import Sample
from boltbox.detector.system.errors import InputError


class Transform(Protocol):
    """A step of the training's augmentation; any class or function that is called so. It returns
    another sample (`sample.replace(image=..., boxes=...)`) and never writes into the arrays of the
    one it is given: others share them.

    Args:
        sample: image and objects after the steps before.
        rng: everything random comes from it. It is the sample's own, seeded by (seed, epoch,
            index), so a sample is the same whatever process makes it.
        partner: gives another random sample after the steps before, for what mixes images.
    """

    def __call__(
        self, sample: Sample, rng: np.random.Generator, partner: Callable[[], Sample], /
    ) -> Sample: ...


class OwnTransform:
    """A transform of the user's own at its place. What it returns is checked, so that a mistake is
    named where it is made.

    Args:
        transform: see Transform.
        place: the step that it comes after, for messages.
        keeps_size: from here on all images of a batch must have one size.

    Raises:
        InputError: it cannot be called as a transform; when it is called: it returned what is no
            sample.
    """

    def __init__(self, transform: Transform, place: str, keeps_size: bool) -> None:
        self.transform, self.place, self.keeps_size = transform, place, keeps_size
        try:
            inspect.signature(transform).bind(None, None, None)
        except (TypeError, ValueError):
            raise InputError(
                f"{self._name()} is no transform: it must be called as f(sample, rng, partner)"
            ) from None

    def __call__(
        self, sample: Sample, rng: np.random.Generator, partner: Callable[[], Sample]
    ) -> Sample:
        made = self.transform(sample, rng, partner)
        problem = _problem(made)
        if not problem and self.keeps_size and made.size != sample.size:
            problem = (
                f"an image of {made.size[1]}x{made.size[0]} px; here all must keep their"
                f" {sample.size[1]}x{sample.size[0]}"
            )
        if problem:
            raise InputError(f"{self._name()} returned {problem}")
        if made.boxes.dtype != np.float32 or made.classes.dtype != np.int64:
            return made.replace(
                boxes=made.boxes.astype(np.float32), classes=made.classes.astype(np.int64)
            )
        return made

    def _name(self) -> str:
        return f"data.augment.after.{self.place}: {_import_path(self.transform)}"

    def description(self) -> str | dict[str, Any]:
        """As it stands in config.yaml: an import path, or class_path and init_args as far as its
        attributes tell them."""
        if inspect.isroutine(self.transform):
            return _import_path(self.transform)
        names = inspect.signature(type(self.transform)).parameters
        values = {
            name: getattr(self.transform, name) for name in names if hasattr(self.transform, name)
        }
        return {"class_path": _import_path(self.transform), "init_args": values}


def _import_path(transform: object) -> str:
    named = (
        transform if inspect.isroutine(transform) or inspect.isclass(transform) else type(transform)
    )
    return f"{named.__module__ or type(transform).__name__}.{named.__qualname__}"


def _problem(made: object) -> str:
    """What is wrong with a sample, or an empty string."""
    if not isinstance(made, Sample):
        return f"{type(made).__name__}, not a Sample"
    image, boxes, n = made.image, made.boxes, len(made.boxes)
    if (
        not isinstance(image, np.ndarray)
        or image.dtype != np.uint8
        or image.ndim != 3
        or image.shape[2] != 3
    ):
        return (
            f"an image {getattr(image, 'shape', '')} {getattr(image, 'dtype', '')}, not (H, W, 3)"
            " uint8"
        )
    if boxes.shape != (n, 4) or not np.isfinite(boxes).all():
        return f"boxes {boxes.shape}, not (n, 4) finite numbers"
    if made.classes.shape != (n,) or len(made.polygons) not in (0, n):
        return (
            f"{n} boxes, but {len(made.classes)} classes and {len(made.polygons)} entries of"
            " polygons"
        )
    return ""
