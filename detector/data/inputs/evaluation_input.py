"""The one way from an image to the network's input and back where nothing is trained: validation,
predict, the Python API, videos and tiles.

    pixels -> unlabelled -> EvaluationInput.sample -> collate_items -> Batch -> finish_on_device ->
    network boxes in its pixels -> LetterboxInfo.to_file -> boxes in the file's pixels
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch

from boltbox.detector.data.cache.images import ResizedImages
from boltbox.detector.data.inputs.tiles import tile_windows
from boltbox.detector.data.sample import Batch, LetterboxInfo, Sample, collate, to_floats
from boltbox.detector.data.sampler import rectangular_batches
from boltbox.detector.data.transforms.letterbox import (
    letterbox_sample,
    resize_longest,
)


class EvaluationInput(NamedTuple):
    """How images become the network's input.

    size: longer side in pixels · stride: both sides are multiples of it · pad: extra, in strides ·
    fixed: (height, width) of every input, if the network takes no other · tile: an image that is
    larger, in pixels of its file, is given whole and in tiles of this side · overlap: least share
    of a tile that neighbours have in common.
    """

    size: int
    stride: int
    pad: float = 0.0
    fixed: tuple[int, int] | None = None
    tile: int | None = None
    overlap: float = 0.2

    def batches(
        self, sizes: np.ndarray, most: int, stable: bool = True
    ) -> tuple[list[list[int]], np.ndarray]:
        """Images in batches of like aspect ratio, or alone with their tiles.

        Args:
            sizes: (n, 2) height and width of every image in pixels.
            most: images a batch.
            stable: see `rectangular_batches`.

        Returns:
            batches of image numbers; (n, 2) height and width in pixels of the input for each image.
        """
        if self.tile or not len(sizes):
            return [[i] for i in range(len(sizes))], sizes
        batches, shapes = rectangular_batches(sizes, self.size, most, self.stride, self.pad, stable)
        return batches, np.tile(self.fixed, (len(sizes), 1)) if self.fixed else shapes

    def sample(self, sample: Sample, shape: tuple[int, int]) -> Sample | Batch:
        """Scaled so that its longer side has `size` pixels, then centred on grey of `shape`
        (height, width); or the image with its tiles."""
        if self.tile:
            return self._tiles(sample, self.tile)
        resized = resize_longest(sample, self.size)
        return letterbox_sample(resized, shape, scaleup=False)

    def batch(self, samples: list[Sample]) -> Batch:
        """Images of one size, as predictions on files of that size see them."""
        sizes = np.array([sample.size for sample in samples])
        (height, width), *_ = self.batches(sizes, len(samples))[1].tolist()
        return collate_items([self.sample(sample, (height, width)) for sample in samples])

    def _tiles(self, sample: Sample, tile: int) -> Batch:
        """The whole image, then its tiles, all of one shape; just the whole image if it is not
        larger than a tile."""
        height, width = sample.size
        windows = np.array([(0, 0, width, height)])
        if max(height, width) <= tile:
            inputs = EvaluationInput(self.size, self.stride, fixed=self.fixed)
            return inputs.batch([sample])._replace(windows=windows)
        corners, gain = tile_windows(height, width, tile, self.overlap), self.size / tile
        sides = (corners[0, 2:] - corners[0, :2]) * gain / self.stride
        to_width, to_height = (np.ceil(sides).astype(int) * self.stride).tolist()
        shape = self.fixed or (to_height, to_width)
        # the whole is as large as its tiles
        whole = resize_longest(sample, min(self.size, max(shape)))
        views = [letterbox_sample(whole, shape, scaleup=False)]
        nothing = sample.replace(boxes=sample.boxes[:0], classes=sample.classes[:0], polygons=[])
        for x1, y1, x2, y2 in corners.tolist():
            pixels = np.ascontiguousarray(sample.image[y1:y2, x1:x2])
            seen = nothing.moved(pixels, (1, 1), (-x1, -y1))
            views.append(letterbox_sample(seen, shape, scaleup=gain > 1))
        windows = np.concatenate((windows, corners))
        batch = collate(views)
        return batch._replace(indices=[sample.index], truths=[sample.truth], windows=windows)


class EvaluationSamples:
    """The images of a data set as the network's input, their labels as `truth`; item i is the i-th,
    or the batch of its tiles.

    Args:
        images: scaled as `EvaluationInput.sample` does. inputs: how.
        shapes: (n, 2) height and width in pixels for each image, of `EvaluationInput.batches`.
    """

    def __init__(self, images: ResizedImages, inputs: EvaluationInput, shapes: np.ndarray) -> None:
        self.images, self.inputs, self.shapes = images, inputs, shapes

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Sample | Batch:
        (height, width), dataset = self.shapes[index].tolist(), self.images.dataset
        truth = dataset.labels[index]  # as in the files, crowd regions too
        if self.inputs.tile:
            return self.inputs.sample(dataset[index].replace(truth=truth), (height, width))
        sample = letterbox_sample(self.images[index], (height, width), scaleup=False)
        return sample.replace(image=sample.image.render(), truth=truth)


def examples(images: ResizedImages, inputs: EvaluationInput, most: int) -> Iterator[Batch]:
    """Up to `most` of the images that have objects, spread over the data set, each a batch."""
    labels = images.dataset.labels
    samples = EvaluationSamples(images, inputs, inputs.batches(labels.sizes, 1)[1])
    shown = np.flatnonzero(np.diff(labels.starts))
    for i in shown[:: -(-len(shown) // most)].tolist():
        yield collate_items([samples[i]])


def collate_items(items: Sequence[Sample | Batch | None]) -> Batch:
    """Samples -> Batch, without those that could not be read; the tiles of an image are a batch
    already."""
    samples = [item for item in items if isinstance(item, Sample)]
    empty = Batch(torch.empty(0, 3, 1, 1, dtype=torch.uint8), torch.zeros(0, 6), [], [], [])
    ready = next((item for item in items if isinstance(item, Batch)), empty)
    return collate(samples) if samples else ready


def whole(batch: Batch) -> Batch:
    """Of a batch of tiles the whole image, as other batches are: floats in 0..1, with the labels.
    Others stay."""
    if batch.windows is None:
        return batch
    return batch._replace(
        images=to_floats(batch.images[:1]), letterboxes=batch.letterboxes[:1], windows=None
    )


def unlabelled(pixels: np.ndarray, index: int) -> Sample:
    """An image that nothing is known of. pixels: (H, W, 3) uint8 RGB. index: its number among those
    that are asked for."""
    height, width = pixels.shape[:2]
    none = np.zeros((0, 4), np.float32), np.zeros(0, np.int64)
    return Sample(pixels, *none, letterbox=LetterboxInfo(height, width), index=index)
