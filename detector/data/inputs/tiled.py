"""One image as several inputs of the network: the whole, and overlapping tiles. See
detector/data/inputs/tiles.py."""

import math
from typing import NamedTuple

import numpy as np

from boltbox.detector.data.datasets import DetectionDataset
from boltbox.detector.data.device import to_floats
from boltbox.detector.data.inputs.evaluation_input import EvaluationInput
from boltbox.detector.data.inputs.tiles import tile_windows
from boltbox.detector.data.sample import Batch, Sample, collate
from boltbox.detector.data.transforms.letterbox import letterbox_sample


class Tiling(NamedTuple):
    """size: side of a tile in pixels of the image file · overlap: least share of a tile that
    neighbours have in common · input_size: longer side of the network's input in pixels · stride:
    its sides are multiples of it."""

    size: int
    overlap: float
    input_size: int
    stride: int

    @classmethod
    def of(cls, inputs: EvaluationInput, size: int | None, overlap: float) -> "Tiling":
        """Tiles that become such inputs; size: default: that of the input."""
        return cls(size or inputs.size, overlap, inputs.size, inputs.stride)


def tiled_batch(sample: Sample, tiling: Tiling) -> Batch:
    """The whole image, then its tiles, all of one shape; just the whole image if it is not larger
    than a tile."""
    height, width = sample.size
    inputs = EvaluationInput(tiling.input_size, tiling.stride)
    windows, tiles = np.array([(0, 0, width, height)]), []
    if max(height, width) > tiling.size:
        unlabelled = sample.replace(
            boxes=np.zeros((0, 4), np.float32), classes=np.zeros(0, np.int64), polygons=[]
        )
        corners = tile_windows(height, width, tiling.size, tiling.overlap)
        gain = tiling.input_size / tiling.size
        x1, y1, x2, y2 = corners[0].tolist()
        shape = (
            _multiple((y2 - y1) * gain, tiling.stride),
            _multiple((x2 - x1) * gain, tiling.stride),
        )
        windows = np.concatenate((windows, corners))
        tiles = [
            letterbox_sample(_cut(unlabelled, tile), shape, scaleup=gain > 1)
            for tile in corners.tolist()
        ]
        # the whole is as large as its tiles
        inputs = inputs._replace(size=min(tiling.input_size, max(shape)))
    else:
        shape = inputs.shape(height, width)
    batch = collate([inputs.sample(sample, shape), *tiles])
    return batch._replace(indices=[sample.index], truths=[sample.truth], windows=windows)


def _multiple(length: float, stride: int) -> int:
    return math.ceil(length / stride) * stride


def whole(batch: Batch) -> Batch:
    """Of a batch of tiles the whole image, as other batches are: floats in 0..1, with the labels.
    Others stay."""
    if batch.windows is None:
        return batch
    return batch._replace(
        images=to_floats(batch.images[:1]), letterboxes=batch.letterboxes[:1], windows=None
    )


def _cut(sample: Sample, tile: list[int]) -> Sample:
    """What a tile shows, with the way back to the file."""
    x1, y1, x2, y2 = tile
    assert sample.letterbox is not None
    pixels = np.ascontiguousarray(sample.image[y1:y2, x1:x2])
    return sample.replace(image=pixels, letterbox=sample.letterbox.moved(1, 1, -x1, -y1))


class TiledSamples:
    """The images of a data set, each as a batch of its own; item i is that of the i-th."""

    def __init__(self, dataset: DetectionDataset, tiling: Tiling) -> None:
        self.dataset, self.tiling = dataset, tiling

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Batch:
        return tiled_batch(self.dataset.with_truth(index), self.tiling)
