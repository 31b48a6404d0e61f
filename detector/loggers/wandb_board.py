"""What Weights & Biases shows of a training."""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from lightning.pytorch.loggers import WandbLogger

from boltbox.detector.evaluation.metrics import RECALLS
from boltbox.detector.evaluation.results import confusions, largest_classes
from boltbox.detector.loggers.board import BY_EPOCH, BY_STEP, Ending, Evaluation, Picture, jpeg

CURVES = 20  # classes in the precision-recall plot: more lines cannot be told apart
EVERY = 2  # of RECALLS, which point such a curve has
# the x-axis of BY_STEP; Lightning adds it to each row, later releases under another name
STEP = "trainer/global_step"
MEDIA = (
    "val/per_class",
    "val/confusion_table",
    "val/precision_recall_table",
    "val/images",
    "best/per_class",
)


class WandbBoard:
    """Shows a training in the run of a WandbLogger. Boxes are drawn by W&B, so that they can be
    filtered by class and score."""

    title = "W&B"

    def __init__(self, logger: WandbLogger) -> None:
        self.logger = logger
        self._options = 0  # bytes of the configuration

    def start(self, options: dict[str, Any], best: dict[str, float]) -> None:
        run: Any = self.logger.experiment
        run.define_metric("epoch")
        for name in (*BY_EPOCH, *MEDIA):
            run.define_metric(name, step_metric="epoch")
        for name in BY_STEP:
            run.define_metric(name, step_metric=STEP)
        self._options = len(json.dumps(options, default=str))
        self.logger.log_hyperparams(options)
        run.summary.update(best)

    def losses(self, names: Sequence[str]) -> None:
        run: Any = self.logger.experiment
        for name in (f"{split}/{loss}" for loss in names for split in ("train", "val")):
            if name not in BY_EPOCH:
                run.define_metric(name, step_metric="epoch")

    def metrics(self, metrics: dict[str, float], step: int) -> None:
        self.logger.log_metrics({STEP: step, **metrics}, step)

    def best(self, metrics: dict[str, float], step: int) -> None:
        """In the run's summary, where W&B would keep the last value."""
        run: Any = self.logger.experiment
        run.summary.update(metrics)

    def evaluation(self, evaluation: Evaluation) -> int:
        import wandb

        rows, cells = evaluation.rows(), confusions(evaluation.result, evaluation.names)
        curves = _curves(evaluation)
        shown: dict[str, Any] = {
            "epoch": evaluation.epoch,
            "val/per_class": _table(rows),
            "val/confusion": wandb.plot_table(
                "wandb/confusion_matrix/v1",
                wandb.Table(
                    ["Actual", "Predicted", "nPredictions"], [list(cell) for cell in cells]
                ),
                {name: name for name in ("Actual", "Predicted", "nPredictions")},
                {"title": "Confusion matrix"},
            ),
            "val/precision_recall": wandb.plot_table(
                "wandb/area-under-curve/v0",
                wandb.Table(["class", "recall", "precision"], curves),
                {"x": "recall", "y": "precision", "class": "class"},
                {
                    "title": "Precision against recall, IoU 0.5",
                    "x-axis-title": "Recall",
                    "y-axis-title": "Precision",
                },
            ),
        }
        size = len(json.dumps([rows, cells, curves]))
        with tempfile.TemporaryDirectory() as folder:
            if evaluation.pictures:
                labels = dict(enumerate(evaluation.names))
                files = [Path(folder) / f"{i}.jpg" for i in range(len(evaluation.pictures))]
                boxes = [_boxes(picture, labels) for picture in evaluation.pictures]
                for picture, file in zip(evaluation.pictures, files, strict=True):
                    file.write_bytes(jpeg(picture.image))
                shown["val/images"] = [
                    wandb.Image(str(f), boxes=b) for f, b in zip(files, boxes, strict=True)
                ]
                size += sum(file.stat().st_size for file in files) + len(json.dumps(boxes))
                # W&B writes the configuration down with each kind of box
                size += 2 * len(files) * self._options
            self.logger.log_metrics(shown, evaluation.step)
        return size

    def ending(self, ending: Ending) -> None:
        import wandb

        shown: dict[str, Any] = {
            f"plots/{path.name}": wandb.Image(str(path)) for path in ending.plots
        }
        if ending.best:
            shown["best/per_class"] = _table(ending.best["per_class"])
        if shown:
            self.logger.log_metrics({"epoch": ending.epoch, **shown}, ending.step)

    def artifact(self, path: Path, alias: str, metadata: dict[str, Any]) -> None:
        import wandb

        run: Any = self.logger.experiment
        artifact = wandb.Artifact(f"model-{run.id}", "model", metadata=metadata)
        artifact.add_file(str(path), name="model.ckpt")
        run.log_artifact(artifact, aliases=[alias])


def _table(rows: list[dict[str, Any]]) -> Any:
    import wandb

    columns = ("objects", "P", "R", "mAP50", "mAP50-95", "coco/AP")
    return wandb.Table(
        ["class", *columns], [[row["name"], *(row[c] for c in columns)] for row in rows]
    )


def _curves(evaluation: Evaluation) -> list[list[Any]]:
    """Rows of class, recall, precision: the mean of all classes, then the classes with most
    objects."""
    metrics = evaluation.result.by_class
    if not len(metrics.classes):
        return []
    precisions = metrics.precision_at_recall[:, ::EVERY]
    lines = {"mean of all classes": precisions.mean(0)}
    lines |= {
        evaluation.names[metrics.classes[i]]: precisions[i]
        for i in largest_classes(metrics, CURVES)
    }
    at = RECALLS[::EVERY].round(4).tolist()
    return [
        [name, r, p]
        for name, line in lines.items()
        for r, p in zip(at, line.round(4).tolist(), strict=True)
    ]


def _boxes(picture: Picture, labels: dict[int, str]) -> dict[str, Any]:
    return {
        "predictions": {
            "box_data": [_box(row, labels) for row in picture.predictions],
            "class_labels": labels,
        },
        "ground_truth": {
            "box_data": [_box(row, labels) for row in picture.labels],
            "class_labels": labels,
        },
    }


def _box(row: np.ndarray, labels: dict[int, str]) -> dict[str, Any]:
    """A row for `draw_boxes` as W&B wants it."""
    *corners, score, c = row.tolist()
    position = dict(
        zip(("minX", "minY", "maxX", "maxY"), (round(x, 2) for x in corners), strict=True)
    )
    box = {
        "position": position,
        "domain": "pixel",
        "class_id": int(c),
        "box_caption": labels[int(c)],
    }
    if not np.isnan(score):
        box |= {
            "box_caption": f"{labels[int(c)]} {score:.2f}",
            "scores": {"confidence": round(score, 4)},
        }
    return box
