"""What `predict` writes, as the detections come."""

import signal
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

import lightning as L
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import BasePredictionWriter

from boltbox.detector.data.datamodule import DetectionData
from boltbox.detector.data.sample import Batch
from boltbox.detector.report.prediction_files import PredictionFiles, PredictionFormats
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.rank_zero import rank_zero_print
from boltbox.detector.system.signals import catch, give_back
from boltbox.detector.training.module import Detector


class PredictionWriter(BasePredictionWriter):
    """Files of a run of `predict`, written as the detections come; Ctrl-C, SIGTERM and SIGHUP end
    it and keep them.

    NAME is an image's path below the common folder of all images; of a video, that of the video
    with the frame's number, as in `NAME_000012`.

    Args:
        images: `images/NAME.jpg` with the boxes drawn in, or `videos/NAME.mp4`.
        labels: `labels/NAME.txt`, a line a detection, best first: class cx cy w h confidence, as
            fractions of the image.
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
        self.formats = PredictionFormats(
            images, labels, json, csv, crops, confidences, hide_labels, hide_confidences, line_width
        )
        self._files: PredictionFiles | None = None
        self._started = self._batch_started = self._network_seconds = 0.0
        self._handlers: dict[int, Any] = {}  # of SIGTERM and SIGHUP before the run

    def on_predict_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, Detector)
        self._started = time.perf_counter()
        if threading.current_thread() is threading.main_thread():
            self._handlers = catch(_exit, (signal.SIGTERM, signal.SIGHUP))
        self._files = PredictionFiles(
            Path(trainer.default_root_dir), pl_module.names, self.formats, trainer.global_rank
        )

    def on_predict_batch_start(self, *args: Any) -> None:
        self._batch_started = time.perf_counter()

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
        assert self._files is not None
        self._network_seconds += time.perf_counter() - self._batch_started
        loaders: Any = trainer.predict_dataloaders
        if getattr(loaders[dataloader_idx].batch_sampler, "padding_only", False):
            return
        data = trainer.datamodule  # type: ignore[attr-defined]
        assert isinstance(data, DetectionData)
        assert data.prediction is not None
        pictures = data.prediction.pictures(batch)
        # The tiles of one image have a letterbox each; there is one picture.
        for picture, letterbox, rows in zip(
            pictures,
            batch.letterboxes,
            prediction,
            strict=batch.windows is None,
        ):
            assert letterbox is not None
            self._files.add(picture, rows, letterbox.width, letterbox.height)

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        """Keep what there is: Ctrl-C ends a stream, for one, and a signal any run."""
        files = self._files
        if files is not None:
            files.close_video()
            files.write_json(files.results)
        if isinstance(exception, KeyboardInterrupt | SystemExit):
            found = files.detections if files else 0
            rank_zero_print(
                f"stopped; {found} detections so far are kept in {trainer.default_root_dir}"
            )

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        give_back(self._handlers)
        self._handlers = {}

    def on_predict_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """The summary, when all processes have written their part."""
        files = self._files
        assert files is not None
        files.close_video()
        results = files.results
        if self.formats.json and trainer.world_size > 1:
            everyone: list[Any] = [None] * trainer.world_size
            dist.all_gather_object(everyone, results)
            results = [entry for own in everyone for entry in own]
        counts = torch.tensor((files.pictures, files.detections), device=pl_module.device)
        pictures, detections = trainer.strategy.reduce(counts, reduce_op="sum").tolist()
        if not trainer.is_global_zero:
            return
        if not pictures:
            raise InputError("data.source: none of its files could be read")
        files.write_json(results)
        seconds = time.perf_counter() - self._started
        written = ", ".join(map(str, files.written())) or "nothing written"
        what = "images" if trainer.datamodule.prediction.sources.images else "frames"  # type: ignore[attr-defined]
        each = self._network_seconds / max(files.pictures, 1) * 1000
        rank_zero_print(f"\n{detections} detections in {pictures} {what}: {written}")
        rank_zero_print(
            f"{pictures / seconds:.1f} {what}/s; network and suppression took {each:.1f} ms each"
        )


def _exit(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
