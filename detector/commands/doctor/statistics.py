"""Counts of a data set as the network will see it, and what is remarkable about them."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from boltbox.detector.commands.doctor.finding import Finding
from boltbox.detector.commands.doctor.labels import of_objects
from boltbox.detector.data.datasets import DetectionDataset

# pixels; the augmentation keeps only boxes with both sides above
TINY = 2.0
# pixels; of the finest level of most networks: a smaller object is less than one cell of its grid
STRIDE = 8
# Boxes of the commonest class for one of the rarest; the literature calls 100 a high imbalance.
UNEVEN, VERY_UNEVEN = 10, 100
LISTED = 10  # class names in a sentence


def statistics(
    datasets: Mapping[str, DetectionDataset], image_size: int
) -> tuple[dict[str, Any], list[Finding]]:
    """Counts and sizes by split, and findings about them. Crowd regions, which are not trained on,
    are left out.

    Args:
        datasets: by split; the first is the one that is trained on.
        image_size: longer side of the network's input in pixels; all sizes are those of images
            scaled to it.

    Returns:
        Plain JSON types: `image_size`; `names`; `splits`, for each: `images`, `boxes`, `background`
            (images without objects), `class_counts` in the order of the names. Then the findings.
    """
    names = next(iter(datasets.values())).names if datasets else []
    values: dict[str, Any] = {"image_size": image_size, "names": list(names), "splits": {}}
    findings: list[Finding] = []
    for split, dataset in datasets.items():
        sizes, counted = dataset.object_sizes(image_size), ~dataset.labels.crowd
        counts = dataset.class_counts()[: len(names)].tolist()  # the rest is a finding of its own
        images = dataset.labels.image_of[counted]
        values["splits"][split] = {
            "images": len(dataset),
            "boxes": int(counted.sum()),
            "background": len(dataset) - len(np.unique(images)),
            "class_counts": counts,
        }
        trained = split == next(iter(datasets)) and any(counts)
        findings += _classes(split, counts, names, trained)
        findings += _tiny_boxes(split, dataset, sizes, image_size)
        if trained:
            findings += _small_objects(split, sizes[counted], image_size)
    return values, findings


def _classes(split: str, counts: list[int], names: list[str], trained: bool) -> Iterator[Finding]:
    """Classes without objects, and, of the split that is trained on, with few."""
    missing = [name for count, name in zip(counts, names, strict=True) if not count]
    if missing:
        more = f" and {len(missing) - LISTED} more" if len(missing) > LISTED else ""
        problem = (
            f"{len(missing)} of {len(names)} classes without an example in {split}:"
            f" {', '.join(missing[:LISTED])}{more}"
        )
        yield Finding("warning", "class_without_examples", problem, split=split)
    if not trained:
        return
    pairs = sorted((count, name) for count, name in zip(counts, names, strict=True) if count)
    (least, rare), (most, common) = pairs[0], pairs[-1]
    if most >= UNEVEN * least:
        severity = "warning" if most >= VERY_UNEVEN * least else "note"
        problem = (
            f"'{common}' has {most} boxes, '{rare}' has {least}, {most / least:.0f} to 1; "
            "--data.image_weights true draws images of rare classes more often"
        )
        yield Finding(severity, "class_imbalance", problem, split=split)


def _tiny_boxes(
    split: str, dataset: DetectionDataset, sizes: np.ndarray, image_size: int
) -> Iterator[Finding]:
    """Boxes that the augmentation drops."""

    def is_tiny(k: int) -> str:
        return (
            f"the box is {sizes[k, 0]:.1f}x{sizes[k, 1]:.1f} px at --data.image_size {image_size};"
            f" the augmentation drops boxes of {TINY:g} px or less"
        )

    tiny = (sizes <= TINY).any(1) & ~dataset.labels.crowd
    yield from of_objects("warning", "tiny_box", split, dataset, tiny, is_tiny)


def _small_objects(split: str, sizes: np.ndarray, image_size: int) -> Iterator[Finding]:
    """Objects that are smaller than a cell of the network's grid."""
    median = float(np.median(np.sqrt(sizes.prod(1, dtype=float))))
    if median < STRIDE:
        enough = math.ceil(image_size * STRIDE / median / 32) * 32
        problem = (
            f"half of the objects are under {median:.1f} px (square root of the area) at"
            f" --data.image_size {image_size}, and the cells of the finest grid are {STRIDE} px: at"
            f" --data.image_size {enough} the median object fills one; --model.network.size p2 has"
            " cells of 4 px"
        )
        yield Finding("warning", "small_objects", problem, split=split)
