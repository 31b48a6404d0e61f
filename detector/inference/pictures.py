"""Images of any kind that are given to a Predictor: files, arrays, PIL images."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image as PIL
from PIL import ImageOps
from torch.utils.data import Dataset

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
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.rank_zero import rank_zero_print

Image = str | Path | np.ndarray | PIL.Image


class Pictures(Dataset):
    """Images as the network's input; item i is the i-th, read when its turn comes: a Sample, or the
    Batch of its tiles.

    Args:
        images: files, (H, W, 3) uint8 RGB or (H, W) arrays, PIL images.
        tiling: how large images are cut.
        batch_size: most images a batch.
        lenient: name a file that cannot be read and leave it out (its item is None); else it is an
            error.

    Attributes:
        batches: of image numbers, of like aspect ratio.

    Raises:
        InputError: something that is no image.
    """

    def __init__(
        self,
        images: Sequence[Image],
        inputs: EvaluationInput,
        tiling: Tiling | None,
        batch_size: int,
        lenient: bool = False,
    ) -> None:
        self.images, self.inputs, self.tiling, self.lenient = images, inputs, tiling, lenient
        if tiling:
            self.batches = [[i] for i in range(len(images))]
        else:
            sizes = np.array([_size(image) for image in images]).reshape(-1, 2)
            self.batches, self.shapes = inputs.batches(sizes, batch_size) if images else ([], sizes)

    def __getitem__(self, index: int) -> Sample | Batch | None:
        try:
            sample = unlabelled(_pixels(self.images[index]), index)
        except InputError as e:
            if not self.lenient:
                raise
            rank_zero_print(f"left out: {e}")
            return None
        if self.tiling:
            return tiled_batch(sample, self.tiling)
        height, width = self.shapes[index].tolist()
        return self.inputs.sample(sample, (height, width))

    @staticmethod
    def collate(items: Sequence[Sample | Batch | None]) -> Batch:
        """Samples -> Batch, which is empty if none could be read; the tiles of an image are a batch
        already."""
        samples = [item for item in items if isinstance(item, Sample)]
        empty = Batch(torch.empty(0, 3, 1, 1, dtype=torch.uint8), torch.zeros(0, 6), [], [], [])
        ready = next((item for item in items if isinstance(item, Batch)), empty)
        return collate(samples) if samples else ready


def usable(files: Sequence[str]) -> list[str]:
    """Those of the files whose headers are those of images; the others are named."""
    sizes = image_sizes(files)
    for file, size in zip(files, sizes, strict=True):
        if isinstance(size, str):
            rank_zero_print(f"left out: {file}: {size}")
    return [file for file, size in zip(files, sizes, strict=True) if not isinstance(size, str)]


def _size(image: Image) -> tuple[int, int]:
    """(height, width) in pixels, without decoding a file."""
    if isinstance(image, str | Path):
        (size,) = image_sizes([image])
        if isinstance(size, str):
            raise InputError(f"{image}: {size}")
        return size
    if isinstance(image, PIL.Image):
        _check_pixels(image)
        on_its_side = image.getexif().get(ORIENTATION) in ON_ITS_SIDE
        return (image.width, image.height) if on_its_side else (image.height, image.width)
    return _array(image).shape[:2]


def _pixels(image: Image) -> np.ndarray:
    """(H, W, 3) uint8 RGB."""
    if isinstance(image, str | Path):
        return read_image(image)
    if isinstance(image, PIL.Image):
        _check_pixels(image)
        return np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
    return image if _array(image).ndim == 3 else np.repeat(image[..., None], 3, 2)


def _check_pixels(image: PIL.Image) -> None:
    """It may come from a file that is not decoded yet, and a PNG's EXIF data is read behind its
    pixels."""
    try:
        check_pixels(*image.size)
    except TooManyPixels as e:
        raise InputError(f"{e}") from None


def _array(image: object) -> np.ndarray:
    if not isinstance(image, np.ndarray):
        raise InputError(f"predict takes paths, arrays and PIL images, not {type(image).__name__}")
    colours = image.ndim == 2 or (image.ndim == 3 and image.shape[2] == 3)
    if image.dtype != np.uint8 or not colours or not image.size:
        raise InputError(
            f"predict takes arrays of shape (H, W, 3), uint8 RGB, not {image.shape} {image.dtype}"
        )
    return image
