"""Counts of a dataset at the network's input size, and findings about them."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from boltbox.detector.commands.doctor.finding import Finding
from boltbox.detector.commands.doctor.labels import of_objects
from boltbox.detector.data.datasets import DetectionDataset

# pixels; the augmentation keeps only boxes with both sides above
TINY = 2.0
# pixels of a grid cell in the finest level of most networks
STRIDE = 8
# boxes of the most frequent class per box of the rarest; the literature calls 100 a high imbalance
UNEVEN = 10
VERY_UNEVEN = 100
LISTED = 10  # class names in a sentence


def statistics(
    datasets: Mapping[str, DetectionDataset], image_size: int
) -> tuple[dict[str, Any], list[Finding]]:
    """Count objects and classes by split. Crowd regions, which training ignores, are left out.

    Args:
        datasets: by split; the first is the training split.
        image_size: longer side of the network's input in pixels, to which all sizes are scaled.

    Returns:
        Plain JSON types: `image_size`; `names`; `splits`, for each: `images`, `boxes`, `background`
            (images without objects), `class_counts` in the order of the names. Then the findings.
    """
    names = next(iter(datasets.values())).names if datasets else []
    splits: dict[str, Any] = {}
    findings: list[Finding] = []
    for split, dataset in datasets.items():
        sizes = dataset.object_sizes(image_size)
        counted = ~dataset.labels.crowd
        counts = dataset.class_counts()[: len(names)].tolist()  # unknown classes are in `left_out`
        images = dataset.labels.image_of[counted]
        is_first = not splits
        splits[split] = {
            "images": len(dataset),
            "boxes": int(counted.sum()),
            "background": len(dataset) - len(np.unique(images)),
            "class_counts": counts,
        }
        findings += _missing_classes(split, counts, names)
        if is_first and any(counts):
            findings += _imbalance(split, counts, names)
        findings += _tiny_boxes(split, dataset, sizes, image_size)
        if is_first and any(counts):
            findings += _small_objects(split, sizes[counted], image_size)
    return {"image_size": image_size, "names": list(names), "splits": splits}, findings


def _missing_classes(split: str, counts: list[int], names: list[str]) -> Iterator[Finding]:
    missing = [name for count, name in zip(counts, names, strict=True) if not count]
    if missing:
        more = f" and {len(missing) - LISTED} more" if len(missing) > LISTED else ""
        problem = (
            f"{len(missing)} of {len(names)} classes without an example in {split}:"
            f" {', '.join(missing[:LISTED])}{more}"
        )
        yield Finding("warning", "class_without_examples", problem, split=split)


def _imbalance(split: str, counts: list[int], names: list[str]) -> Iterator[Finding]:
    present = sorted((count, name) for count, name in zip(counts, names, strict=True) if count)
    least, rare = present[0]
    most, common = present[-1]
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
