"""What `predict` writes: drawn pictures and videos, labels, results as JSON and CSV, crops."""

import csv
import json as json_
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import lightning as L
import numpy as np
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import BasePredictionWriter

from detector.data.datamodule import DetectionData
from detector.data.images import read_image
from detector.data.sample import Batch, Picture
from detector.inference.outputs import CSV_COLUMNS, category_ids, coco_results, crops, csv_rows, frame_name, label_lines
from detector.inference.video_file import VideoFile
from detector.report.drawing import draw_boxes, write_image
from detector.system.atomic_file import write_atomically
from detector.system.errors import InputError
from detector.system.rank_zero import rank_zero_print
from detector.system.signals import catch, give_back
from detector.training.module import Detector


class PredictionWriter(BasePredictionWriter):
    """Files of a run of `predict`, written as the detections come; Ctrl-C, SIGTERM and SIGHUP end it and keep them.

    NAME is an image's path below the common folder of all images; of a video, that of the video with the frame's number, as in
    `NAME_000012`.

    Args:
        images: `images/NAME.jpg` with the boxes drawn in, or `videos/NAME.mp4`.
        labels: `labels/NAME.txt`, a line a detection, best first: class cx cy w h confidence, as fractions of the image.
        json: `predictions.json`, COCO's results format.
        csv: `predictions.csv`, a row a detection; of several processes each writes its own.
        crops: `crops/CLASS/NAME_NUMBER.jpg`, what lies within each box.
        confidences: Confidences in the label files.
        hide_labels: Draw boxes alone.
        hide_confidences: Draw boxes and class names alone.
        line_width: Of the drawn boxes, in pixels; default: by the size of the image.
    """

    def __init__(
        self,
        images: bool = True,
        labels: bool = True,
        json: bool = False,
        csv: bool = False,
        crops: bool = False,
        confidences: bool = True,
        hide_labels: bool = False,
        hide_confidences: bool = False,
        line_width: int | None = None,
    ) -> None:
        super().__init__("batch")
        if line_width is not None and line_width < 1:
            raise InputError(f"save.line_width is {line_width}; it must be at least 1 pixel")
        self.images, self.labels, self.json, self.csv, self.crops = images, labels, json, csv, crops
        self.confidences, self.hide_labels, self.hide_confidences = confidences, hide_labels, hide_confidences
        self.line_width = line_width
        self.pictures = self.detections = 0
        self._results: list[dict[str, Any]] = []  # for predictions.json
        self._video: VideoFile | None = None
        self._begun, self._looking, self._started = 0.0, 0.0, 0.0
        self._before: dict[int, Any] = {}  # what SIGTERM and SIGHUP did

    def on_predict_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._begun = time.perf_counter()
        if threading.current_thread() is threading.main_thread():
            self._before = catch(_leave, (signal.SIGTERM, signal.SIGHUP))
        if self.csv:
            with open(self._csv_path(trainer), "w", newline="") as file:
                csv.writer(file).writerow(CSV_COLUMNS)

    def on_predict_batch_start(self, *args: Any) -> None:
        self._started = time.perf_counter()

    def write_on_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        prediction: Any,
        batch_indices: Any,
        batch: Batch,
        batch_idx: int,
        dataloader_idx: int,
    ) -> None:
        assert isinstance(pl_module, Detector)
        self._looking += time.perf_counter() - self._started
        loaders: Any = trainer.predict_dataloaders
        if getattr(loaders[dataloader_idx].batch_sampler, "padding_only", False):
            return
        data = trainer.datamodule  # type: ignore[attr-defined]
        assert isinstance(data, DetectionData)
        folder = Path(trainer.default_root_dir)
        # The tiles of one image have a letterbox each; there is one picture.
        for picture, letterbox, rows in zip(data.pictures(batch), batch.letterboxes, prediction, strict=batch.windows is None):
            assert letterbox is not None
            self._write_picture(folder, picture, rows, pl_module.names)
            if self.labels:
                text = label_lines(rows, letterbox.width, letterbox.height, self.confidences)
                _write(folder / "labels" / f"{frame_name(picture)}.txt", partial(Path.write_text, data=text))
            if self.json:
                self._results += coco_results(picture, rows, category_ids(pl_module.names))
            if self.csv:
                with open(self._csv_path(trainer), "a", newline="") as file:
                    csv.writer(file).writerows(csv_rows(picture, rows, pl_module.names))
            self.pictures, self.detections = self.pictures + 1, self.detections + len(rows)

    def _write_picture(self, folder: Path, picture: Picture, rows: np.ndarray, names: list[str]) -> None:
        """The drawn image or video frame, and the crops."""
        if not (self.images or (self.crops and len(rows))):
            return
        pixels = read_image(picture.path) if picture.pixels is None else picture.pixels
        if self.crops:
            for name, number, crop in crops(pixels, rows, names):
                _write_image(folder / "crops" / name / f"{frame_name(picture)}_{number:03d}.jpg", crop)
        if self.images:
            style = not self.hide_labels, not self.hide_confidences, self.line_width
            drawn = draw_boxes(pixels, rows, names, *style)
            if picture.frame is None:
                _write_image(folder / "images" / f"{picture.name}.jpg", drawn)
            else:
                self._write_frame(folder / "videos" / f"{picture.name}.mp4", picture.fps, drawn)

    def _write_frame(self, path: Path, fps: float, drawn: np.ndarray) -> None:
        if self._video is None or self._video.path != path:
            self._close_video()
            self._video = VideoFile(path, fps, (drawn.shape[0], drawn.shape[1]))
        self._video.write(drawn)

    def _close_video(self) -> None:
        if self._video is not None:
            self._video.close()
        self._video = None

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Ctrl-C ends a stream, for one, and a signal anything: what there is so far is kept."""
        self._close_video()
        if self.json and self._begun:
            self._write_json(trainer, self._results)
        if isinstance(exception, KeyboardInterrupt | SystemExit):
            rank_zero_print(f"stopped; {self.detections} detections so far are kept in {trainer.default_root_dir}")

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        give_back(self._before)
        self._before = {}

    def on_predict_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Said when all processes have written their share."""
        self._close_video()
        results = self._results
        if self.json and trainer.world_size > 1:
            everyone: list[Any] = [None] * trainer.world_size
            dist.all_gather_object(everyone, results)
            results = [entry for own in everyone for entry in own]
        counts = torch.tensor((self.pictures, self.detections), device=pl_module.device)
        pictures, detections = trainer.strategy.reduce(counts, reduce_op="sum").tolist()
        if not trainer.is_global_zero:
            return
        if not pictures:
            raise InputError("data.source: none of its files could be read")
        if self.json:
            self._write_json(trainer, results)
        folder, seconds = Path(trainer.default_root_dir), time.perf_counter() - self._begun
        kinds = ("images", "videos", "labels", "crops", "predictions.json", "predictions.csv")
        written = ", ".join(str(folder / kind) for kind in kinds if (folder / kind).exists())
        what = "images" if trainer.datamodule.sources.images else "frames"  # type: ignore[attr-defined]
        looked = self._looking / max(self.pictures, 1) * 1000
        print(f"\n{detections} detections in {pictures} {what}: {written or 'nothing written'}")
        print(f"{pictures / seconds:.1f} {what}/s; network and suppression took {looked:.1f} ms each")

    def _write_json(self, trainer: L.Trainer, results: list[dict[str, Any]]) -> None:
        path = Path(trainer.default_root_dir) / "predictions.json"
        write_atomically(path, lambda file: file.write(json_.dumps(results).encode()))

    @staticmethod
    def _csv_path(trainer: L.Trainer) -> Path:
        rank = f".{trainer.global_rank}" if trainer.global_rank else ""
        return Path(trainer.default_root_dir) / f"predictions{rank}.csv"


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _write_image(path: Path, pixels: np.ndarray) -> None:
    _write(path, partial(write_image, image=pixels))


def _write(path: Path, write: Callable[[Path], object]) -> None:
    """Through a file beside it: `path` is whole or absent. Not synced to the disk, which takes longer than a network."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".tmp.{path.name}")
    write(beside)
    beside.replace(path)
