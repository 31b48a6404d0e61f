"""Images of any kind that are predicted on: files, arrays, PIL images."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image as PIL
from PIL import ImageOps

from boltbox.detector.data.images import image_sizes, read_image
from boltbox.detector.data.inputs.evaluation_input import EvaluationInput, unlabelled
from boltbox.detector.data.sample import Batch, Sample
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.rank_zero import rank_zero_print

Image = str | Path | np.ndarray | PIL.Image


class Pictures:
    """Images as the network's input; item i is the i-th, read when its turn comes: a Sample, or the
    Batch of its tiles.

    Args:
        images: files, (H, W, 3) uint8 RGB or (H, W) arrays, PIL images.
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
        batch_size: int,
        lenient: bool = False,
    ) -> None:
        self.images, self.inputs, self.lenient = [*map(_path_or_pixels, images)], inputs, lenient
        self.shapes = np.zeros((len(images), 2), int)
        files = [image for image in self.images if isinstance(image, str | Path)]
        of_files = iter(image_sizes(files))
        sizes = [i.shape[:2] if isinstance(i, np.ndarray) else next(of_files) for i in self.images]
        usable = [i for i, size in enumerate(sizes) if not isinstance(size, str)]
        for image, size in zip(self.images, sizes, strict=True):
            if isinstance(size, str):
                self._leave_out(f"{image}: {size}")
        known = np.array([sizes[i] for i in usable]).reshape(-1, 2)
        batches, self.shapes[usable] = inputs.batches(known, batch_size)
        self.batches = [[usable[i] for i in batch] for batch in batches]

    def __getitem__(self, index: int) -> Sample | Batch | None:
        image, (height, width) = self.images[index], self.shapes[index].tolist()
        try:
            pixels = image if isinstance(image, np.ndarray) else read_image(image)
        except InputError as e:
            self._leave_out(str(e))
            return None
        return self.inputs.sample(unlabelled(pixels, index), (height, width))

    def _leave_out(self, why: str) -> None:
        if not self.lenient:
            raise InputError(why)
        rank_zero_print(f"left out: {why}")


def _path_or_pixels(image: object) -> str | Path | np.ndarray:
    """A file, or pixels (H, W, 3) uint8 RGB."""
    if isinstance(image, str | Path):
        return image
    if isinstance(image, PIL.Image):
        return np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
    if isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.size:
        pixels = np.repeat(image[..., None], 3, 2) if image.ndim == 2 else image
        if pixels.ndim == 3 and pixels.shape[2] == 3:
            return pixels
    raise InputError(
        "predict takes paths, PIL images and arrays of shape (H, W, 3), uint8 RGB, not"
        f" {type(image).__name__} {getattr(image, 'shape', '')} {getattr(image, 'dtype', '')}"
    )
