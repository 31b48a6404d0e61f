"""The frames of videos as batches, one after the other."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from torch.utils.data import IterableDataset

from detector.data.sample import Batch, LetterboxInfo, Picture, Sample, collate
from detector.data.transforms.augment import validation_steps
from detector.data.transforms.letterbox import batch_shapes
from detector.data.video import Video
from detector.system.errors import InputError
from detector.system.rank_zero import rank_zero_print


class Frames(IterableDataset):
    """Batches of frames of equal size; no batch holds frames of two videos.

    Args:
        videos: files, or one stream. names: what the output of each is called.
        live: the stream's newest frame each time, one a batch.
        step: every step-th frame. batch_size: most frames a batch.
        prepare: frames (n samples of one size) -> Batch.
        alone: there is nothing else to predict on: a video that cannot be used is an error, else it is named and left out.
    """

    def __init__(
        self,
        videos: Sequence[str],
        names: Sequence[str],
        live: bool,
        step: int,
        batch_size: int,
        prepare: Callable[[list[Sample]], Batch],
        alone: bool = True,
    ) -> None:
        self.videos, self.names, self.live, self.step = videos, names, live, step
        self.batch_size, self.prepare, self.alone = 1 if live else batch_size, prepare, alone

    def __iter__(self) -> Iterator[Batch]:
        for path, name in zip(self.videos, self.names, strict=True):
            try:
                yield from self._batches(path, name)
            except InputError as e:
                if self.alone:
                    raise
                rank_zero_print(f"left out: {e}")

    def _batches(self, path: str, name: str) -> Iterator[Batch]:
        video = Video(path, self.step, self.live)
        waiting: list[Picture] = []
        for number, pixels in video:
            picture = Picture(name, video.source, number, pixels, video.fps)
            if waiting and waiting[0].pixels.shape != pixels.shape:  # type: ignore[union-attr]
                yield self._batch(waiting)
                waiting = []
            waiting.append(picture)
            if len(waiting) == self.batch_size:
                yield self._batch(waiting)
                waiting = []
        if waiting:
            yield self._batch(waiting)

    def _batch(self, pictures: list[Picture]) -> Batch:
        samples = []
        for i, picture in enumerate(pictures):
            assert picture.pixels is not None
            height, width = picture.pixels.shape[:2]
            none = np.zeros((0, 4), np.float32), np.zeros(0, np.int64)
            samples.append(Sample(picture.pixels, *none, frame=LetterboxInfo(height, width), index=i))
        return self.prepare(samples)._replace(pictures=pictures)


def letterboxed(samples: list[Sample], size: int, stride: int, fixed: tuple[int, int] | None = None) -> Batch:
    """Samples of one size as predictions on files of that size see them.

    Args:
        size: longer side in pixels. fixed: (height, width) of the network's input, if it takes no other.
    """
    shapes = np.array([s.size for s in samples])
    per_sample = batch_shapes(shapes, np.zeros(len(shapes), int), size, stride, 0.0)[np.zeros(len(shapes), int)]
    resize, box = validation_steps(size, np.tile(fixed, (len(samples), 1)) if fixed else per_sample)
    return collate([box(resize(s, None, None), None, None) for s in samples])
