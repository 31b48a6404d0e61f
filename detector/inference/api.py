"""The detector as a Python object: `Detector.load(path).predict(images)`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from PIL import Image, ImageOps

from boltbox.detector.data.device import finish_on_device
from boltbox.detector.data.images import (
    ON_ITS_SIDE,
    ORIENTATION,
    TooManyPixels,
    check_pixels,
    image_sizes,
    read_image,
)
from boltbox.detector.data.inputs.evaluation_input import EvaluationInput, unlabelled
from boltbox.detector.data.inputs.tiled import Tiling, tiled_batch
from boltbox.detector.data.sample import Batch, Sample, collate
from boltbox.detector.data.transforms.letterbox import round_up
from boltbox.detector.inference.autocast import autocast
from boltbox.detector.inference.detections import Detections
from boltbox.detector.inference.rows import NMSThresholds, class_numbers
from boltbox.detector.system.errors import InputError

Picture = str | Path | np.ndarray | Image.Image
Images = Picture | Sequence[Picture]


class Predicting(Protocol):
    """What predicts: boltbox.detector.training.module.Detector.

    names: of its classes · image_size: longer side of the training's input in pixels · max_stride:
    sides of the input are multiples of it · hparams: its options by name.
    """

    @property
    def names(self) -> list[str]: ...

    @property
    def image_size(self) -> int: ...

    @property
    def max_stride(self) -> int: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def hparams(self) -> Any: ...

    def prepare(self, tta: bool) -> None:
        """Make ready for inference, with test-time augmentation if wanted."""

    def predict_batch(
        self, batch: Batch, thresholds: NMSThresholds, at_once: int | None = None
    ) -> tuple[list[np.ndarray], Any]:
        """Per image (n, 6) float32: x1, y1, x2, y2 in pixels of the image, score, class; and the
        raw prediction or None."""


@torch.inference_mode()
def predict(
    detector: Predicting,
    images: Images,
    conf: float = 0.25,
    iou: float = 0.45,
    max_det: int = 1000,
    agnostic: bool = False,
    classes: Sequence[int | str] | None = None,
    image_size: int | None = None,
    tta: bool = False,
    tiled: bool = False,
    tile_size: int | None = None,
    tile_overlap: float = 0.2,
    batch_size: int = 16,
    precision: str = "16-mixed",
) -> Detections | list[Detections]:
    """The objects in images; the numbers are those of `cli.py predict` on the same images with the
    same options.

    Args:
        images: one or a list of: path of an image file, (H, W, 3) uint8 RGB array ((H, W): grey),
            PIL image.
        conf, iou, max_det, agnostic: see Detector.
        classes: only these, by name or number.
        image_size: longer side of the network's input in pixels; default: that of the training.
        tta: predict three times on each image, at several sizes and mirrored.
        tiled: predict on large images whole and in tiles of tile_size pixels (default: image_size)
            that overlap by tile_overlap.
        batch_size: most images, or tiles of one, that go through the network together.
        precision: 16-mixed or 32-true; without a GPU it is float32 either way.

    Returns:
        Detections, or a list of them if `images` is a list; see there for units.

    Raises:
        InputError: something that is no image, a class or a precision that does not exist.
    """
    numbers = class_numbers(classes, detector.names)
    thresholds = NMSThresholds(
        conf, iou, max_det, agnostic, numbers, rounded=detector.hparams["literal"]
    )
    one = isinstance(images, str | Path | np.ndarray | Image.Image)
    given: Sequence[Picture] = [images] if one else images  # type: ignore[assignment, list-item]
    stride = max(detector.max_stride, 32)
    size = round_up(image_size or detector.image_size, stride)
    tiling = Tiling(tile_size or size, tile_overlap, size, stride) if tiled else None
    detector.prepare(tta)
    found = [Detections.of(np.zeros((0, 6), np.float32), detector.names)] * len(given)
    for batch in _batches(given, size, stride, batch_size, tiling):
        batch = finish_on_device(batch._replace(images=batch.images.to(detector.device)))
        with autocast(precision, detector.device):
            rows, _ = detector.predict_batch(batch, thresholds, at_once=batch_size)
        for index, own in zip(batch.indices, rows, strict=True):
            found[index] = Detections.of(own, detector.names)
    return found[0] if one else found


def _batches(
    pictures: Sequence[Picture], size: int, stride: int, batch_size: int, tiling: Tiling | None
) -> Iterator[Batch]:
    """As the loader of `cli.py predict` makes them; a picture is read when its turn comes."""
    if not pictures:
        return
    if tiling:
        for i, picture in enumerate(pictures):
            yield tiled_batch(_sample(picture, i), tiling)
        return
    sizes = np.array([_size(p) for p in pictures])
    inputs = EvaluationInput(size, stride)
    batches, shapes = inputs.batches(sizes, batch_size)
    for batch in batches:
        yield collate(
            [inputs.sample(_sample(pictures[i], i), tuple(shapes[i].tolist())) for i in batch]
        )


def _size(picture: Picture) -> tuple[int, int]:
    """(height, width) in pixels, without decoding a file."""
    if isinstance(picture, str | Path):
        (size,) = image_sizes([picture])
        if isinstance(size, str):
            raise InputError(f"{picture}: {size}")
        return size
    if isinstance(picture, Image.Image):  # as it will be turned
        _check_size(picture)
        on_its_side = picture.getexif().get(ORIENTATION) in ON_ITS_SIDE
        return (picture.width, picture.height) if on_its_side else (picture.height, picture.width)
    _check(picture)
    return picture.shape[0], picture.shape[1]


def _sample(picture: Picture, index: int) -> Sample:
    if isinstance(picture, str | Path):
        pixels = read_image(picture)
    elif isinstance(picture, Image.Image):
        _check_size(picture)
        pixels = np.asarray(ImageOps.exif_transpose(picture).convert("RGB"))
    else:
        _check(picture)
        pixels = picture if picture.ndim == 3 else np.repeat(picture[..., None], 3, 2)
    return unlabelled(pixels, index)


def _check_size(picture: Image.Image) -> None:
    """It may come from a file that is not decoded yet, and even a PNG's EXIF data is read behind
    its pixels."""
    try:
        check_pixels(*picture.size)
    except TooManyPixels as e:
        raise InputError(f"{e}") from None


def _check(array: object) -> None:
    if not isinstance(array, np.ndarray):
        raise InputError(f"predict takes paths, arrays and PIL images, not {type(array).__name__}")
    if (
        array.dtype != np.uint8
        or array.ndim not in (2, 3)
        or (array.ndim == 3 and array.shape[2] != 3)
        or not array.size
    ):
        raise InputError(
            f"predict takes arrays of shape (H, W, 3), uint8 RGB, not {array.shape} {array.dtype}"
        )
