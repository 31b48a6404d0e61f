"""The frames of videos as batches, one after the other."""

from collections.abc import Iterator, Sequence

from boltbox.detector.data.inputs.evaluation_input import EvaluationInput, unlabelled
from boltbox.detector.data.inputs.tiled import Tiling, tiled_batch
from boltbox.detector.data.inputs.video import Video
from boltbox.detector.data.sample import Batch, Picture
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.rank_zero import rank_zero_print


class Frames:
    """Batches of frames of equal size; no batch holds frames of two videos.

    Args:
        videos: files, or one stream. names: what the output of each is called.
        live: the stream's newest frame each time, one a batch.
        step: every step-th frame. batch_size: most frames a batch; tiles of a frame are one.
        alone: there is nothing else to predict on: a video that cannot be used is an error, else it
            is named and left out.
    """

    def __init__(
        self,
        videos: Sequence[str],
        names: Sequence[str],
        live: bool,
        step: int,
        batch_size: int,
        inputs: EvaluationInput,
        tiling: Tiling | None,
        alone: bool = True,
    ) -> None:
        self.videos, self.names, self.live, self.step = videos, names, live, step
        self.batch_size = 1 if live or tiling else batch_size
        self.inputs, self.tiling, self.alone = inputs, tiling, alone

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
        samples = [
            unlabelled(picture.pixels, i)
            for i, picture in enumerate(pictures)
            if picture.pixels is not None
        ]
        batch = tiled_batch(samples[0], self.tiling) if self.tiling else self.inputs.batch(samples)
        return batch._replace(pictures=pictures)
