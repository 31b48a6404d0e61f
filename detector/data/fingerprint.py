"""What a split of a data set held when a checkpoint was written, small enough to be kept in it."""

from __future__ import annotations

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
    """Of the data that is trained and validated on, by split; see `fingerprint`."""
    return {
        split: torch.from_numpy(fingerprint(datasets[split], root)) for split in ("train", "val")
    }


def all_changes(before: Mapping[str, Tensor], now: Mapping[str, Tensor]) -> str:
    """In what they differ, like "train: 2 removed; val: 1 added"; an empty string if in nothing."""
    found = {split: changes(before[split].numpy(), now[split].numpy()) for split in now}
    return "; ".join(f"{split}: {words}" for split, words in found.items() if words)


def fingerprint(dataset: DetectionDataset, root: Path) -> np.ndarray:
    """(n, 3) int32 of the images in their order: checksums of the name below `root`, of the picture
    (file size, height, width), and of the labels. Pictures are not opened."""
    table, start = dataset.labels, f"{root}/"
    pictures = np.column_stack((states(dataset.files)[:, 0], table.sizes))
    points = table.point_starts[table.part_starts[table.starts]].tolist()
    rows = np.empty((len(dataset), 3), np.uint32)
    for i, name in enumerate(dataset.files):
        own = slice(*table.starts[i : i + 2].tolist())
        labels = 0
        for array in (
            table.boxes[own],
            table.classes[own],
            table.crowd[own],
            table.points[points[i] : points[i + 1]],
        ):
            labels = zlib.crc32(array.tobytes(), labels)
        rows[i] = (
            zlib.crc32(os.fsencode(name.removeprefix(start))),
            zlib.crc32(pictures[i].tobytes()),
            labels,
        )
    return rows.view(np.int32)


def changes(before: np.ndarray, now: np.ndarray) -> str:
    """In what two fingerprints differ, with numbers of images; an empty string if in nothing."""
    if np.array_equal(before, now):
        return ""
    gone, come = (a[~np.isin(a[:, 0], b[:, 0])] for a, b in ((before, now), (now, before)))
    renamed = len({*map(tuple, gone[:, 1:].tolist())} & {*map(tuple, come[:, 1:].tolist())})
    _, old, new = np.intersect1d(before[:, 0], now[:, 0], return_indices=True)
    counts = {
        "added": len(come) - renamed,
        "removed": len(gone) - renamed,
        "renamed": renamed,
        "with other labels": (before[old, 2] != now[new, 2]).sum(),
        "with another picture": (before[old, 1] != now[new, 1]).sum(),
    }
    return (
        ", ".join(f"{count} {what}" for what, count in counts.items() if count)
        or "listed in another order"
    )
