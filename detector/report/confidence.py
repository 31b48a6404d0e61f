"""Precision, recall and F1 of every class: against each other, and against confidence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from boltbox.detector.evaluation.class_metrics import CONFIDENCES, EPS, RECALLS, ClassMetrics
from boltbox.detector.report.figure import COLOURS, DASHES, picture, short

NAMED = 6  # classes with colours of their own; more are thin grey lines


def draw_confidence(metrics: ClassMetrics, names: Sequence[str], path: Path) -> None:
    """Four panels, to a PNG file. Classes are thin lines, their mean is thick; a dotted line marks
    the confidence with the best mean F1."""
    p, r = metrics.precision_curve, metrics.recall_curve
    panels = {
        "Precision against recall, IoU 0.5": (RECALLS, metrics.precision_at_recall),
        "F1 against confidence": (CONFIDENCES, 2 * p * r / (p + r + EPS)),
        "Precision against confidence": (CONFIDENCES, p),
        "Recall against confidence": (CONFIDENCES, r),
    }
    few = len(metrics.classes) <= NAMED
    with picture(path, 13, 8.5) as figure:
        for k, (title, (at, curves)) in enumerate(panels.items(), 1):
            axis = figure.add_subplot(2, 2, k)
            axis.set_title(title)
            for n, (c, curve) in enumerate(zip(metrics.classes, curves, strict=True)):
                colour = COLOURS[n] if few else "0.72"
                label = short(names[c]) if few else None
                style = DASHES[n % len(DASHES)] if few else "-"
                axis.plot(at, curve, label=label, color=colour, linestyle=style, linewidth=1)
            axis.plot(at, curves.mean(0), label="mean", color="black", linewidth=2.5)
            if at is CONFIDENCES:
                best = metrics.best_confidence
                axis.axvline(best, color="0.35", linestyle=":", label=f"best F1: {best:.3f}")
            axis.set(xlim=(0, 1), ylim=(0, 1.04))
            axis.grid(visible=True)
            axis.legend(fontsize=9)
