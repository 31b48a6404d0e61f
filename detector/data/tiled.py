"""One image as several inputs of the network: the whole, and overlapping tiles. See detector/data/tiles.py."""

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from detector.data.datasets import DetectionDataset
from detector.data.sample import Batch, Sample, collate
from detector.data.tiles import tile_windows
from detector.data.transforms.letterbox import batch_shapes, letterbox_sample, resize_longest


class Tiling(NamedTuple):
    """size: side of a tile in pixels of the image file · overlap: least share of a tile that neighbours have in common ·
    input_size: longer side of the network's input in pixels · stride: its sides are multiples of it."""

    size: int
    overlap: float
    input_size: int
    stride: int


def tiled_batch(sample: Sample, tiling: Tiling) -> Batch:
    """The whole image, then its tiles, all of one shape; just the whole image if it is not larger than a tile."""
    height, width = sample.size
    bare = replace(sample, boxes=np.zeros((0, 4), np.float32), classes=np.zeros(0, np.int64), polygons=[])
    windows = np.array([(0, 0, width, height)])
    if max(height, width) > tiling.size:
        tiles = tile_windows(height, width, tiling.size, tiling.overlap)
        gain = tiling.input_size / tiling.size
        sides = (tiles[0, 3] - tiles[0, 1], tiles[0, 2] - tiles[0, 0])
        shape = tuple(math.ceil(side * gain / tiling.stride) * tiling.stride for side in sides)
        windows = np.concatenate((windows, tiles))
        looks = [letterbox_sample(_cut(bare, tile), shape, scaleup=gain > 1) for tile in tiles.tolist()]
    else:
        rectangle = np.array([(height, width)])
        shape = tuple(batch_shapes(rectangle, np.zeros(1, int), tiling.input_size, tiling.stride, 0.0)[0].tolist())
        looks = []
    whole = letterbox_sample(resize_longest(sample, min(tiling.input_size, max(shape)), smooth=True), shape, scaleup=False)
    batch = collate([whole, *looks])
    return batch._replace(indices=[sample.index], truths=[sample.truth], windows=windows)


def whole(batch: Batch) -> Batch:
    """Of a batch of tiles the look at the whole image, as other batches are: floats in 0..1, with the labels. Others stay."""
    if batch.windows is None:
        return batch
    return batch._replace(images=batch.images[:1].float() / 255, frames=batch.frames[:1], windows=None)


def _cut(sample: Sample, tile: list[int]) -> Sample:
    """What a tile shows, with the way back to the file."""
    x1, y1, x2, y2 = tile
    assert sample.frame is not None
    pixels = np.ascontiguousarray(sample.image[y1:y2, x1:x2])
    return replace(sample, image=pixels, frame=sample.frame.moved(1, 1, -x1, -y1))


class TiledSamples:
    """The images of a data set, each as a batch of its own; item i is that of the i-th."""

    def __init__(self, dataset: DetectionDataset, tiling: Tiling) -> None:
        self.dataset, self.tiling = dataset, tiling

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Batch:
        sample = self.dataset[index]
        sample.truth = self.dataset.labels[index]
        return tiled_batch(sample, self.tiling)
