"""A picture of the labels of a data set: how many, where, how large."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from boltbox.detector.data.datasets import DetectionDataset
from boltbox.detector.evaluation.coco import COCO_AREAS
from boltbox.detector.model.boxes import xyxy_to_cxcywhn
from boltbox.detector.report.charts import picture, short

BARS = 30  # classes with a bar of their own: the commonest
CELLS = 50  # of a heat map, each way


def draw_labels(datasets: Mapping[str, DetectionDataset], image_size: int, path: Path) -> None:
    """Boxes of each class, sizes in pixels of the network's input, centres and sizes as shares of
    the image, to a PNG file; none if there are no boxes. Crowd regions, which nobody trains on, are
    left out."""
    shares, lengths = zip(*(_boxes(d, image_size) for d in datasets.values()), strict=True)
    everything = np.concatenate(shares)
    if not len(everything):
        return
    with picture(path, 13, 10) as figure:
        classes, sizes, centres, sides = figure.subplots(2, 2).flat
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
            lengths,
            2.0 ** np.arange(0, np.log2(image_size) + 1, 0.5),
            weights=[np.full(len(x), 1 / max(len(x), 1)) for x in lengths],
            histtype="step",
            label=[f"{split} ({len(x)})" for split, x in zip(datasets, lengths, strict=True)],
        )
        for _, high in list(COCO_AREAS.values())[:-1]:
            sizes.axvline(high**0.5, color="0.4", linestyle=":")
        sizes.set_title(f"Square root of the area at {image_size} px; dotted: COCO's sizes")
        sizes.set(xlabel="pixels", ylabel="share of the boxes")
        sizes.set_xscale("log", base=2)
        sizes.xaxis.set_major_formatter("{x:g}")
        sizes.legend()
        for axis, title, columns in (
            (centres, "Centres of the boxes", everything[:, :2]),
            (sides, "Sizes of the boxes", everything[:, 2:]),
        ):
            axis.hist2d(*columns.T, CELLS, ((0, 1), (0, 1)), cmap="viridis_r", cmin=1)
            axis.set(title=title, xlabel="share of the image's width", ylabel="of its height")
        centres.invert_yaxis()  # as in an image


def _boxes(dataset: DetectionDataset, image_size: int) -> tuple[np.ndarray, np.ndarray]:
    """(n, 4) cxcywh as shares of the image, and (n,) square roots of the areas in pixels of the
    network's input, at least 1."""
    table = dataset.labels
    counted = ~table.crowd
    sizes = np.repeat(table.sizes, np.diff(table.starts), axis=0)[counted]  # (n, 2)
    shares = xyxy_to_cxcywhn(table.boxes[counted] / np.tile(sizes[:, ::-1], 2), 1, 1)
    scaled = sizes * (image_size / sizes.max(1, keepdims=True))
    return shares, np.sqrt(shares[:, 2:].prod(1) * scaled.prod(1)).clip(1)
