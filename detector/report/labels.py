"""Pictures of the labels of a data set: how many, where, how large."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from boltbox.detector.data.datasets import DetectionDataset
from boltbox.detector.evaluation.metrics import COCO_AREAS
from boltbox.detector.model.boxes import xyxy_to_cxcywhn
from boltbox.detector.report.panel import COLOURS, HATCHES, legend, panel, save

BARS = 30  # classes with a bar of their own: the commonest
CELLS = 50  # of a heat map, each way


def draw_labels(
    datasets: Mapping[str, DetectionDataset], image_size: int, folder: Path
) -> list[Path]:
    """labels_*.png: boxes of each class, centres and sizes as fractions of the image (first split),
    sizes in pixels of the network's input. Crowd regions, which nobody trains on, are left out."""
    drawn = []
    boxes = {
        split: _boxes(dataset) for split, dataset in datasets.items() if len(dataset.labels.boxes)
    }
    if not boxes:
        return []
    drawn.append(_classes(datasets, folder / "labels_classes.png"))
    first, (xyxy, sizes) = next(iter(boxes.items()))
    places = xyxy_to_cxcywhn(xyxy.astype(float) / np.tile(sizes[:, ::-1], 2), 1, 1)  # (n, 4)
    x, y, width, height = places.T
    title, path = f"Centres of the boxes ({first})", folder / "labels_centres.png"
    drawn.append(_heat(title, "x / image width", "y / image height", x, y, path, down=True))
    title, path = f"Sizes of the boxes ({first})", folder / "labels_sizes.png"
    drawn.append(_heat(title, "width / image width", "height / image height", width, height, path))
    lengths = {}
    for split, (corners, shapes) in boxes.items():
        gain = image_size / shapes.max(1)
        lengths[split] = np.sqrt((corners[:, 2:] - corners[:, :2]).astype(float).prod(1)) * gain
    drawn.append(_pixels(lengths, image_size, folder / "labels_pixels.png"))
    return drawn


def _boxes(dataset: DetectionDataset) -> tuple[np.ndarray, np.ndarray]:
    """(n, 4) xyxy pixels of the files, and (n, 2) height and width of each box's image."""
    table = dataset.labels
    counted = ~table.crowd
    return table.boxes[counted], np.repeat(table.sizes, np.diff(table.starts), axis=0)[counted]


def _classes(datasets: Mapping[str, DetectionDataset], path: Path) -> Path:
    counts = {split: dataset.class_counts() for split, dataset in datasets.items()}
    names = next(iter(datasets.values())).names
    order = np.argsort(-np.sum(list(counts.values()), 0), kind="stable")[:BARS][::-1]
    more = f", the {BARS} commonest of {len(names)}" if len(names) > BARS else ""
    figure, axis = panel(
        f"Boxes of each class{more}", "boxes", tall=max(1.5 + 0.25 * len(order), 2.6)
    )
    labels = [names[c] if len(names[c]) <= 14 else names[c][:13] + "…" for c in order]
    high = 0.8 / len(counts)
    for k, (split, of_class) in enumerate(counts.items()):
        at = np.arange(len(order)) + 0.4 - (k + 0.5) * high
        look = {"color": COLOURS[(0, 4, 2)[k % 3]], "hatch": HATCHES[k], "edgecolor": "white"}
        bars = axis.barh(at, of_class[order], high, label=split, **look)
        axis.bar_label(bars, [str(c) for c in of_class[order]], padding=2, fontsize=7)
    axis.set_yticks(range(len(order)), labels, fontsize=9)
    axis.margins(x=0.14, y=0.02)
    axis.grid(visible=False, axis="y")
    figure.subplots_adjust(left=0.22)
    if len(counts) > 1:
        figure.subplots_adjust(top=1 - 0.62 / figure.get_size_inches()[1])
        axis.set_title(axis.get_title(), fontsize=12, pad=22)
        axis.legend(
            fontsize=9, ncols=3, loc="lower center", bbox_to_anchor=(0.45, 1.0), frameon=False
        )
    return save(figure, path)


def _heat(
    title: str,
    x: str,
    y: str,
    across: np.ndarray,
    along: np.ndarray,
    path: Path,
    down: bool = False,
) -> Path:
    """down: the second axis goes down, as in an image."""
    figure, axis = panel(title, x, y, wide=4.9, tall=4.2)
    counts, _, _ = np.histogram2d(across.clip(0, 1), along.clip(0, 1), CELLS, ((0, 1), (0, 1)))
    image = axis.imshow(
        np.where(counts, counts, np.nan).T,
        origin="lower",
        extent=(0, 1, 0, 1),
        cmap="viridis_r",
        vmin=0,
    )
    if down:
        axis.invert_yaxis()
    axis.grid(alpha=0.2)
    figure.colorbar(image, ax=axis, label="boxes", fraction=0.046, pad=0.03)
    figure.subplots_adjust(right=0.86)
    return save(figure, path)


def _pixels(lengths: Mapping[str, np.ndarray], image_size: int, path: Path) -> Path:
    figure, axis = panel(
        f"Size at {image_size} px: square root of the area", "pixels", "share of the boxes"
    )
    top = max(float(values.max()) for values in lengths.values())
    edges, most = 2 ** np.arange(0, np.log2(max(top, 2)) + 0.5, 0.5), 0.0
    for k, (split, values) in enumerate(lengths.items()):
        share = np.histogram(values.clip(1, edges[-1]), edges)[0] / len(values)
        look = {
            "color": COLOURS[k],
            "linewidth": 2.2 - 0.7 * k,
            "linestyle": ("-", "--", ":")[k % 3],
        }
        axis.stairs(share, edges, label=f"{split} ({len(values)})", **look)
        most = max(most, share.max())
    for border in [high**0.5 for _, high in list(COCO_AREAS.values())[:-1]]:
        if border < edges[-1]:
            axis.axvline(border, color="0.4", linewidth=1, linestyle=(0, (2, 2)))
            axis.text(
                border,
                0.985,
                f"{border:g} ",
                ha="right",
                va="top",
                fontsize=8,
                transform=axis.get_xaxis_transform(),
            )
    axis.set_ylim(0, 1.15 * most)  # above the lines there is room for the borders' numbers
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_formatter("{x:g}")
    legend(axis)
    return save(figure, path)
