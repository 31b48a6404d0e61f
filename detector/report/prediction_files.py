"""The files that `predict` writes: drawn images and videos, labels, crops, results as JSON and
CSV."""

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from boltbox.detector.data.images import read_image
from boltbox.detector.data.sample import Picture
from boltbox.detector.inference.outputs import (
    CSV_COLUMNS,
    category_ids,
    coco_results,
    crops,
    csv_rows,
    frame_name,
    label_lines,
)
from boltbox.detector.inference.video_file import VideoFile
from boltbox.detector.report.drawing import draw_boxes, encoded
from boltbox.detector.system.atomic_file import write_atomically

KINDS = ("images", "videos", "labels", "crops", "predictions.json", "predictions.csv")


@dataclass
class PredictionFiles:
    """The files of a run, written picture by picture.

    folder: of the run · names: of the classes · images to line_width: options of the command
    `predict` · pictures, detections: how many have been written · results: entries of
    predictions.json.
    """

    folder: Path
    names: Sequence[str]
    images: bool
    labels: bool
    json: bool
    csv: bool
    crops: bool
    confidences: bool
    hide_labels: bool
    hide_confidences: bool
    line_width: int | None
    pictures: int = 0
    detections: int = 0
    results: list[dict[str, Any]] = field(default_factory=list)
    _video: VideoFile | None = None

    def __post_init__(self) -> None:
        if self.csv:
            self._add_to_table([CSV_COLUMNS], "w")

    def _add_to_table(self, rows: Sequence[Sequence[Any]], mode: str = "a") -> None:
        with open(self.folder / "predictions.csv", mode, newline="") as file:
            csv.writer(file).writerows(rows)

    def add(self, picture: Picture, rows: np.ndarray, width: int, height: int) -> None:
        """Write the files of an image or of a frame of a video.

        Args:
            rows: (n, 6) detections, best first: x1, y1, x2, y2 in pixels of the picture,
                confidence, class.
            width, height: of the picture in pixels.
        """
        name = frame_name(picture)
        if self.images or (self.crops and len(rows)):
            self._add_pixels(picture, name, rows)
        if self.labels:
            text = label_lines(rows, width, height, self.confidences)
            _write(self.folder / f"labels/{name}.txt", text.encode())
        if self.json:
            self.results += coco_results(picture, rows, category_ids(self.names))
        if self.csv:
            self._add_to_table(csv_rows(picture, rows, self.names))
        self.pictures, self.detections = self.pictures + 1, self.detections + len(rows)

    def _add_pixels(self, picture: Picture, name: str, rows: np.ndarray) -> None:
        """The drawn image or video frame, and the crops."""
        pixels = read_image(picture.path) if picture.pixels is None else picture.pixels
        if self.crops:
            for kind, number, crop in crops(pixels, rows, self.names):
                _write(self.folder / "crops" / kind / f"{name}_{number:03d}.jpg", encoded(crop))
        if not self.images:
            return
        style = not self.hide_labels, not self.hide_confidences, self.line_width
        drawn = draw_boxes(pixels, rows, self.names, *style)
        if picture.frame is None:
            _write(self.folder / f"images/{name}.jpg", encoded(drawn))
            return
        path = self.folder / f"videos/{picture.name}.mp4"
        if self._video is None or self._video.path != path:
            self.close_video()
            self._video = VideoFile(path, picture.fps, (drawn.shape[0], drawn.shape[1]))
        self._video.write(drawn)

    def close_video(self) -> None:
        """Finish the video that is being written; the next frame begins another."""
        if self._video is not None:
            self._video.close()
        self._video = None

    def close(self) -> None:
        """Finish the video that is being written, and predictions.json."""
        self.close_video()
        if self.json:
            content = json.dumps(self.results).encode()
            write_atomically(self.folder / "predictions.json", lambda file: file.write(content))

    def written(self) -> list[Path]:
        """Files and folders of predictions that are in the run's folder."""
        return [self.folder / kind for kind in KINDS if (self.folder / kind).exists()]


def _write(path: Path, content: bytes) -> None:
    """Through a temporary file beside it: `path` is complete or absent. Not synced to the disk,
    which takes longer than the network."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".tmp.{path.name}")
    beside.unlink(missing_ok=True)  # a link would be followed
    beside.write_bytes(content)
    beside.replace(path)
