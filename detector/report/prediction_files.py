"""The files that `predict` writes: drawn images and videos, labels, crops, results as JSON and
CSV."""

import csv
import json
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np

from boltbox.detector.data.images import read_image
from boltbox.detector.data.sample import SourceImage
from boltbox.detector.inference.detections import draw_boxes, encode_jpeg
from boltbox.detector.model.boxes import xyxy_to_cxcywhn
from boltbox.detector.report.labelling_tools import Tool
from boltbox.detector.report.video_file import VideoFile
from boltbox.detector.system.atomic_file import sync_files, write_atomically
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.ranges import PositiveInt

CSV_COLUMNS = ("image", "frame", "class", "name", "confidence", "x1", "y1", "x2", "y2")
FLUSHED = 2000  # files that are flushed to the disk together
COCO_CLASSES = 80
COCO_UNUSED = {12, 26, 29, 30, 45, 66, 68, 69, 71, 83}  # of COCO's category ids 1 to 90


@dataclass(frozen=True)
class Output:
    """What to write.

    Args:
        run: Output folder; default: runs/predict-NUMBER. A folder of fit: where last and best
            are.
        images: Write images/NAME.jpg with drawn boxes, or videos/NAME.mp4.
        labels: Write labels/NAME.txt, one line per detection, best first: class cx cy w h
            confidence, as fractions of the image; or the folder to write NAME.txt into. No label
            file is replaced.
        json: Write predictions.json, COCO's results format.
        csv: Write predictions.csv, one row per detection.
        export: Write pre-labels of images that a labelling tool imports: label-studio, cvat or
            coco (docs/predict.md).
        crops: Write crops/CLASS/NAME_NUMBER.jpg, the pixels within each box.
        confidences: Write confidences into the label files.
        hide_labels: Draw boxes without text.
        hide_confidences: Draw class names without confidences.
        line_width: Width of drawn lines in pixels; default: by image size.
    """

    run: Path | None = None
    images: bool = True
    labels: bool | Path = True
    json: bool = False
    csv: bool = False
    export: Tool | None = None
    crops: bool = False
    confidences: bool = True
    hide_labels: bool = False
    hide_confidences: bool = False
    line_width: PositiveInt | None = None


