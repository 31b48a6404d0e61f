"""Pictures of what was found: the image with its boxes, the suspicious ones in a dashed frame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
from PIL import Image, ImageDraw

from detector.commands.doctor.finding import Finding
from detector.commands.doctor.places import label_files, written_boxes
from detector.data.datasets import DetectionDataset
from detector.data.formats.coco_json import read_coco
from detector.data.images import SUFFIXES, read_image
from detector.data.sample import Labels
from detector.model.boxes import clip_xyxy
from detector.report.drawing import draw_boxes, enlarge
from detector.system.errors import InputError

UNREADABLE = ("unreadable_image", "missing_image")  # kinds
LONGEST = 480  # pixels of a picture's longer side
CROWDED = 25  # more boxes than that are drawn without their names
FRAMED = 500  # suspects of one image that get a frame; more would cover it


class Picture(NamedTuple):
    """files: the image, and the other one that the finding compares it with · jpeg: content, None if the image cannot be
    shown · reason: why not."""

    files: list[str]
    jpeg: bytes | None
    reason: str = ""


class Gallery:
    """Finds the images that findings speak of, and draws them.

    Args:
        datasets: by split; images that are in none are looked for by their path.
        findings: all of them; images that are called unreadable are not opened, lest they break a decoder.
    """

    def __init__(self, datasets: Mapping[str, DetectionDataset], findings: Sequence[Finding]) -> None:
        self.datasets = datasets
        self._unreadable = {f.file: f.problem for f in findings if f.kind in UNREADABLE}
        self._images: dict[tuple[str, str], tuple[str, int]] = {}  # split ("": any) and file of image or labels
        self._named: dict[tuple[str, str], tuple[str, int]] = {}  # split ("": any) and name of the image file
        self._annotations: dict[str, dict[str, tuple[str, np.ndarray | None]]] = {}  # of the COCO files that were needed
        self._emptied: dict[str, str] = {}  # images that lost all their objects, by themselves and their label files
        for split, dataset in datasets.items():
            lost = [fault.file for fault in dataset.report.lost_images if fault.kind == "no_usable_object"]
            self._emptied |= {path: file for file in lost for path in (file, *map(str, label_files(file)))}
            for i, file in enumerate(dataset.files):
                for key in ((split, Path(file).name), ("", Path(file).name)):
                    self._named.setdefault(key, (split, i))
                for path in (file, *map(str, label_files(file))):
                    self._images.setdefault((split, path), (split, i))
                    self._images.setdefault(("", path), (split, i))

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
        done, jpeg = cv2.imencode(".jpg", _side_by_side(drawn)[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, 80])
        assert done
        return Picture(files, jpeg.tobytes())

    def _compared_with(self, finding: Finding) -> str:
        """The other image that a finding names in its sentence, as duplicates do; or an empty string."""
        if finding.where or not any(suffix in finding.problem.lower() for suffix in SUFFIXES):
            return ""
        files = (f for dataset in self.datasets.values() for f in dataset.files)
        return max((f for f in files if f in finding.problem and f != finding.file), key=len, default="")

    def _image_of(self, finding: Finding) -> str:
        """The image file that a finding is about, or an empty string."""
        found = self._find(finding)
        if found:
            split, i = found
            return self.datasets[split].files[i]
        if finding.file in self._emptied:
            return self._emptied[finding.file]
        return finding.file if Path(finding.file).suffix.lower() in SUFFIXES else ""

    def _find(self, finding: Finding) -> tuple[str, int] | None:
        """Split and index of the image that a finding is about."""
        if finding.file.endswith(".json"):
            name, _ = self._annotation(finding)
            return self._named.get((finding.split, Path(name).name))
        return self._images.get((finding.split, finding.file)) or self._images.get(("", finding.file))

    def _draw(self, file: str, findings: Sequence[Finding]) -> np.ndarray:
        """(H, W, 3) uint8 RGB with its boxes, the findings' own in frames."""
        if file in self._unreadable:
            raise InputError(self._unreadable[file])
        image = read_image(file)
        image_shape = image.shape[:2]
        shrink = min(LONGEST / max(image.shape[:2]), 1)
        height, width = (max(round(side * shrink), 1) for side in image.shape[:2])
        scale = np.array((width / image.shape[1], height / image.shape[0]) * 2)
        image = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA) if shrink < 1 else image
        rows, suspects, names = np.zeros((0, 6)), np.zeros((0, 4)), [""]
        place = self._find(findings[0]) if findings else self._images.get(("", file))
        if place:
            split, i = place
            labels = self.datasets[split].labels[i]
            rows, names = _rows(labels, self.datasets[split].names, scale, width, height)
            suspects = self._suspects(findings, labels) * scale
        elif file in self._emptied:
            suspects = self._suspects(findings, Labels.of(np.zeros((0, 4)), np.zeros(0), *image_shape)) * scale
        both = np.concatenate((rows, np.column_stack((suspects, np.zeros((len(suspects), 2))))))
        image, both = enlarge(image, both)
        image = draw_boxes(image, both[: len(rows)], names)
        return _frame(image, both[len(rows) :, :4])

    def _suspects(self, findings: Sequence[Finding], labels: Labels) -> np.ndarray:
        """(n, 4) xyxy pixels of the image file: the boxes that findings of one image name, as far as they can be placed."""
        found = []
        written: dict[Path, dict[str, np.ndarray]] = {}
        for finding in findings[:FRAMED]:
            key = _key(finding.where)
            path = Path(finding.file)
            if path.suffix == ".json":
                box = self._annotation(finding)[1]
            elif path.suffix.lower() in SUFFIXES:
                number = int(key.split()[1]) - 1 if key.startswith("object ") else -1
                box = labels.boxes[number] if 0 <= number < len(labels.boxes) else None
            else:
                if path not in written:
                    written[path] = written_boxes(path, labels.height, labels.width)
                box = written[path].get(key)
            if box is not None:
                found.append(box)
        return np.array(found, float).reshape(-1, 4)

    def _annotation(self, finding: Finding) -> tuple[str, np.ndarray | None]:
        """Image name and box of the annotation that a finding names; an empty string and None if there is no such."""
        if finding.file not in self._annotations:
            self._annotations[finding.file] = _read_annotations(Path(finding.file))
        return self._annotations[finding.file].get(_key(finding.where), ("", None))


