"""Pictures of what was found: the image with its boxes, the suspicious ones in a dashed frame."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
from PIL import Image, ImageDraw

from boltbox.detector.commands.doctor.finding import Finding
from boltbox.detector.data.datasets import DetectionDataset
from boltbox.detector.data.images import SUFFIXES, read_image
from boltbox.detector.data.report import Fault
from boltbox.detector.data.sample import Labels
from boltbox.detector.model.boxes import clip_xyxy
from boltbox.detector.report.drawing import draw_boxes, enlarge
from boltbox.detector.system.errors import InputError

UNREADABLE = ("unreadable_image", "missing_image")  # kinds
LONGEST = 480  # pixels of a picture's longer side
CROWDED = 25  # more boxes than that are drawn without their names
FRAMED = 500  # suspects of one image that get a frame; more would cover it


class Picture(NamedTuple):
    """files: the image, and the other one that the finding compares it with · jpeg: content, None
    if the image cannot be shown · reason: why not."""

    files: list[str]
    jpeg: bytes | None
    reason: str = ""


class _Object(NamedTuple):
    """An object that a finding names. image: path · box (4,) xyxy in pixels of the image file, None
    if it cannot be read."""

    image: str
    box: Sequence[float] | np.ndarray | None


class Gallery:
    """Finds the images that findings speak of, and draws them.

    Args:
        datasets: by split; images that are in none are looked for by their path.
        findings: all of them; images that are called unreadable are not opened, lest they break a
            decoder.
    """

    def __init__(
        self, datasets: Mapping[str, DetectionDataset], findings: Sequence[Finding]
    ) -> None:
        self.datasets = datasets
        self._unreadable = {f.file: f.problem for f in findings if f.kind in UNREADABLE}
        self._images: dict[str, tuple[str, int]] = {}  # by path: split and index
        self._of_file: dict[str, list[tuple[str, int]]] = defaultdict(list)  # by label file
        # by label file and place, of the files that were needed
        self._objects: dict[str, dict[str, _Object]] = {}
        self._dropped: dict[str, list[Fault]] = defaultdict(list)  # by label file
        for split, dataset in datasets.items():
            for fault in dataset.report.faults:
                self._dropped[fault.file].append(fault)
            for i, (image, source) in enumerate(zip(dataset.files, dataset.sources, strict=True)):
                self._images.setdefault(image, (split, i))
                if source.file:
                    self._of_file[source.file].append((split, i))

    def pictures(self, findings: Sequence[Finding], most: int) -> list[Picture]:
        """Pictures of those images that most of the findings are about, each image once."""
        about: dict[str, list[Finding]] = {}
        for finding in findings:
            image = self._image_of(finding)
            if image:
                about.setdefault(image, []).append(finding)
        worst = sorted(about, key=lambda image: -len(about[image]))[:most]
        return [self._picture(image, about[image]) for image in worst]

    def _picture(self, file: str, findings: Sequence[Finding]) -> Picture:
        other = self._compared_with(findings[0])
        files = [file, other] if other else [file]
        try:
            drawn = [self._draw(file, findings), *(self._draw(f, []) for f in files[1:])]
        except (InputError, cv2.error, OSError) as e:
            return Picture(files, None, str(e).removeprefix(f"{file}: "))
        done, jpeg = cv2.imencode(
            ".jpg", _side_by_side(drawn)[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, 80]
        )
        assert done
        return Picture(files, jpeg.tobytes())

    def _compared_with(self, finding: Finding) -> str:
        """The other image that a finding names in its sentence, as duplicates do; or an empty
        string."""
        if finding.where or not any(suffix in finding.problem.lower() for suffix in SUFFIXES):
            return ""
        files = (f for dataset in self.datasets.values() for f in dataset.files)
        return max(
            (f for f in files if f in finding.problem and f != finding.file), key=len, default=""
        )

    def _image_of(self, finding: Finding) -> str:
        """The image file that a finding is about, or an empty string."""
        if finding.file in self._images or Path(finding.file).suffix.lower() in SUFFIXES:
            return finding.file
        if found := self._object(finding):
            return found.image
        images = dict.fromkeys(
            self.datasets[split].files[i] for split, i in self._of_file.get(finding.file, [])
        )
        images |= {
            fault.image: None for fault in self._dropped.get(finding.file, []) if fault.image
        }
        return next(iter(images), "") if len(images) == 1 or not finding.where else ""

    def _object(self, finding: Finding) -> _Object | None:
        """The object that a finding names; None if there is no such."""
        if finding.file in self._images:
            split, i = self._images[finding.file]
            word, _, rest = finding.where.partition(" ")
            boxes = self.datasets[split].labels[i].boxes
            number = int(rest) - 1 if word == "object" and rest.isdigit() else -1
            return _Object(finding.file, boxes[number]) if 0 <= number < len(boxes) else None
        if finding.file not in self._objects:
            self._objects[finding.file] = self._objects_of(finding.file)
        return self._objects[finding.file].get(_key(finding.where))

    def _objects_of(self, file: str) -> dict[str, _Object]:
        """Of a label file, dropped ones too, by place."""
        objects = {
            _key(fault.where): _Object(fault.image, fault.box)
            for fault in self._dropped.get(file, [])
        }
        for split, i in self._of_file.get(file, []):
            dataset = self.datasets[split]
            for where, box in zip(dataset.sources[i].places, dataset.labels[i].boxes, strict=True):
                objects.setdefault(_key(where), _Object(dataset.files[i], box))
        return objects

    def _draw(self, file: str, findings: Sequence[Finding]) -> np.ndarray:
        """(H, W, 3) uint8 RGB with its boxes, the findings' own in frames."""
        if file in self._unreadable:
            raise InputError(self._unreadable[file])
        image = read_image(file)
        shrink = min(LONGEST / max(image.shape[:2]), 1)
        height, width = (max(round(side * shrink), 1) for side in image.shape[:2])
        scale = np.array((width / image.shape[1], height / image.shape[0]) * 2)
        image = (
            cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA)
            if shrink < 1
            else image
        )
        rows, names = np.zeros((0, 6)), [""]
        if file in self._images:
            split, i = self._images[file]
            rows, names = _rows(
                self.datasets[split].labels[i], self.datasets[split].names, scale, width, height
            )
        boxes = [
            found.box
            for found in map(self._object, findings[:FRAMED])
            if found and found.box is not None
        ]
        suspects = np.array(boxes, float).reshape(-1, 4) * scale
        both = np.concatenate((rows, np.column_stack((suspects, np.zeros((len(suspects), 2))))))
        image, both = enlarge(image, both)
        image = draw_boxes(image, both[: len(rows)], names)
        return _frame(image, both[len(rows) :, :4])


