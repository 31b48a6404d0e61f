"""Figures of a data set as the network will see it, and what is remarkable about them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from boltbox.detector.commands.doctor.finding import Finding
from boltbox.detector.data.datasets import DetectionDataset
from boltbox.detector.model.anchors import label_sizes, measure

# pixels; the augmentation keeps only boxes with both sides above, so a smaller one is never trained
# on
TINY = 2.0
# pixels; of the finest level of most networks: a smaller object is less than one cell of its grid
STRIDE = 8
COCO_BORDERS = (32.0, 96.0)  # square root of the area in pixels: COCO's small, medium, large
# times as long as wide; default anchors are up to 3:1 and meet objects within a factor of 4 of
# their sides
ELONGATED = 20
EXTREME = 100  # times as long as wide; the augmentation drops such boxes
# Boxes of the commonest class for one of the rarest; the literature calls 100 a high imbalance.
UNEVEN, VERY_UNEVEN = 10, 100
GOOD_BPR = 0.98  # AutoAnchor's own limit
MOST_PLACES = 1000  # findings of one kind in one split that are named one by one
LISTED = 10  # class names in a sentence


def statistics(
    datasets: Mapping[str, DetectionDataset],
    image_size: int,
    anchors: np.ndarray | None,
    anchor_t: float = 4.0,
) -> tuple[dict[str, Any], list[Finding]]:
    """Counts, sizes and ratios by split, and findings about them. Crowd regions, which nobody
    trains on, are left out.

    Args:
        datasets: by split; the first is the one that is trained on.
        image_size: longer side of the network's input in pixels; all sizes are those of images
            scaled to it.
        anchors: (k, 2) or (levels, A, 2) pixels of the network's input; None: they are not
            measured.
        anchor_t: objects whose sides differ from the anchor's by less than this factor are trained
            on it.

    Returns:
        Plain JSON types: `image_size`; `names`; `splits`, for each: counts, `class_counts` in the
            order of the names, shares of
        COCO's small, medium and large objects, `median_size` in pixels (square root of the area);
            `histograms`: for each of
        size_px, box_ratio, image_ratio (width over height) and objects_per_image its `edges` and
            the `counts` by split, the
        outermost bins holding what lies beyond; `anchors`: sides, BPR, AAT, fitness. Then the
            findings.
    """
    names = next(iter(datasets.values())).names if datasets else []
    splits = {split: _Objects.of(dataset, image_size) for split, dataset in datasets.items()}
    values: dict[str, Any] = {
        "image_size": image_size,
        "names": list(names),
        "splits": {split: objects.summary(len(names)) for split, objects in splits.items()},
        "histograms": _histograms(splits, image_size),
    }
    findings = []
    for split, objects in splits.items():
        findings += _missing_classes(split, values["splits"][split]["class_counts"], names)
        findings += _odd_boxes(split, objects, datasets[split], image_size)
    if splits:
        split, objects = next(iter(splits.items()))
        findings += _imbalance(split, values["splits"][split]["class_counts"], names)
        findings += _small_objects(split, objects, image_size)
        if anchors is not None and len(objects.sizes):
            fit = measure(anchors.reshape(-1, 2), objects.sizes, anchor_t)
            values["anchors"] = {"pixels": anchors.reshape(-1, 2).tolist(), **fit._asdict()}
            findings += _bad_anchors(split, fit.bpr, image_size)
    return values, findings


@dataclass
class _Objects:
    """The objects of a split. sizes (n, 2) width and height in pixels at the training size ·
    classes (n,) · image (n,) index · number (n,) of the object in its image's Labels, from 0 ·
    shapes (images, 2) height and width in pixels of the file · crowd: how many crowd regions were
    left out."""

    sizes: np.ndarray
    classes: np.ndarray
    image: np.ndarray
    number: np.ndarray
    shapes: np.ndarray
    crowd: int

    @classmethod
    def of(cls, dataset: DetectionDataset, image_size: int) -> _Objects:
        sizes, classes, numbers, shapes, crowd = (
            [np.zeros((0, 2), np.float32)],
            [np.zeros(0, np.int64)],
            [],
            [],
            0,
        )
        for labels in dataset.labels:
            kept = np.flatnonzero(~labels.crowd)
            sizes.append(label_sizes(labels.boxes[kept], labels.height, labels.width, image_size))
            classes.append(labels.classes[kept])
            numbers.append(kept)
            shapes.append((labels.height, labels.width))
            crowd += len(labels.classes) - len(kept)
        image = np.repeat(np.arange(len(numbers)), [len(kept) for kept in numbers])
        number = np.concatenate([np.zeros(0, np.int64), *numbers])
        return cls(
            np.concatenate(sizes),
            np.concatenate(classes),
            image,
            number,
            np.array(shapes, float).reshape(-1, 2),
            crowd,
        )

    def per_image(self) -> np.ndarray:
        """(images,) number of objects."""
        return np.bincount(self.image, minlength=len(self.shapes))

    def lengths(self) -> np.ndarray:
        """(n,) square root of the area in pixels."""
        return np.sqrt(self.sizes.prod(1, dtype=float))

    def elongation(self) -> np.ndarray:
        """(n,) longer side over the shorter."""
        return self.sizes.max(1) / np.maximum(self.sizes.min(1), 1e-9)

    def summary(self, classes: int) -> dict[str, Any]:
        lengths = self.lengths()
        # a class without a name is a finding of its own
        known = self.classes[self.classes < classes]
        group = np.bincount(np.digitize(lengths, COCO_BORDERS), minlength=3)
        shares = group / max(len(lengths), 1)
        return {
            "images": len(self.shapes),
            "boxes": len(lengths),
            "background": int((self.per_image() == 0).sum()),
            "crowd": self.crowd,
            "class_counts": np.bincount(known, minlength=classes).tolist(),
            **dict(zip(("small", "medium", "large"), shares.tolist(), strict=True)),
            "median_size": float(np.median(lengths)) if len(lengths) else None,
            "most_objects": int(self.per_image().max(initial=0)),
        }


def _histograms(splits: dict[str, _Objects], image_size: int) -> dict[str, Any]:
    """All on logarithmic scales."""
    # 1 px to the whole image
    half_octaves = 2 ** (np.arange(math.ceil(2 * math.log2(max(image_size, 2))) + 1) / 2)
    ratios = 2 ** np.arange(-5.25, 5.5, 0.5)  # 1:38 to 38:1, with 1:1 in the middle of its bin
    finer = 2 ** np.arange(-5.125, 5.25, 0.25)  # images differ less than boxes
    most = max((int(objects.per_image().max(initial=1)) for objects in splits.values()), default=1)
    numbers = np.array([0, *(2**k for k in range(most.bit_length() + 1))])  # 0, 1, 2-3, 4-7, ...
    values = {
        "size_px": (half_octaves, {s: x.lengths() for s, x in splits.items()}),
        "box_ratio": (
            ratios,
            {s: x.sizes[:, 0] / np.maximum(x.sizes[:, 1], 1e-9) for s, x in splits.items()},
        ),
        "image_ratio": (finer, {s: x.shapes[:, 1] / x.shapes[:, 0] for s, x in splits.items()}),
        "objects_per_image": (numbers, {s: x.per_image() for s, x in splits.items()}),
    }
    return {
        name: {
            "edges": edges.tolist(),
            "counts": {
                s: np.histogram(v.clip(edges[0], edges[-1]), edges)[0].tolist()
                for s, v in of_split.items()
            },
        }
        for name, (edges, of_split) in values.items()
    }


def _missing_classes(split: str, counts: list[int], names: list[str]) -> list[Finding]:
    missing = [name for name, count in zip(names, counts, strict=True) if count == 0]
    if not missing:
        return []
    listed = ", ".join(missing[:LISTED]) + (
        f" and {len(missing) - LISTED} more" if len(missing) > LISTED else ""
    )
    who = (
        f"class {listed} has"
        if len(missing) == 1
        else f"{len(missing)} of {len(names)} classes have"
    )
    ending = "" if len(missing) == 1 else f": {listed}"
    return [
        Finding(
            "warning",
            "class_without_examples",
            split,
            "",
            "",
            f"{who} no example in {split}{ending}",
        )
    ]


def _imbalance(split: str, counts: list[int], names: list[str]) -> list[Finding]:
    present = [(count, name) for name, count in zip(names, counts, strict=True) if count]
    (most, common), (least, rare) = max(present, default=(0, "")), min(present, default=(1, ""))
    if most < UNEVEN * least:
        return []
    severity = "warning" if most >= VERY_UNEVEN * least else "note"
    problem = (
        f"'{common}' has {most} boxes, '{rare}' has {least}, {most / least:.0f} to 1; "
        "--data.image_weights true draws images of rare classes more often"
    )
    return [Finding(severity, "class_imbalance", split, "", "", problem)]


def _small_objects(split: str, objects: _Objects, image_size: int) -> list[Finding]:
    median = float(np.median(objects.lengths())) if len(objects.sizes) else math.inf
    if median >= STRIDE:
        return []
    enough = math.ceil(image_size * STRIDE / median / 32) * 32
    problem = (
        f"half of the objects are under {median:.1f} px (square root of the area) at"
        f" --data.image_size {image_size}, and the cells of the finest grid are {STRIDE} px: at"
        f" --data.image_size {enough} the median object fills one; --model.network.size p2 has"
        " cells of"
        " 4 px"
    )
    return [Finding("warning", "small_objects", split, "", "", problem)]


def _odd_boxes(
    split: str, objects: _Objects, dataset: DetectionDataset, image_size: int
) -> list[Finding]:
    """Boxes that are tiny, or very long."""
    elongation = objects.elongation()
    tiny = (objects.sizes <= TINY).any(1)
    extreme = ~tiny & (elongation >= EXTREME)
    long = ~tiny & ~extreme & (elongation >= ELONGATED)
    findings = []
    # objects of an image come one after the other
    sources = lru_cache(maxsize=1)(dataset.sources.__getitem__)

    def place(k: int) -> tuple[str, str]:
        """Label file and place of an object ("line 3", "object 2"); of one that is told by an id,
        or is in no file, the image and its number there."""
        image, number = int(objects.image[k]), int(objects.number[k])
        source = sources(image)
        where = source.places[number].partition(" (")[0] if source.file else "annotation"
        return (
            (dataset.files[image], f"object {number + 1}")
            if where.startswith("annotation")
            else (source.file, where)
        )

    for kind, mask, consequence in (
        ("tiny_box", tiny, f"the augmentation drops boxes of {TINY:g} px or less"),
        (
            "extreme_ratio",
            extreme,
            f"the augmentation drops boxes with a side {EXTREME} times the other",
        ),
    ):
        chosen = np.flatnonzero(mask)
        for k in chosen[:MOST_PLACES]:
            file, where = place(k)
            width, height = objects.sizes[k]
            problem = (
                f"the box is {width:.1f}x{height:.1f} px at --data.image_size {image_size};"
                f" {consequence}"
            )
            findings.append(Finding("warning", kind, split, file, where, problem))
        if len(chosen) > MOST_PLACES:
            problem = (
                f"{len(chosen) - MOST_PLACES} more boxes are like the {MOST_PLACES} that are named;"
                f" {consequence}"
            )
            findings.append(Finding("warning", kind, split, "", "", problem))
    if long.any():
        longest = int(np.where(long, elongation, 0).argmax())
        file, where = place(longest)
        problem = (
            f"{int(long.sum())} boxes have a side over {ELONGATED} times the other, this one most"
            f" of all ({elongation[longest]:.0f}); anchors hardly fit them"
        )
        findings.append(Finding("note", "elongated_box", split, file, where, problem))
    return findings


def _bad_anchors(split: str, bpr: float, image_size: int) -> list[Finding]:
    if bpr >= GOOD_BPR:
        return []
    problem = (
        f"the anchors fit {bpr:.1%} of the boxes at --data.image_size {image_size} (best possible"
        f" recall; {GOOD_BPR:.0%} is good); AutoAnchor will look for better ones at the start of"
        " fit, `cli.py anchors` does it now"
    )
    return [Finding("note", "bad_anchors", split, "", "", problem)]
