"""The one way from an image to the network's input and back where nothing is trained: validation,
predict, the Python API, videos and tiles.

    pixels -> unlabelled -> EvaluationInput.sample -> collate -> Batch -> finish_on_device ->
    network boxes in its pixels -> LetterboxInfo.to_file -> boxes in the file's pixels
"""

from typing import NamedTuple

import numpy as np

from boltbox.detector.data.datasets import DetectionDataset
from boltbox.detector.data.loading.sampler import rectangular_batches
from boltbox.detector.data.sample import Batch, LetterboxInfo, Sample, collate
from boltbox.detector.data.transforms.letterbox import Resize, batch_shapes, letterbox_sample


class EvaluationInput(NamedTuple):
    """How images become the network's input.

    size: longer side in pixels · stride: both sides are multiples of it · pad: extra, in strides ·
    fixed: (height, width) of every input, if the network takes no other.
    """

    size: int
    stride: int
    pad: float = 0.0
    fixed: tuple[int, int] | None = None

    @property
    def resize(self) -> Resize:
        """The first step; the image cache stores what it makes."""
        return Resize(self.size, smooth=True)

    def shape(self, height: int, width: int) -> tuple[int, int]:
        """(height, width) in pixels of the input for an image of this size, alone in its batch."""
        if self.fixed:
            return self.fixed
        rows, columns = batch_shapes(
            np.array([(height, width)]), np.zeros(1, int), self.size, self.stride, self.pad
        )[0].tolist()
        return rows, columns

    def batches(
        self, sizes: np.ndarray, most: int, stable: bool = True
    ) -> tuple[list[list[int]], np.ndarray]:
        """Images in batches of like aspect ratio.

        Args:
            sizes: (n, 2) height and width of every image in pixels.
            most: images a batch.
            stable: see `rectangular_batches`.

        Returns:
            batches of image numbers; (n, 2) height and width in pixels of the input for each image.
        """
        batches, shapes = rectangular_batches(sizes, self.size, most, self.stride, self.pad, stable)
        return batches, np.tile(self.fixed, (len(sizes), 1)) if self.fixed else shapes

    def sample(self, sample: Sample, shape: tuple[int, int]) -> Sample:
        """Scaled so that its longer side has `size` pixels, then centred on grey of `shape`
        (height, width)."""
        return letterbox_sample(self.resize(sample), shape, scaleup=False)

    def batch(self, samples: list[Sample]) -> Batch:
        """Images of one size, as predictions on files of that size see them."""
        shape = self.shape(*samples[0].size)
        return collate([self.sample(sample, shape) for sample in samples])


class EvaluationSamples:
    """The images of a data set as the network's input, their labels as `truth`; item i is the i-th.

    Args:
        inputs: how.
        shapes: (n, 2) height and width in pixels for each image, of `EvaluationInput.batches`.
    """

    def __init__(
        self, dataset: DetectionDataset, inputs: EvaluationInput, shapes: np.ndarray
    ) -> None:
        self.dataset, self.inputs, self.shapes = dataset, inputs, shapes

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Sample:
        height, width = self.shapes[index].tolist()
        return self.inputs.sample(self.dataset.with_truth(index), (height, width))


def unlabelled(pixels: np.ndarray, index: int) -> Sample:
    """An image that nothing is known of. pixels: (H, W, 3) uint8 RGB. index: its number among those
    that are asked for."""
    height, width = pixels.shape[:2]
    none = np.zeros((0, 4), np.float32), np.zeros(0, np.int64)
    return Sample(pixels, *none, letterbox=LetterboxInfo(height, width), index=index)
