"""Lazy images: their objects are in place, their pixels are read when they are rendered."""

import cv2
import numpy as np

from boltbox.detector.data.datasets import DetectionDataset
from boltbox.detector.data.sample import Patch, Sample
from boltbox.detector.data.transforms.letterbox import Resize, longest_shape, scaled


class LazyImages:
    """The images of a data set as `Resize` makes them, with their pixels still to be rendered
    (render.py). The objects of all images are scaled at once, when this is made.

    Args:
        dataset: its images and labels.
        resize: to which size, and how much of a JPEG file must be decoded.
    """

    def __init__(self, dataset: DetectionDataset, resize: Resize) -> None:
        self.dataset, self.resize = dataset, resize
        self.labels = dataset.labels.scaled(
            [longest_shape(h, w, resize.size) for h, w in dataset.shapes().tolist()]
        )

    def __getitem__(self, i: int) -> Sample:
        height, width = self.labels.sizes[i].tolist()
        whole = Patch(Pixels(self, i), 0, 0, width, height)
        return Sample(
            np.empty((height, width, 0), np.uint8),
            *self.labels.counted(i),
            index=i,
            patches=[whole],
        )

    def read(self, i: int) -> np.ndarray:
        """(H, W, 3) uint8 RGB of image i."""
        height, width = self.labels.sizes[i].tolist()
        pixels = self.dataset.read(i, self.resize.size if self.resize.reduced else 0)
        return scaled(pixels, width, height, cv2.INTER_LINEAR)


class Pixels:
    """Those of an image, read when they are first asked for and kept as long as a lazy image needs
    them."""

    __slots__ = ("images", "index", "pixels")

    def __init__(self, images: LazyImages, index: int) -> None:
        self.images, self.index = images, index
        self.pixels: np.ndarray | None = None

    def __call__(self) -> np.ndarray:
        if self.pixels is None:
            self.pixels = self.images.read(self.index)
        return self.pixels
