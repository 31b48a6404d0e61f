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
    """A transform of the user's own at its place. What it returns is checked, so that the message
    of a mistake names it.

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
        if problem := self._problem(sample, made):
            raise InputError(f"{self._name()} must return {problem}")
        boxes = made.boxes.astype(np.float32, copy=False)
        return made.replace(boxes=boxes, classes=made.classes.astype(np.int64, copy=False))

    def _problem(self, sample: Sample, made: Any) -> str:
        """What it must return instead of `made`, or an empty string."""
        if not isinstance(made, Sample):
            return f"a Sample, not {type(made).__name__}"
        image, boxes, n = np.asarray(made.image), made.boxes, len(made.boxes)
        if image.dtype != np.uint8 or image.shape[2:] != (3,):
            return f"an image (H, W, 3) uint8, not {image.shape} {image.dtype}"
        if self.keeps_size and made.size != sample.size:
            return f"an image of the size it was given, {sample.size}, not {made.size}"
        if boxes.shape != (n, 4) or not np.isfinite(boxes).all():
            return f"finite boxes (n, 4), not {boxes.shape}"
        if made.classes.shape != (n,) or len(made.polygons) not in (0, n):
            return f"a class, and polygons or none, for each of its {n} boxes"
        return ""

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
