"""Tables and images in Lightning's WandbLogger and TensorBoardLogger; MLflow and loggers with a
method `log_image` show images."""

from textwrap import indent
from typing import Any, NamedTuple

import numpy as np
from lightning.pytorch.loggers import Logger, MLFlowLogger, TensorBoardLogger, WandbLogger

from boltbox.detector.report.drawing import BatchImage, draw_images
from boltbox.detector.report.table import class_table


class Time(NamedTuple):
    """Where a value is on the axes.

    Attributes:
        epoch: W&B's axis.
        step: Optimizer steps, TensorBoard's axis.
    """

    epoch: int
    step: int


def show_classes(logger: Logger, name: str, content: dict[str, Any], time: Time) -> None:
    """The table by class of metrics.json; TensorBoard's is the one of the terminal, as code in
    Markdown.

    Args:
        logger: Where.
        name: Of the table.
        content: Of metrics.json.
        time: When.
    """
    rows = content["per_class"]
    if isinstance(logger, WandbLogger) and rows:
        import wandb

        cells = [list(row.values()) for row in rows]
        _log(logger, name, wandb.Table(list(rows[0]), cells), time)
    elif isinstance(logger, TensorBoardLogger):
        logger.experiment.add_text(name, indent(class_table(content), "    "), time.step)


def show_image(logger: Logger, name: str, image: np.ndarray, time: Time) -> None:
    """(H, W, 3) uint8 RGB.

    Args:
        logger: Where.
        name: Of the image.
        image: (H, W, 3) uint8 RGB.
        time: When.
    """
    if isinstance(logger, WandbLogger):
        import wandb

        _log(logger, name, wandb.Image(image, file_type="jpg"), time)
    elif isinstance(logger, TensorBoardLogger):
        logger.experiment.add_image(name, image, time.step, dataformats="HWC")
    elif isinstance(logger, MLFlowLogger):
        logger.experiment.log_image(logger.run_id, image, key=name, step=time.step)
    elif hasattr(logger, "log_image"):
        logger.log_image(name, [image], step=time.step)


def show_images(
    logger: Logger, name: str, images: list[BatchImage], classes: list[str], time: Time
) -> None:
    """W&B draws the boxes, which can be filtered by class and score; the others get one image:
    labels, and below them predictions.

    Args:
        logger: Where.
        name: Of the images.
        images: With their boxes.
        classes: Class names.
        time: When.
    """
    if isinstance(logger, WandbLogger):
        import wandb

        shown = []
        for image in images:
            boxes = {
                "ground_truth": _boxes(image.labels, classes),
                "predictions": _boxes(image.predictions, classes),
            }
            shown.append(wandb.Image(image.pixels, boxes=boxes, file_type="jpg"))
        _log(logger, name, shown, time)
    else:
        labels = draw_images(images, "labels", classes)
        predictions = draw_images(images, "predictions", classes)
        show_image(logger, name, np.concatenate((labels, predictions)), time)


def _log(logger: WandbLogger, name: str, value: Any, time: Time) -> None:
    logger.log_metrics({"epoch": time.epoch, name: value}, time.step)


def _boxes(rows: np.ndarray, classes: list[str]) -> dict[str, Any]:
    """Boxes of one image in W&B's format."""
    return {
        "box_data": [_box(row, classes) for row in rows],
        "class_labels": dict(enumerate(classes)),
    }


def _box(row: np.ndarray, classes: list[str]) -> dict[str, Any]:
    x1, y1, x2, y2, score, number = row.tolist()
    box: dict[str, Any] = {
        "position": {"minX": x1, "minY": y1, "maxX": x2, "maxY": y2},
        "domain": "pixel",
        "class_id": int(number),
        "box_caption": classes[int(number)],
    }
    if not np.isnan(score):
        box["box_caption"] += f" {score:.2f}"
        box["scores"] = {"confidence": score}
    return box