def _rows(
    labels: Labels, names: list[str], scale: np.ndarray, width: int, height: int
) -> tuple[np.ndarray, list[str]]:
    """(n, 6) rows for `draw_boxes` and the names to write; boxes far outside are drawn where the
    picture ends."""
    boxes = clip_xyxy(labels.boxes * scale, width, height)
    classes = labels.classes.clip(max=len(names))
    written = [*names, "no such class"] if len(boxes) <= CROWDED else [""] * (len(names) + 1)
    return np.column_stack((boxes, np.full(len(boxes), np.nan), classes)), written


def _key(where: str) -> str:
    """ "object 4 (RBC)" -> "object 4": the name of its class need not be known."""
    return where.partition(" (")[0]


def _frame(image: np.ndarray, boxes: np.ndarray, dash: int = 6) -> np.ndarray:
    """A dashed frame in black and white around each of the boxes (n, 4), with some room: no class
    has such a one, and it is seen on any ground."""
    picture = Image.fromarray(image)
    canvas = ImageDraw.Draw(picture)
    for box in boxes:
        low, high = np.minimum(box[:2], box[2:]), np.maximum(box[:2], box[2:])
        room = np.maximum((30 - (high - low)) / 2, 5)
        edges = np.concatenate((low - room, high + room))
        x1, y1, x2, y2 = edges.clip(1, (picture.width - 2, picture.height - 2) * 2).tolist()
        canvas.rectangle((x1, y1, x2, y2), outline="white", width=3)
        for start in np.arange(x1, x2, 2 * dash):
            for y in (y1, y2 - 2):
                canvas.rectangle((start, y, min(start + dash, x2), y + 2), fill="black")
        for start in np.arange(y1, y2, 2 * dash):
            for x in (x1, x2 - 2):
                canvas.rectangle((x, start, x + 2, min(start + dash, y2)), fill="black")
    return np.asarray(picture)


def _side_by_side(images: Sequence[np.ndarray]) -> np.ndarray:
    """Images of any sizes as one, as high as the first."""
    height = images[0].shape[0]
    widths = [max(round(image.shape[1] * height / image.shape[0]), 1) for image in images]
    return np.hstack(
        [cv2.resize(image, (width, height)) for image, width in zip(images, widths, strict=True)]
    )
