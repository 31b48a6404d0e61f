"""What TensorBoard shows of a training."""

import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from lightning.pytorch.loggers import TensorBoardLogger

from boltbox.detector.data.images import read_image
from boltbox.detector.evaluation.metrics import RECALLS
from boltbox.detector.evaluation.results import confusions, largest_classes
from boltbox.detector.loggers.board import BEST, Ending, Evaluation, Picture, jpeg
from boltbox.detector.report.drawing import draw_boxes, enlarge
from boltbox.detector.system.configuration import flatten

CURVES = 20  # classes with a precision-recall curve
THRESHOLDS = 127  # of such a curve: the most that TensorBoard draws
CELLS = 30  # of the confusion matrix, besides its diagonal


class TensorBoard:
    """Shows a training in the files of a TensorBoardLogger. Its one axis is the optimizer step."""

    title = "TensorBoard"

    def __init__(self, logger: TensorBoardLogger) -> None:
        self.logger = logger

    def start(self, options: dict[str, Any], best: dict[str, float]) -> None:
        """The configuration as hyper-parameters, whose results are the best metrics."""
        from torch.utils.tensorboard.summary import hparams

        writer = self.logger.experiment._get_file_writer()
        # only the names of the metrics are used
        for summary in hparams(_hyper_parameters(options), dict.fromkeys(BEST, 0.0)):
            writer.add_summary(summary)

    def losses(self, names: Sequence[str]) -> None:
        pass

    def metrics(self, metrics: dict[str, float], step: int) -> None:
        self.logger.log_metrics(metrics, step)

    best = metrics

    def evaluation(self, evaluation: Evaluation) -> int:
        writer, step, m = self.logger.experiment, evaluation.step, evaluation.result.by_class
        table, confusion = _class_table(evaluation.rows()), _confusion_table(evaluation)
        writer.add_text("val/per_class", table, step)
        writer.add_text("val/confusion", confusion, step)
        # confidences
        chosen = np.linspace(0, m.precision_curve.shape[1] - 1, THRESHOLDS).astype(int)
        largest = largest_classes(m, CURVES)
        for i in largest:
            precision, recall = m.precision_curve[i, chosen], m.recall_curve[i, chosen]
            tp = recall * m.objects[i]
            fp = np.divide(
                tp * (1 - precision), precision, out=np.zeros_like(tp), where=precision > 0
            )
            shown = np.interp(recall, RECALLS, m.precision_at_recall[i])
            writer.add_pr_curve_raw(
                f"val/precision_recall/{evaluation.names[m.classes[i]]}",
                *(tp, fp, np.zeros_like(tp), m.objects[i] - tp, shown, recall),
                global_step=step,
                num_thresholds=THRESHOLDS,
            )
        size = len(table) + len(confusion) + len(largest) * THRESHOLDS * 6 * 8
        for i, picture in enumerate(evaluation.pictures):
            size += self._image(f"val/images/{i}", _drawn(picture, evaluation.names), step)
        return size

    def ending(self, ending: Ending) -> None:
        if ending.best:
            self.logger.experiment.add_text(
                "best/per_class", _class_table(ending.best["per_class"]), ending.step
            )
        for path in ending.plots:
            height, width = read_image(path).shape[:2]
            self._encoded(f"plots/{path.name}", path.read_bytes(), height, width, ending.step)

    def artifact(self, path: Path, alias: str, metadata: dict[str, Any]) -> None:
        """TensorBoard keeps no files."""

    def _image(self, tag: str, image: np.ndarray, step: int) -> int:
        """Writes a JPEG, where SummaryWriter.add_image would write a PNG of ten times its size; its
        bytes."""
        content, (height, width) = jpeg(image), image.shape[:2]
        self._encoded(tag, content, height, width, step)
        return len(content)

    def _encoded(self, tag: str, content: bytes, height: int, width: int, step: int) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        image = Summary.Image(
            height=height, width=width, colorspace=3, encoded_image_string=content
        )
        self.logger.experiment._get_file_writer().add_summary(
            Summary(value=[Summary.Value(tag=tag, image=image)]), step
        )


def _hyper_parameters(options: dict[str, Any]) -> dict[str, str | float | bool]:
    """Options in groups -> by flat names; values that are no numbers as text."""
    return {
        name: value if isinstance(value, int | float) else str(value)
        for name, value in flatten(options).items()
    }


def _drawn(picture: Picture, names: list[str]) -> np.ndarray:
    """Labels on the left, predictions on the right."""
    sides = [
        draw_boxes(*enlarge(picture.image, rows), names)
        for rows in (picture.labels, picture.predictions)
    ]
    gap = np.full((len(sides[0]), 8, 3), 255, np.uint8)
    return np.asarray(cv2.hconcat([sides[0], gap, sides[1]]))


def _class_table(rows: list[dict[str, Any]]) -> str:
    columns = ("P", "R", "mAP50", "mAP50-95", "coco/AP")
    lines = [
        f"| class | objects | {' | '.join(columns)} |",
        "|---|--:" + "|--:" * len(columns) + "|",
    ]
    for row in rows:
        values = ("-" if row[c] is None else f"{row[c]:.3f}" for c in columns)
        lines.append(f"| {_cell(row['name'])} | {row['objects']} | {' | '.join(values)} |")
    return "\n".join(lines)


def _confusion_table(evaluation: Evaluation) -> str:
    """What is taken for what, most frequent first: a matrix of many classes has no room in a
    text."""
    cells = [
        cell for cell in confusions(evaluation.result, evaluation.names) if cell[0] != cell[1]
    ][:CELLS]
    lines = ["| object | detected as | count |", "|---|---|--:|"]
    return "\n".join(
        [
            *lines,
            *(
                f"| {_cell(true)} | {_cell(predicted)} | {count} |"
                for true, predicted, count in cells
            ),
        ]
    )


def _cell(name: str) -> str:
    """A name in a table of TensorBoard's Markdown: as it is, on one line."""
    return re.sub(r"([\\`*_{}\[\]()#+\-.!|])", r"\\\1", escape(" ".join(name.split()), quote=False))
