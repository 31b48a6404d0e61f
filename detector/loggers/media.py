"""Tables, curves and pictures in Lightning's WandbLogger and TensorBoardLogger; other loggers show
none. W&B puts the epoch of the last metrics beside each."""

from textwrap import indent
from typing import Any

import numpy as np
from lightning.pytorch.loggers import Logger, TensorBoardLogger, WandbLogger

from boltbox.detector.evaluation.class_metrics import RECALLS
from boltbox.detector.evaluation.metrics import Result
from boltbox.detector.report.drawing import Picture, draw_pictures
from boltbox.detector.report.table import class_table

CURVES = 20  # classes with a precision-recall curve, besides the mean


def show_classes(logger: Logger, name: str, content: dict[str, Any], step: int) -> None:
    """The table by class of metrics.json; TensorBoard's is the one of the terminal, as
    code in Markdown."""
    rows = content["per_class"]
    if isinstance(logger, WandbLogger) and rows:
        logger.log_table(name, list(rows[0]), [list(row.values()) for row in rows], step=step)
    elif isinstance(logger, TensorBoardLogger):
        logger.experiment.add_text(name, indent(class_table(content), "    "), step)


def show_image(logger: Logger, name: str, image: np.ndarray, step: int) -> None:
    """(H, W, 3) uint8 RGB."""
    if isinstance(logger, WandbLogger):
        logger.log_image(name, [image], step, file_type=["jpg"])
    elif isinstance(logger, TensorBoardLogger):
        logger.experiment.add_image(name, image, step, dataformats="HWC")


def show_pictures(
    logger: Logger, name: str, pictures: list[Picture], classes: list[str], step: int
) -> None:
    """W&B draws the boxes, which can be filtered by class and score; TensorBoard gets one image:
    labels, and below them predictions."""
    if isinstance(logger, WandbLogger):
        boxes = [
            {
                "ground_truth": _boxes(p.labels, classes),
                "predictions": _boxes(p.predictions, classes),
            }
            for p in pictures
        ]
        images, types = [picture.image for picture in pictures], ["jpg"] * len(pictures)
        logger.log_image(name, images, step, boxes=boxes, file_type=types)
    else:
        sides = [draw_pictures(pictures, side, classes) for side in ("labels", "predictions")]
        show_image(logger, name, np.concatenate(sides), step)


def show_precision_recall(
    logger: Logger, name: str, result: Result, classes: list[str], step: int
) -> None:
    """Curves at IoU 0.5, whose area is the AP: mean of all classes, and those with most objects."""
    metrics = result.by_class
    if not len(metrics.classes):
        return
    precisions = metrics.precision_at_recall
    curves = {"mean of all classes": precisions.mean(0)}
    largest = np.sort(np.argsort(-metrics.objects, kind="stable")[:CURVES])
    curves |= {classes[metrics.classes[i]]: precisions[i] for i in largest}
    if isinstance(logger, WandbLogger):
        import wandb

        lines = [curve.tolist() for curve in curves.values()]
        plot = wandb.plot.line_series(
            RECALLS.tolist(), lines, list(curves), "Precision against recall, IoU 0.5", "recall"
        )
        logger.log_metrics({name: plot}, step)
    elif isinstance(logger, TensorBoardLogger):
        for label, curve in curves.items():
            counts = [np.zeros_like(curve)] * 4  # of detections by confidence: not known here
            logger.experiment.add_pr_curve_raw(
                f"{name}/{label}", *counts, curve[::-1], RECALLS[::-1], step, len(RECALLS)
            )


def _boxes(rows: np.ndarray, classes: list[str]) -> dict[str, Any]:
    """Rows of a Picture as W&B takes them."""
    boxes = []
    for x1, y1, x2, y2, score, number in rows.tolist():
        scored = not np.isnan(score)
        boxes.append(
            {
                "position": {"minX": x1, "minY": y1, "maxX": x2, "maxY": y2},
                "domain": "pixel",
                "class_id": int(number),
                "box_caption": classes[int(number)] + (f" {score:.2f}" if scored else ""),
                **({"scores": {"confidence": score}} if scored else {}),
            }
        )
    return {"box_data": boxes, "class_labels": dict(enumerate(classes))}
