"""What a split of a data set held when a checkpoint was written, small enough to be kept in it."""

import os
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from boltbox.detector.data.cache.labels import states
from boltbox.detector.data.datasets import DetectionDataset


def fingerprints(datasets: Mapping[str, DetectionDataset], root: Path) -> dict[str, Tensor]:
    """Of the data that is trained and validated on, by split: (n, 3) int32 of the images in their
    order, checksums of the name below `root`, of the labels, and of the picture (file size, height,
    width). Pictures are not opened."""
    return {split: torch.tensor(_checksums(datasets[split], root)) for split in ("train", "val")}


def _checksums(dataset: DetectionDataset, root: Path) -> np.ndarray:
    pictures = np.column_stack((states(dataset.files)[:, 0], dataset.labels.sizes))
    rows = np.empty((len(dataset), 3), np.uint32)
    for i, (path, labels) in enumerate(zip(dataset.files, dataset.labels, strict=True)):
        points = [part for parts in labels.polygons for part in parts]
        arrays = (labels.boxes, labels.classes, labels.crowd, *points)
        content = b"".join(array.tobytes() for array in arrays)
        name = os.fsencode(path.removeprefix(f"{root}/"))
        rows[i] = zlib.crc32(name), zlib.crc32(content), zlib.crc32(pictures[i].tobytes())
    return rows.view(np.int32)


def all_changes(before: Mapping[str, Tensor], now: Mapping[str, Tensor]) -> str:
    """In what they differ, like "train: 2 removed; val: 1 added"; an empty string if in nothing."""
    found = {split: _changes(before[split].tolist(), now[split].tolist()) for split in now}
    return "; ".join(f"{split}: {words}" for split, words in found.items() if words)


def _changes(before: list[list[int]], now: list[list[int]]) -> str:
    """In what the rows differ, with numbers of images; an empty string if in nothing."""
    if before == now:
        return ""
    old, new = ({name: row for name, *row in rows} for rows in (before, now))
    both = old.keys() & new.keys()
    counts = {
        "added": len(new.keys() - old.keys()),
        "removed": len(old.keys() - new.keys()),
        "with other labels": sum(old[name][0] != new[name][0] for name in both),
        "with another picture": sum(old[name][1] != new[name][1] for name in both),
    }
    words = [f"{count} {what}" for what, count in counts.items() if count]
    return ", ".join(words) or "listed in another order"
