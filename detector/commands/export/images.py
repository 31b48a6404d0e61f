"""Images that an exported file is compared on, and that the ranges of int8 are measured on."""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from boltbox.detector.data.dataset_file import DatasetFile
from boltbox.detector.data.images import read_image
from boltbox.detector.data.transforms.letterbox import letterbox
from boltbox.detector.inference.exported import Metadata

MAXIMUM = 300  # files


def training_images(data: str) -> Sequence[str]:
    """Image files spread evenly over the training split of a dataset.

    Args:
        data: the dataset; without a training split, another one is used.

    Returns:
        Their paths.

    Raises:
        InputError: the dataset cannot be used.
    """
    file = DatasetFile.read(data)
    file.prepare()
    split = next(split for split in ("train", "val", "test") if split in file.splits)
    files = file.open(split).files
    return files[:: math.ceil(len(files) / MAXIMUM)]


def batches(files: Sequence[str], metadata: Metadata) -> Iterator[np.ndarray]:
    """Batches for a runtime; the last one is filled up with its first image.

    Args:
        files: images.
        metadata: with the size and batch of the exported file.

    Yields:
        float32 (B, 3, H, W) in 0..1.
    """
    for start in range(0, len(files), metadata.batch):
        images = [read_image(file) for file in files[start : start + metadata.batch]]
        images += [images[0]] * (metadata.batch - len(images))
        yield letterboxed(images, metadata.image_size)


def letterboxed(images: Sequence[np.ndarray], shape: tuple[int, int]) -> np.ndarray:
    """A batch of images.

    Args:
        images: (H, W, 3) uint8 each.
        shape: (height, width) of the batch.

    Returns:
        float32 (B, 3, height, width) in 0..1.
    """
    stack = np.stack([letterbox(image, shape)[0] for image in images])
    return np.ascontiguousarray(stack.transpose(0, 3, 1, 2), np.float32) / 255
