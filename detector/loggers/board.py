"""What dashboards have in common: what they get of a validation, and what they can show."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import cv2
import numpy as np

from boltbox.detector.evaluation.metrics import COCO_NAMES, Result
from boltbox.detector.evaluation.results import result_json

LOSSES = ("box_loss", "obj_loss", "cls_loss")
METRICS = ("P", "R", "mAP50", "mAP50-95", "fitness", *(f"coco/{name}" for name in COCO_NAMES))
BY_EPOCH = (*(f"train/{x}" for x in LOSSES), *(f"val/{x}" for x in (*LOSSES, *METRICS)))
BY_STEP = ("lr/bias", "lr/norm", "lr/weight", "momentum", "accumulate")
BEST = tuple(f"best/{x}" for x in ("epoch", *METRICS))

LONGEST = 640  # pixels, of a picture's longer side
QUALITY = 80  # of JPEG


class Picture(NamedTuple):
    """An image of the validation: (H, W, 3) uint8 RGB; labels and predictions as rows for
    `draw_boxes`."""

    image: np.ndarray
    labels: np.ndarray
    predictions: np.ndarray

    def shrunk(self) -> "Picture":
        """With the longer side at most LONGEST."""
        height, width = self.image.shape[:2]
        shrink = min(LONGEST / max(height, width), 1)
        if shrink == 1:
            return self
        size = (round(width * shrink), round(height * shrink))
        image = cv2.resize(self.image, size, interpolation=cv2.INTER_AREA)
        scale = np.array([size[0] / width, size[1] / height] * 2 + [1, 1])
        return Picture(np.asarray(image), self.labels * scale, self.predictions * scale)


class Evaluation(NamedTuple):
    """A validation. step: the Trainer's, of the last optimizer step before it."""

    result: Result
    names: list[str]
    epoch: int
    step: int
    pictures: list[Picture]

    def rows(self) -> list[dict[str, Any]]:
        """A row a class; see `result_json`."""
        return result_json(self.result, self.names)["per_class"]


class Ending(NamedTuple):
    """What is shown when a training ends. best: what metrics.json says of the best epoch; plots:
    pictures."""

    epoch: int
    step: int
    best: dict[str, Any]
    plots: list[Path]


class Board(Protocol):
    """A dashboard."""

    title: str

    def start(self, options: dict[str, Any], best: dict[str, float]) -> None:
        """The configuration, by group; the best metrics so far, BEST by name, empty for a fresh
        run."""

    def losses(self, names: Sequence[str]) -> None:
        """The names of the parts of the loss, before the first of them is logged as `train/NAME`
        and `val/NAME`."""

    def metrics(self, metrics: dict[str, float], step: int) -> None:
        """BY_STEP by name."""

    def best(self, metrics: dict[str, float], step: int) -> None:
        """BEST by name."""

    def evaluation(self, evaluation: Evaluation) -> int:
        """Tables, curves and pictures; about how many bytes that were."""

    def ending(self, ending: Ending) -> None:
        """The best epoch's table, and the plots."""

    def artifact(self, path: Path, alias: str, metadata: dict[str, Any]) -> None:
        """A checkpoint."""


def jpeg(image: np.ndarray) -> bytes:
    """(H, W, 3) uint8 RGB -> a JPEG file."""
    return cv2.imencode(".jpg", image[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, QUALITY])[1].tobytes()
