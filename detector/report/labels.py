"""A picture of the labels of a data set: how many, where, how large."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from boltbox.detector.data.datasets import DetectionDataset
from boltbox.detector.evaluation.coco import COCO_AREAS
from boltbox.detector.model.boxes import xyxy_to_cxcywhn
from boltbox.detector.report.figure import COLOURS, HATCHES, picture, short

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BARS = 30  # classes with a bar of their own: the commonest
CELLS = 50  # of a heat map, each way


def draw_labels(datasets: Mapping[str, DetectionDataset], image_size: int, path: Path) -> None:
    """Boxes of each class, sizes in pixels of the network's input, centres and sizes as shares of
    the image, to a PNG file; none if there are no boxes. Crowd regions, which nobody trains on, are
    left out."""
    boxes = {split: _boxes(dataset) for split, dataset in datasets.items()}
    everything = np.concatenate([shares for shares, _ in boxes.values()])
    if not len(everything):
        return
    with picture(path, 13, 10) as figure:
        classes, lengths, centres, sizes = figure.subplots(2, 2).flat
        _draw_classes(classes, datasets)
        for k, (split, (shares, longest)) in enumerate(boxes.items()):
            pixels = np.sqrt(shares[:, 2:].prod(1) * longest.prod(1)) * image_size
            lengths.hist(
                pixels.clip(1, None),
                2.0 ** np.arange(0, np.log2(image_size) + 1, 0.5),
                weights=np.full(len(pixels), 1 / max(len(pixels), 1)),
                histtype="step",
                label=f"{split} ({len(pixels)})",
                color=COLOURS[k],
            )
        for _, high in list(COCO_AREAS.values())[:-1]:
            lengths.axvline(high**0.5, color="0.4", linestyle=":")
        lengths.set_title(f"Square root of the area at {image_size} px; dotted: COCO's sizes")
        lengths.set(xlabel="pixels", ylabel="share of the boxes")
        lengths.set_xscale("log", base=2)
        lengths.xaxis.set_major_formatter("{x:g}")
        lengths.legend()
        for axis, title, columns in (
            (centres, "Centres of the boxes", everything[:, :2]),
            (sizes, "Sizes of the boxes", everything[:, 2:]),
        ):
            axis.hist2d(*columns.T, CELLS, ((0, 1), (0, 1)), cmap="viridis_r", cmin=1)
            axis.set(title=title, xlabel="share of the image's width", ylabel="of its height")
        centres.invert_yaxis()  # as in an image


def _boxes(dataset: DetectionDataset) -> tuple[np.ndarray, np.ndarray]:
    """(n, 4) cxcywh as shares of the image, and (n, 2) height and width of each box's image as
    shares of its longer side."""
    table = dataset.labels
    counted = ~table.crowd
    sizes = np.repeat(table.sizes, np.diff(table.starts), axis=0)[counted]  # (n, 2)
    shares = table.boxes[counted].astype(float) / np.tile(sizes[:, ::-1], 2)
    return xyxy_to_cxcywhn(shares, 1, 1), sizes / sizes.max(1, keepdims=True)


def _draw_classes(axis: Axes, datasets: Mapping[str, DetectionDataset]) -> None:
    counts = {split: dataset.class_counts() for split, dataset in datasets.items()}
    names = next(iter(datasets.values())).names
    order = np.argsort(-np.sum(list(counts.values()), 0), kind="stable")[:BARS][::-1]
    high = 0.8 / len(counts)
    for k, (split, of_class) in enumerate(counts.items()):
        places = np.arange(len(order)) - k * high
        bars = axis.barh(
            places, of_class[order], high, label=split, color=COLOURS[k], hatch=HATCHES[k]
        )
        axis.bar_label(bars, padding=2, fontsize=7)
    axis.set_yticks(range(len(order)), [short(names[c]) for c in order], fontsize=8)
    axis.set_title(f"Boxes of each class{f', the {BARS} commonest' if len(names) > BARS else ''}")
    axis.margins(x=0.12)
    axis.legend()
