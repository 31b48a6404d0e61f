"""Pictures to predict on: one that turns out to be unreadable is named and left out, the others
count."""

from collections.abc import Sequence
from typing import Any

import torch

from boltbox.detector.data.sample import Batch, Sample, collate
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.rank_zero import rank_zero_print


class Readable:
    """Items of `samples`, or None for those that cannot be read."""

    def __init__(self, samples: Any) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        try:
            return self.samples[index]
        except InputError as e:
            rank_zero_print(f"left out: {e}")
            return None


def collate_readable(items: Sequence[Sample | Batch | None]) -> Batch:
    """Samples -> Batch; a batch of its own (data/inputs/tiled.py) stays. It is empty if none could
    be read."""
    read = [item for item in items if item is not None]
    if not read:
        return Batch(torch.empty((0, 3, 1, 1), dtype=torch.uint8), torch.zeros(0, 6), [], [], [])
    if isinstance(read[0], Batch):
        assert len(read) == 1, "the tiles of one image are a batch"
        return read[0]
    return collate([item for item in read if isinstance(item, Sample)])
