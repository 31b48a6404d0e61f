"""A picture of the labels of a data set: how many, how large."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from boltbox.detector.data.datasets import DetectionDataset
from boltbox.detector.evaluation.coco import COCO_AREAS
from boltbox.detector.report.charts import picture, short

BARS = 30  # classes with a bar of their own: the commonest


def draw_labels(datasets: Mapping[str, DetectionDataset], image_size: int, path: Path) -> None:
    """Boxes of each class, and sizes in pixels of the network's input, to a PNG file; none if there
    are no boxes. Crowd regions, which nobody trains on, are left out."""
    lengths = {}  # square roots of areas
    for split, dataset in datasets.items():
        areas = dataset.object_sizes(image_size).prod(1, dtype=float)[~dataset.labels.crowd]
        lengths[f"{split} ({len(areas)})"] = np.sqrt(areas).clip(1)
    if not any(map(len, lengths.values())):
        return
    with picture(path, 13, 6) as figure:
        classes, sizes = figure.subplots(1, 2)
        names = next(iter(datasets.values())).names
        counts = np.array([dataset.class_counts() for dataset in datasets.values()])
        shown = np.argsort(-counts.sum(0), kind="stable")[:BARS][::-1]
        high = 0.8 / len(counts)
        for k, (split, of_class) in enumerate(zip(datasets, counts[:, shown], strict=True)):
            bars = classes.barh(np.arange(len(shown)) - k * high, of_class, high, label=split)
            classes.bar_label(bars, padding=2, fontsize=7)
        classes.set_yticks(range(len(shown)), [short(names[c]) for c in shown], fontsize=8)
        commonest = f", the {BARS} commonest" if len(names) > BARS else ""
        classes.set_title(f"Boxes of each class{commonest}")
        classes.margins(x=0.12)
        classes.legend()
        sizes.hist(
            list(lengths.values()),
            2.0 ** np.arange(0, np.log2(image_size) + 1, 0.5),
            weights=[np.full(len(x), 1 / max(len(x), 1)) for x in lengths.values()],
            histtype="step",
            label=list(lengths),
        )
        for _, highest in list(COCO_AREAS.values())[:-1]:
            sizes.axvline(highest**0.5, color="0.4", linestyle=":")
        sizes.set_title(f"Square root of the area at {image_size} px; dotted: COCO's sizes")
        sizes.set(xlabel="pixels", ylabel="share of the boxes")
        sizes.set_xscale("log", base=2)
        sizes.xaxis.set_major_formatter("{x:g}")
        sizes.legend()
