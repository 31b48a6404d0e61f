"""The files that `predict` writes: drawn images and videos, labels, crops, results as JSON and
CSV."""

import csv
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
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
from boltbox.detector.report.drawing import draw_boxes, write_image
from boltbox.detector.system.atomic_file import write_atomically

KINDS = ("images", "videos", "labels", "crops", "predictions.json", "predictions.csv")


@dataclass(frozen=True)
class PredictionFormats:
    """What is written, and how: options of the command `predict`."""

    images: bool
    labels: bool
    json: bool
    csv: bool
    crops: bool
    confidences: bool
    hide_labels: bool
    hide_confidences: bool
    line_width: int | None


class PredictionFiles:
    """The files of a run, written picture by picture.

    Args:
        folder: of the run.
        names: of the classes.
        formats: what is written.

    Attributes:
        pictures, detections: how many have been written. results: entries of predictions.json.
    """

    def __init__(self, folder: Path, names: Sequence[str], formats: PredictionFormats) -> None:
        self.folder, self.names, self.formats = folder, list(names), formats
        self.pictures = self.detections = 0
        self.results: list[dict[str, Any]] = []
        self._csv = folder / "predictions.csv"
        self._video: VideoFile | None = None
        if formats.csv:
            with open(self._csv, "w", newline="") as file:
                csv.writer(file).writerow(CSV_COLUMNS)

    def add(self, picture: Picture, rows: np.ndarray, width: int, height: int) -> None:
        """Write the files of an image or of a frame of a video.

        Args:
            rows: (n, 6) detections, best first: x1, y1, x2, y2 in pixels of the picture,
                confidence, class.
            width, height: of the picture in pixels.
        """
        self._add_pixels(picture, rows)
        if self.formats.labels:
            text = label_lines(rows, width, height, self.formats.confidences)
            _write(
                self.folder / "labels" / f"{frame_name(picture)}.txt",
                partial(Path.write_text, data=text),
            )
        if self.formats.json:
            self.results += coco_results(picture, rows, category_ids(self.names))
        if self.formats.csv:
            with open(self._csv, "a", newline="") as file:
                csv.writer(file).writerows(csv_rows(picture, rows, self.names))
        self.pictures, self.detections = self.pictures + 1, self.detections + len(rows)

    def _add_pixels(self, picture: Picture, rows: np.ndarray) -> None:
        """The drawn image or video frame, and the crops."""
        formats = self.formats
        if not (formats.images or (formats.crops and len(rows))):
            return
        pixels = read_image(picture.path) if picture.pixels is None else picture.pixels
        if formats.crops:
            for name, number, crop in crops(pixels, rows, self.names):
                _write_image(
                    self.folder / "crops" / name / f"{frame_name(picture)}_{number:03d}.jpg", crop
                )
        if formats.images:
            style = not formats.hide_labels, not formats.hide_confidences, formats.line_width
            drawn = draw_boxes(pixels, rows, self.names, *style)
            if picture.frame is None:
                _write_image(self.folder / "images" / f"{picture.name}.jpg", drawn)
            else:
                self._add_frame(self.folder / "videos" / f"{picture.name}.mp4", picture.fps, drawn)

    def _add_frame(self, path: Path, fps: float, drawn: np.ndarray) -> None:
        if self._video is None or self._video.path != path:
            self.close_video()
            self._video = VideoFile(path, fps, (drawn.shape[0], drawn.shape[1]))
        self._video.write(drawn)

    def close_video(self) -> None:
        """Finish the video that is being written; the next frame begins another."""
        if self._video is not None:
            self._video.close()
        self._video = None

    def close(self) -> None:
        """Finish the video that is being written, and predictions.json."""
        self.close_video()
        if self.formats.json:
            content = json.dumps(self.results).encode()
            write_atomically(self.folder / "predictions.json", lambda file: file.write(content))

    def written(self) -> list[Path]:
        """Files and folders of predictions that are in the run's folder."""
        return [self.folder / kind for kind in KINDS if (self.folder / kind).exists()]


def _write_image(path: Path, pixels: np.ndarray) -> None:
    _write(path, partial(write_image, image=pixels))


def _write(path: Path, write: Callable[[Path], object]) -> None:
    """Through a temporary file beside it: `path` is complete or absent. Not synced to the disk,
    which takes longer than the network."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".tmp.{path.name}")
    beside.unlink(missing_ok=True)  # a link would be followed
    write(beside)
    beside.replace(path)
