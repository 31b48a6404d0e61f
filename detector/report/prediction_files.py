"""The files that `predict` writes: drawn images and videos, labels, crops, results as JSON and
CSV."""

import csv
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from boltbox.detector.data.images import read_image
from boltbox.detector.data.sample import Picture
from boltbox.detector.model.boxes import xyxy_to_cxcywhn
from boltbox.detector.report.drawing import draw_boxes, encode_jpeg
from boltbox.detector.report.video_file import VideoFile
from boltbox.detector.system.atomic_file import sync_files, write_atomically
from boltbox.detector.system.errors import InputError

CSV_COLUMNS = ("image", "frame", "class", "name", "confidence", "x1", "y1", "x2", "y2")
# COCO's 80 classes have the ids 1 to 90; these ten stand for nothing in its boxes.
COCO_CLASSES, COCO_UNUSED = 80, {12, 26, 29, 30, 45, 66, 68, 69, 71, 83}


@dataclass
class PredictionFiles:
    """The files of a run, written picture by picture.

    folder: of the run · names: of the classes · images to confidences: options of the command
    `predict`; labels: folder of the label files, None: none · style: whether names and confidences
    are drawn, width of the lines · pictures: number of written ones · empty: of these without a
    detection · counts: detections by class number · results: entries of predictions.json.
    """

    folder: Path
    names: Sequence[str]
    images: bool
    labels: Path | None
    json: bool
    csv: bool
    crops: bool
    confidences: bool
    style: tuple[bool, bool, int | None]
    pictures: int = 0
    empty: int = 0
    counts: Counter[int] = field(default_factory=Counter)
    results: list[dict[str, Any]] = field(default_factory=list)
    _video: VideoFile | None = None
    _written: list[Path] = field(default_factory=list)  # not yet flushed to the disk

    def __post_init__(self) -> None:
        if self.csv:
            self._add_to_table([CSV_COLUMNS], "w")

    def _add_to_table(self, rows: Iterable[Sequence[Any]], mode: str = "a") -> None:
        with open(
            self.folder / "predictions.csv",
            mode,
            newline="",
            encoding="utf-8",
            errors="backslashreplace",
        ) as file:
            csv.writer(file).writerows(rows)

    def add(self, picture: Picture, rows: np.ndarray, width: int, height: int) -> None:
        """Write the files of an image or of a frame of a video.

        Args:
            rows: (n, 6) detections, best first: x1, y1, x2, y2 in pixels of the picture,
                confidence, class.
            width, height: of the picture in pixels.
        """
        frame = "" if picture.frame is None else f"_{picture.frame:06d}"
        name = f"{picture.name}{frame}"
        if self.images or (self.crops and len(rows)):
            self._add_pixels(picture, name, rows)
        if self.labels:
            boxes = xyxy_to_cxcywhn(rows[:, :4], width, height)
            columns = 6 if self.confidences else 5
            table = np.column_stack((rows[:, 5], boxes, rows[:, 4]))[:, :columns]
            style = "%d" + " %.6g" * (columns - 1)
            path = self.labels / f"{name}.txt"
            if path.exists():  # by now
                raise InputError(f"{path} exists, and no label file is replaced. Move it")
            self._write(path, lambda file: np.savetxt(file, table, style))
        if self.json:
            self._add_results(name, rows)
        if self.csv:
            head = picture.path, "" if picture.frame is None else picture.frame
            self._add_to_table(
                (*head, int(c), self.names[int(c)], f"{score:.5f}", *(f"{v:.2f}" for v in box))
                for *box, score, c in rows.tolist()
            )
        self.pictures += 1
        self.empty += len(rows) == 0
        self.counts.update(rows[:, 5].astype(int).tolist())

    def _add_results(self, image: str, rows: np.ndarray) -> None:
        """COCO's results format; bbox is x, y, width, height in pixels."""
        ids = category_ids(self.names)
        self.results += [
            {
                "image_id": image,
                "category_id": ids[int(number)],
                "bbox": [round(v, 3) for v in (x1, y1, x2 - x1, y2 - y1)],
                "score": round(score, 5),
            }
            for x1, y1, x2, y2, score, number in rows.tolist()
        ]

    def _add_pixels(self, picture: Picture, name: str, rows: np.ndarray) -> None:
        """The drawn image or video frame, and the crops."""
        pixels = read_image(picture.path) if picture.pixels is None else picture.pixels
        for number, row in enumerate(rows) if self.crops else ():
            kind = folder_name(self.names[int(row[5])])
            crop = encode_jpeg(crop_of(pixels, row[:4]))
            self._write(self.folder / "crops" / kind / f"{name}_{number:03d}.jpg", crop)
        if not self.images:
            return
        drawn = draw_boxes(pixels, rows, self.names, *self.style)
        if picture.frame is None:
            self._write(self.folder / f"images/{name}.jpg", encode_jpeg(drawn))
            return
        path = self.folder / f"videos/{picture.name}.mp4"
        if self._video is None or self._video.path != path:
            self.close_video()
            self._video = VideoFile(path, picture.fps, (drawn.shape[0], drawn.shape[1]))
        self._video.write(drawn)

    def _write(self, path: Path, content: bytes | Callable[[BinaryIO], object]) -> None:
        """Whole, but not yet flushed to the disk."""
        write_atomically(path, content, sync=False)
        self._written.append(path)

    def close_video(self) -> None:
        """Finish the video that is being written; the next frame begins another."""
        if self._video is not None:
            self._video.close()
        self._video = None

    def close(self) -> None:
        """Finish the video that is being written, and predictions.json, and flush all files to the
        disk. An image whose name is a number has that as its id there, 139 for val/000000000139, if
        no two have the same."""
        self.close_video()
        if self.csv:
            self._written.append(self.folder / "predictions.csv")
        sync_files(self._written)
        names = {result["image_id"] for result in self.results}
        numbers = {n: int(s) for n in names if re.fullmatch("[0-9]+", s := Path(n).name)}
        if self.json:
            for result in self.results if len({*numbers.values()}) == len(numbers) else ():
                result["image_id"] = numbers.get(result["image_id"], result["image_id"])
            write_atomically(self.folder / "predictions.json", json.dumps(self.results))


def category_ids(names: Sequence[str]) -> list[int]:
    """COCO's category id of each class: its own ids for its own 80 classes, else the class
    numbers."""
    if len(names) == COCO_CLASSES and (names[0], names[-1]) == ("person", "toothbrush"):
        return [i for i in range(1, 91) if i not in COCO_UNUSED]
    return list(range(len(names)))


def crop_of(image: np.ndarray, box: np.ndarray) -> np.ndarray:
    """(h, w, 3) pixels of an image within a box (4,) xyxy, whose sides are rounded outwards."""
    size = np.array(image.shape[1::-1])
    first = np.floor(box[:2]).clip(0, size - 1).astype(int)
    last = np.ceil(box[2:]).clip(first + 1, size).astype(int)
    return image[first[1] : last[1], first[0] : last[0]]


def folder_name(name: str) -> str:
    """A class name as that of a folder.

    >>> folder_name("traffic light"), folder_name("../a/b"), folder_name("..")
    ('traffic light', '.._a_b', '__')
    """
    safe = re.sub(r'[/\\:*?"<>|\x00-\x1f]', "_", name).strip()
    return safe if safe.strip(".") else "_" * max(len(safe), 1)
