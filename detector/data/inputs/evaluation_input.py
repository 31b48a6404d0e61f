"""From an image to the network's input and back, wherever nothing is trained: validation, predict,
the Python API, videos and tiles.

    pixels -> unlabelled -> EvaluationInput.sample -> collate -> Batch -> finish_on_device ->
    network boxes in its pixels -> LetterboxInfo.to_file -> boxes in the file's pixels
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from boltbox.detector.data.cache.images import ResizedImages
from boltbox.detector.data.inputs.tiles import Tiles, tile_windows
from boltbox.detector.data.sample import IGNORED, Batch, LetterboxInfo, Sample, collate
from boltbox.detector.data.transforms.letterbox import (
    letterbox_sample,
    rectangular_batches,
    render,
    resize_longest,
)


class EvaluationInput(NamedTuple):
    """How images become the network's input.

    Attributes:
        size: longer side in pixels.
        stride: both sides are multiples of it.
        pad: extra, in strides.
        fixed: (height, width) of every input, for a network that takes no other.
        tiles: An image that is larger becomes a batch of windows: the full image and its tiles.
            None: no tiles.
    """

    size: int
    stride: int
    pad: float = 0.0
    fixed: tuple[int, int] | None = None
    tiles: Tiles | None = None

    def batches(
        self, sizes: np.ndarray, batch_size: int, stable: bool = True
    ) -> tuple[list[list[int]], np.ndarray]:
        """Images in batches of similar aspect ratio; with tiles, one by one.

        Args:
            sizes: (n, 2) height and width of every image in pixels.
            batch_size: maximum images per batch.
            stable: see `rectangular_batches`.

        Returns:
            batches: of image numbers.
            shapes: (n, 2) height and width in pixels of each image's input.
        """
        if self.tiles or len(sizes) == 0:
            return [[i] for i in range(len(sizes))], sizes
        batches, shapes = rectangular_batches(
            sizes, self.size, batch_size, self.stride, self.pad, stable
        )
        if self.fixed:
            shapes = np.tile(self.fixed, (len(sizes), 1))
        return batches, shapes

    @property
    def ahead(self) -> int:
        """Batches that a worker makes before they are asked for; large images need memory."""
        return 1 if self.tiles else 4

    def sample(self, sample: Sample, shape: tuple[int, int]) -> Sample | Batch:
        """One image as the network's input.

        Args:
            sample: the image.
            shape: (height, width) of `batches`.

        Returns:
            The image scaled so that its longer side has `size` pixels, then centred on grey of
            `shape`. With tiles: a batch of windows.
        """
        if self.tiles:
            return self._windows(sample, *self.tiles)
        resized = resize_longest(sample, self.size)
        return letterbox_sample(resized, shape, scaleup=False)

    def batch(self, samples: list[Sample]) -> Batch:
        """Images of one size as the network's input."""
        sizes = np.array([sample.size for sample in samples])
        _, shapes = self.batches(sizes, len(samples))
        height, width = shapes[0].tolist()
        return collate([self.sample(sample, (height, width)) for sample in samples])

    def _windows(self, sample: Sample, tile: int, overlap: float) -> Batch:
        """The full image, with its pixels and its tiles, all of one shape, if it is larger than a
        tile."""
        height, width = sample.size
        full_window = np.array([(0, 0, width, height)])
        if max(height, width) <= tile:
            untiled = self._replace(pad=0.0, tiles=None)
            return untiled.batch([sample])._replace(windows=full_window)
        tiles = tile_windows(height, width, tile, overlap)
        shape = self.fixed
        if shape is None:
            sides = (tiles[0, 2:] - tiles[0, :2]) * (self.size / tile)
            to_width, to_height = np.ceil(sides / self.stride).astype(int).tolist()
            shape = (to_height * self.stride, to_width * self.stride)
        full = resize_longest(sample, min(self.size, max(shape)))
        batch = collate([letterbox_sample(full, shape, scaleup=False)])
        pixels = torch.from_numpy(sample.image)
        return batch._replace(windows=np.concatenate((full_window, tiles)), pixels=pixels)


@dataclass
class EvaluationSamples:
    """The images of a dataset as the network's input, with their labels as `truth`; with tiles,
    batches of windows.

    Args:
        images: resized to the longer side of `inputs`.
        inputs: how they become the network's input.
        shapes: (n, 2) height and width in pixels, of `EvaluationInput.batches`.
    """

    images: ResizedImages
    inputs: EvaluationInput
    shapes: np.ndarray

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Sample | Batch:
        height, width = self.shapes[index].tolist()
        dataset = self.images.dataset
        truth = dataset.labels[index]  # as in the files, crowd regions too
        if self.inputs.tiles:
            return self.inputs.sample(dataset[index].replace(truth=truth), (height, width))
        sample = letterbox_sample(self.images[index], (height, width), scaleup=False)
        return render(sample).replace(truth=truth)


def examples(images: ResizedImages, inputs: EvaluationInput, number: int) -> Iterator[Batch]:
    """Up to `number` of the training samples with objects, spread over the dataset, each as a
    batch."""
    _, shapes = inputs.batches(images.sample_sizes, 1)
    has_objects = np.diff(images.dataset.labels.starts)[images.image_of] > 0
    with_objects = np.flatnonzero(has_objects)
    step = math.ceil(len(with_objects) / number)
    for i in with_objects[:: max(step, 1)].tolist():
        sample = images.sample(i, np.random.default_rng(i))
        if (sample.classes != IGNORED).any():
            height, width = shapes[i].tolist()
            sample = letterbox_sample(sample, (height, width), scaleup=False)
            yield collate([render(sample)])


def tile_samples(batch: Batch, start: int, stop: int) -> list[Sample]:
    """Some of the tiles of a large image as the network's input.

    Args:
        batch: of `EvaluationInput.sample`.
        start: number of the first window; 0 is the full image.
        stop: number after the last one.
    """
    samples = []
    if batch.windows is not None and batch.pixels is not None:
        height, width = batch.images.shape[2:]
        image = batch.pixels.cpu().numpy()
        for x1, y1, x2, y2 in batch.windows[start:stop].tolist():
            pixels = np.ascontiguousarray(image[y1:y2, x1:x2])
            tile = unlabelled(image, 0).moved(pixels, (1, 1), (-x1, -y1))
            samples.append(letterbox_sample(tile, (height, width), scaleup=True))
    return samples


def unlabelled(pixels: np.ndarray, index: int) -> Sample:
    """A sample without labels.

    Args:
        pixels: (H, W, 3) uint8 RGB.
        index: number of the image.
    """
    height, width = pixels.shape[:2]
    return Sample(
        pixels,
        boxes=np.zeros((0, 4), np.float32),
        classes=np.zeros(0, np.int64),
        letterbox=LetterboxInfo(height, width),
        index=index,
    )
