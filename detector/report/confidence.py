"""Precision, recall and F1 of every class: against each other, and against confidence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from detector.evaluation.metrics import CURVE, TINY, ClassFigures
from detector.report.figure import legend_label
from detector.report.panel import COLOURS, legend, panel, save, style

RECALLS = np.linspace(0, 1, 101)
NAMED = 6  # classes with colours of their own; more are thin grey lines


def precision_at_recall(hits: np.ndarray, score: np.ndarray, kind: np.ndarray, figures: ClassFigures) -> np.ndarray:
    """(k, 101) precision at the recalls 0, 0.01, ..., 1 of each class in `figures`, at IoU 0.5: the curve whose area is its AP.

    Args:
        hits: (n,) bool · score (n,) · kind (n,): all detections, in any order.
    """
    order = np.argsort(-score, kind="stable")
    hits, kind = hits[order], kind[order]
    curves = np.zeros((len(figures.classes), len(RECALLS)))
    for k, (c, objects) in enumerate(zip(figures.classes, figures.objects, strict=True)):
        found = hits[kind == c].cumsum()
        if len(found):
            precision = found / np.arange(1, len(found) + 1)
            envelope = np.maximum.accumulate(np.concatenate(([1.0], precision, [0.0]))[::-1])[::-1]
            curves[k] = np.interp(RECALLS, np.concatenate(([0.0], found / (objects + TINY), [1.0])), envelope)
    return curves


def draw_confidence(curves: np.ndarray, figures: ClassFigures, names: Sequence[str], folder: Path) -> list[Path]:
    """pr_curve.png, f1_curve.png, p_curve.png, r_curve.png; curves: (k, 101) as `precision_at_recall` gives them."""
    if not len(figures.classes):
        return []
    p, r = figures.precision_curve, figures.recall_curve
    best, area = figures.best_confidence, figures.ap[:, 0].mean()
    labels = [names[c] for c in figures.classes]
    pr = f"mean: mAP50 {area:.3f}"
    drawn = [_draw("Precision against recall, IoU 0.5", "recall", RECALLS, curves, labels, pr, None, folder / "pr_curve.png")]
    for name, title, y in (("f1", "F1", 2 * p * r / (p + r + TINY)), ("p", "Precision", p), ("r", "Recall", r)):
        at = float(np.interp(best, CURVE, y.mean(0)))
        mean, path = f"mean: {at:.2f} at {best:.3f}", folder / f"{name}_curve.png"
        drawn.append(_draw(f"{title} against confidence", "confidence", CURVE, y, labels, mean, (best, at), path))
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
        axis.plot(*best, marker="o", markersize=8, markerfacecolor="white", markeredgecolor="black", markeredgewidth=1.8)
    axis.set(xlim=(0, 1), ylim=(0, 1.04))
    legend(axis)
    return save(figure, path)


def _short(name: str, most: int = 22) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"