@dataclass
class PredictionFiles:
    """The files of a run, written source by source.

    Attributes:
        folder: The run folder.
        names: Class names.
        output: What to write.
        tracks: Whether rows have a seventh column, the number of the track.
        labels: Folder of the label files; None: none are written.
        pictures: Number of pictures so far.
        empty: Number of these without a detection.
        counts: Detections by class number.
    """

    folder: Path
    names: Sequence[str]
    output: Output
    tracks: bool = False
    labels: Path | None = field(init=False)
    pictures: int = 0
    empty: int = 0
    counts: Counter[int] = field(default_factory=Counter)
    _results: IO[str] | None = None  # name and rows for predictions.json, a line per image
    _numbers: dict[str, int] = field(default_factory=dict)  # of images named by one
    _video: VideoFile | None = None
    _written: list[Path] = field(default_factory=list)  # not yet flushed to the disk

    def __post_init__(self) -> None:
        labels = self.output.labels
        if labels is True:
            labels = self.folder / "labels"
        self.labels = labels or None
        if self.output.csv:
            columns = [*CSV_COLUMNS, "track"] if self.tracks else CSV_COLUMNS
            self._add_to_table([columns], "w")
        if self.output.json:
            self._results = tempfile.TemporaryFile("w+", dir=self.folder)  # noqa: SIM115

    def _add_to_table(self, rows: Iterable[Sequence[Any]], mode: str = "a") -> None:
        path = self.folder / "predictions.csv"
        with open(path, mode, newline="", encoding="utf-8", errors="backslashreplace") as file:
            csv.writer(file).writerows(rows)

    def add(self, source: SourceImage, rows: np.ndarray, width: int, height: int) -> None:
        """Write the files of an image or of a frame of a video.

        Args:
            source: Its name, pixels and place in a video.
            rows: (n, 6) detections, best first: x1, y1, x2, y2 in pixels of the source,
                confidence, class; (n, 7) with `tracks`.
            width: Of the source in pixels.
            height: Of the source in pixels.
        """
        name = source.name
        if source.frame is not None:
            name += f"_{source.frame:06d}"
        output = self.output
        if output.images or (output.crops and len(rows)):
            pixels = read_image(source.path) if source.pixels is None else source.pixels
            if output.crops:
                self._add_crops(name, pixels, rows)
            if output.images:
                self._add_drawn(source, pixels, rows)
        if self.labels:
            self._add_labels(self.labels / f"{name}.txt", rows, width, height)
        if self._results and len(rows):
            self._results.write(json.dumps([name, rows.tolist()]) + "\n")
            stem = Path(name).name
            if re.fullmatch("[0-9]+", stem):
                self._numbers[name] = int(stem)
        if output.csv:
            self._add_table_rows(source, rows)
        self.pictures += 1
        self.empty += len(rows) == 0
        self.counts.update(rows[:, 5].astype(int).tolist())

    def _add_crops(self, name: str, pixels: np.ndarray, rows: np.ndarray) -> None:
        height, width, _ = pixels.shape
        for number, row in enumerate(rows):
            left, top = np.floor(row[:2]).clip(0, (width - 1, height - 1)).astype(int)
            right, bottom = np.ceil(row[2:4]).clip((left + 1, top + 1)).astype(int)
            folder = self.folder / "crops" / folder_name(self.names[int(row[5])])
            crop = encode_jpeg(pixels[top:bottom, left:right])
            self._write(folder / f"{name}_{number:03d}.jpg", crop)

    def _add_drawn(self, source: SourceImage, pixels: np.ndarray, rows: np.ndarray) -> None:
        """The image or the video frame with its boxes."""
        drawn = draw_boxes(
            pixels,
            rows,
            self.names,
            with_names=not self.output.hide_labels,
            with_confidences=not self.output.hide_confidences,
            line_width=self.output.line_width,
        )
        if source.frame is None:
            self._write(self.folder / f"images/{source.name}.jpg", encode_jpeg(drawn))
            return
        path = self.folder / f"videos/{source.name}.mp4"
        if self._video is None or self._video.path != path:
            self.close_video()
            height, width, _ = drawn.shape
            self._video = VideoFile(path, source.fps, (height, width))
        self._video.write(drawn)

    def _add_labels(self, path: Path, rows: np.ndarray, width: int, height: int) -> None:
        """YOLO's label format: class, box, and the confidence if it is asked for; the track."""
        if path.exists():  # by now
            raise InputError(f"{path} exists, and no label file is replaced. Move it")
        columns = [rows[:, 5], xyxy_to_cxcywhn(rows[:, :4], width, height)]
        if self.output.confidences:
            columns.append(rows[:, 4])
        columns.append(rows[:, 6:])
        table = np.column_stack(columns)
        style = "%d" + " %.6g" * (table.shape[1] - 1)
        self._write(path, lambda file: np.savetxt(file, table, style))

    def _add_table_rows(self, source: SourceImage, rows: np.ndarray) -> None:
        frame = "" if source.frame is None else source.frame
        table = []
        for x1, y1, x2, y2, score, number, *track in rows.tolist():
            row = [source.path, frame, int(number), self.names[int(number)], f"{score:.5f}"]
            row += [f"{v:.2f}" for v in (x1, y1, x2, y2)]
            table.append(row + [int(v) for v in track])
        self._add_to_table(table)

    def _write(self, path: Path, content: bytes | Callable[[BinaryIO], object]) -> None:
        """Completely, but not yet flushed to the disk."""
        write_atomically(path, content, sync=False)
        self._written.append(path)
        if len(self._written) == FLUSHED:  # a stream may go on for days
            self._flush()

    def _flush(self) -> None:
        sync_files(self._written)
        self._written.clear()

    def close_video(self) -> None:
        """Finish the video that is being written; the next frame begins another."""
        if self._video is not None:
            self._video.close()
        self._video = None

    def close(self) -> None:
        """Finish the video that is being written, and predictions.json, and flush all files to the
        disk."""
        self.close_video()
        if self.output.csv:
            self._written.append(self.folder / "predictions.csv")
        self._flush()
        if self._results:
            with self._results:
                write_atomically(self.folder / "predictions.json", self._write_results)

    def _write_results(self, file: BinaryIO) -> None:
        """COCO's results format; bbox is x, y, width, height in pixels. An image whose name is a
        number gets it as id, 139 for val/000000000139, unless two have the same."""
        assert self._results
        ids = category_ids(self.names)
        numbers = self._numbers
        if len(set(numbers.values())) < len(numbers):
            numbers = {}
        separator = "["
        self._results.seek(0)
        for line in self._results:
            image, rows = json.loads(line)
            for x1, y1, x2, y2, score, number, *track in rows:
                result = {
                    "image_id": numbers.get(image, image),
                    "category_id": ids[int(number)],
                    "bbox": [round(v, 3) for v in (x1, y1, x2 - x1, y2 - y1)],
                    "score": round(score, 5),
                }
                if track:
                    result["track_id"] = int(track[0])
                file.write((separator + json.dumps(result)).encode())
                separator = ", "
        file.write(b"[]" if separator == "[" else b"]")


def category_ids(names: Sequence[str]) -> list[int]:
    """COCO's category id of each class: its own ids for its own 80 classes, else the class
    numbers.

    Args:
        names: Class names.
    """
    if len(names) == COCO_CLASSES and (names[0], names[-1]) == ("person", "toothbrush"):
        return [i for i in range(1, 91) if i not in COCO_UNUSED]
    return list(range(len(names)))


def folder_name(name: str) -> str:
    """A class name as the name of a folder.

    Args:
        name: Of a class.

    >>> folder_name("traffic light"), folder_name("../a/b"), folder_name("..")
    ('traffic light', '.._a_b', '_..')
    """
    safe = re.sub(r'[/\\:*?"<>|\x00-\x1f]', "_", name).strip()
    return safe if safe.strip(".") else f"_{safe}"
