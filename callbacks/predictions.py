"""What `predict` writes: drawn pictures and label files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import BasePredictionWriter

from detector.boxes import xyxy_to_cxcywhn
from detector.data.datamodule import DetectionData
from detector.data.images import read_image
from detector.data.sample import Batch
from detector.drawing import draw_boxes, write_image
from detector.module import Detector


class PredictionWriter(BasePredictionWriter):
    """`images/NAME.jpg` with the boxes drawn in, and `labels/NAME.txt` with a line a detection, best first: class cx cy w h
    confidence, as fractions of the image. NAME is the path below the common folder of all images."""

    def __init__(self) -> None:
        super().__init__("batch")
        self.detections = 0

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
        if trainer.predict_dataloaders.batch_sampler.spare:  # type: ignore[union-attr]
            return
        data = trainer.datamodule  # type: ignore[attr-defined]
        assert isinstance(data, DetectionData)
        outputs = output_names(data.datasets["predict"].files)
        folder = Path(trainer.default_root_dir)
        for index, frame, rows in zip(batch.indices, batch.frames, prediction, strict=True):
            assert frame is not None
            picture = folder / "images" / f"{outputs[index]}.jpg"
            labels = folder / "labels" / f"{outputs[index]}.txt"
            picture.parent.mkdir(parents=True, exist_ok=True)
            labels.parent.mkdir(parents=True, exist_ok=True)
            write_image(picture, draw_boxes(read_image(data.datasets["predict"].files[index]), rows, pl_module.names))
            labels.write_text(label_lines(rows, frame.width, frame.height))
            self.detections += len(rows)

    def on_predict_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Said when all processes have written their share."""
        count = len(trainer.datamodule.datasets["predict"])  # type: ignore[attr-defined]
        total = trainer.strategy.reduce(torch.tensor(self.detections, device=pl_module.device), reduce_op="sum")
        if trainer.is_global_zero:
            folder = Path(trainer.default_root_dir)
            print(f"\n{int(total)} detections in {count} images: {folder / 'images'}, {folder / 'labels'}")


def output_names(files: Sequence[str]) -> list[str]:
    """For each image file a name without suffix, its path below the common folder; files that differ in their suffix alone keep
    it, as `name_png`."""
    folder = Path(files[0]).parent
    while not all(Path(f).is_relative_to(folder) for f in files):
        folder = folder.parent
    names = [Path(f).relative_to(folder) for f in files]
    stems = [str(n.with_suffix("")) for n in names]
    return [s if stems.count(s) == 1 else f"{s}_{n.suffix[1:]}" for s, n in zip(stems, names, strict=True)]


def label_lines(rows: np.ndarray, width: int, height: int) -> str:
    """(n, 6) x1, y1, x2, y2 in pixels, score, class -> the text of a label file."""
    boxes = xyxy_to_cxcywhn(rows[:, :4], width, height)
    lines = [f"{int(r[5])} " + " ".join(f"{x:.6g}" for x in (*b, r[4])) for r, b in zip(rows, boxes, strict=True)]
    return "".join(f"{line}\n" for line in lines)