def _rows(labels: Labels, names: list[str], scale: np.ndarray, width: int, height: int) -> tuple[np.ndarray, list[str]]:
    """(n, 6) rows for `draw_boxes` and the names to write; boxes far outside are drawn where the picture ends."""
    boxes = clip_xyxy(labels.boxes * scale, width, height)
    classes = labels.classes.clip(max=len(names))
    written = [*names, "no such class"] if len(boxes) <= CROWDED else [""] * (len(names) + 1)
    return np.column_stack((boxes, np.full(len(boxes), np.nan), classes)), written


def _key(where: str) -> str:
    """ "object 4 (RBC)" -> "object 4"; anything else but a word and a number -> an empty string."""
    word, _, rest = where.partition(" ")
    number = rest.partition(" ")[0].strip(",;:")
    return f"{word} {number}" if number.isdigit() else ""


def _read_annotations(source: Path) -> dict[str, tuple[str, np.ndarray | None]]:
    """For each "annotation ID" of a COCO json file the image's file name and the box, (4,) xyxy pixels; None if it is no box.
    A file that is no such thing has none: it is a finding of its own."""
    try:
        content = read_coco(source)
        names = {image["id"]: str(image["file_name"]) for image in content["images"]}
        annotations = content.get("annotations", [])
        return {f"annotation {a.get('id')}": (names.get(a.get("image_id"), ""), _corners(a.get("bbox"))) for a in annotations}
    except (InputError, TypeError, AttributeError, RecursionError):
        return {}


def _corners(bbox: object) -> np.ndarray | None:
    """COCO's x, y, width, height -> (4,) xyxy."""
    try:
        x, y, w, h = np.array(bbox, float).reshape(4)
    except (TypeError, ValueError, OverflowError):
        return None
    box = np.array((x, y, x + w, y + h))
    return box if np.isfinite(box).all() else None


def _frame(image: np.ndarray, boxes: np.ndarray, dash: int = 6) -> np.ndarray:
    """A dashed frame in black and white around each of the boxes (n, 4), with some room: no class has such a one, and it is
    seen on any ground."""
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
    return np.hstack([cv2.resize(image, (width, height)) for image, width in zip(images, widths, strict=True)])
