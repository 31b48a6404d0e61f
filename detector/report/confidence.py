"""Precision, recall and F1 of every class: against each other, and against confidence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from boltbox.detector.evaluation.metrics import CONFIDENCES, EPS, RECALLS, ClassMetrics
from boltbox.detector.report.figure import legend_label
from boltbox.detector.report.panel import COLOURS, legend, panel, save, style

NAMED = 6  # classes with colours of their own; more are thin grey lines


def draw_confidence(metrics: ClassMetrics, names: Sequence[str], folder: Path) -> list[Path]:
    """pr_curve.png, f1_curve.png, p_curve.png, r_curve.png; none if no class has objects."""
    if not len(metrics.classes):
        return []
    p, r = metrics.precision_curve, metrics.recall_curve
    best, area, at_recall = (
        metrics.best_confidence,
        metrics.ap[:, 0].mean(),
        metrics.precision_at_recall,
    )
    labels = [names[c] for c in metrics.classes]
    pr = f"mean: mAP50 {area:.3f}"
    path = folder / "pr_curve.png"
    drawn = [
        _draw(
            "Precision against recall, IoU 0.5",
            "recall",
            RECALLS,
            at_recall,
            labels,
            pr,
            None,
            path,
        )
    ]
    for name, title, y in (
        ("f1", "F1", 2 * p * r / (p + r + EPS)),
        ("p", "Precision", p),
        ("r", "Recall", r),
    ):
        at = float(np.interp(best, CONFIDENCES, y.mean(0)))
        mean, path = f"mean: {at:.2f} at {best:.3f}", folder / f"{name}_curve.png"
        drawn.append(
            _draw(
                f"{title} against confidence",
                "confidence",
                CONFIDENCES,
                y,
                labels,
                mean,
                (best, at),
                path,
            )
        )
    return drawn


def _draw(
    title: str,
    x: str,
    at: np.ndarray,
    curves: np.ndarray,
    labels: list[str],
    mean: str,
    best: tuple[float, float] | None,
    path: Path,
) -> Path:
    """Classes thin, their mean thick; best: the point of the confidence with the best mean F1."""
    figure, axis = panel(title, x)
    few = len(labels) <= NAMED
    for k, (label, curve) in enumerate(zip(labels, curves, strict=True)):
        if len(labels) == 1:
            break
        look = {**style(k), "linewidth": 1.3} if few else {"color": "0.72", "linewidth": 0.7}
        axis.plot(at, curve, label=legend_label(_short(label)) if few else None, **look)
    if not few:
        axis.plot([], [], color="0.72", linewidth=0.7, label=f"{len(labels)} classes")
    axis.plot(at, curves.mean(0), color=COLOURS[-1], linewidth=3, label=mean)
    if best:
        axis.axvline(best[0], color="0.35", linewidth=1, linestyle=(0, (2, 2)))
        axis.plot(
            *best,
            marker="o",
            markersize=8,
            markerfacecolor="white",
            markeredgecolor="black",
            markeredgewidth=1.8,
        )
    axis.set(xlim=(0, 1), ylim=(0, 1.04))
    legend(axis)
    return save(figure, path)


def _short(name: str, most: int = 22) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"
