"""What `predict` looks at: image files, and videos or a stream."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch.utils.data import DataLoader

from boltbox.detector.data.datasets import DetectionDataset
from boltbox.detector.data.images import image_sizes
from boltbox.detector.data.inputs.frames import Frames
from boltbox.detector.data.inputs.sources import Sources
from boltbox.detector.data.report import DataReport, Fault
from boltbox.detector.data.sample import Batch, Labels, Picture, Sample
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.rank_zero import rank_zero_print


class PredictionImages:
    """
    Args:
        source: `data.source`. names: of the classes. processes: that predict together.

    Attributes:
        sources: the files · dataset: the images among them, without labels.

    Raises:
        InputError: there is nothing usable.
    """

    def __init__(self, source: str | None, names: list[str], processes: int) -> None:
        if source is None:
            raise InputError(
                "nothing to predict on: give --data.source with an image, a folder, a video, a"
                " stream, ..."
            )
        self.sources = Sources.find(source)
        if self.sources.moving() and processes > 1:
            raise InputError(
                f"data.source {source}: a video is processed by one device; leave trainer.devices"
                " out"
            )
        self.dataset = open_images(self.sources.images, names)
        if not len(self.dataset) and not self.sources.moving():
            raise InputError(
                f"data.source {source}: none of its {len(self.sources.images)} files is a usable"
                " image"
            )
        self.sources.images = self.dataset.files
        self._names: list[str] = []

    def pictures(self, batch: Batch) -> list[Picture]:
        """What the images of a batch are."""
        if batch.pictures is not None:
            return batch.pictures
        self._names = self._names or self.sources.names()[0]
        return [Picture(self._names[i], self.sources.images[i]) for i in batch.indices]

    def frames(
        self, step: int, batch_size: int, prepare: Callable[[list[Sample]], Batch]
    ) -> DataLoader:
        """Every step-th frame of the videos or, of a stream, the newest one."""
        moving, sources = self.sources.moving(), self.sources
        alone = len(moving) == 1 and not sources.images
        live = sources.stream is not None
        frames = Frames(moving, sources.names()[1], live, step, batch_size, prepare, alone)
        return DataLoader(frames, batch_size=None, collate_fn=_unchanged)


def _unchanged(batch: Any) -> Any:
    """torch would make tensors of its arrays."""
    return batch


def open_images(files: Sequence[str], names: list[str]) -> DetectionDataset:
    """The usable ones of these image files, without labels; the others are named. names: of the
    classes."""
    report, kept, labels = DataReport(), [], []
    for file, size in zip(files, image_sizes(files), strict=True):
        if isinstance(size, str):
            rank_zero_print(f"left out: {Fault(file, '', size)}")
        else:
            kept.append(file)
            labels.append(Labels.of(np.zeros((0, 4)), np.zeros(0), *size))
    return DetectionDataset(kept, labels, names, report)
