"""Cut-outs of images around a detection or a label, with what is there and what was found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import pairwise

import cv2
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from boltbox.detector.data.images import read_image
from boltbox.detector.evaluation.error_kinds import KINDS, Errors
from boltbox.detector.evaluation.prediction_record import PredictionRecord
from boltbox.detector.report.drawing import PALETTE
from boltbox.detector.system.errors import InputError

SIDE = 240  # pixels of a cut-out
CONTEXT = 2.0  # its side over the box's longer one
LEAST = 64  # pixels of the file that a cut-out shows at least, if the image has them
FOUND, LABEL = PALETTE[0], PALETTE[1]  # orange: detections; sky blue, dashed: labels


@dataclass
class Crop:
    """jpeg: the cut-out, None if the image cannot be read · caption: the line below it · file: of
    the image · reason: why there is no picture."""

    jpeg: bytes | None
    caption: str
    file: str
    reason: str = ""


class Crops:
    """Cuts them out, reading each image once.

    Args:
        least: detections of lower score are not drawn beside the one that is shown.
    """

    def __init__(self, record: PredictionRecord, errors: Errors, least: float) -> None:
        self.record, self.errors, self.least = record, errors, least
        self._images: dict[int, np.ndarray | str] = {}

    def detections(self, rows: Sequence[int]) -> list[Crop]:
        """With class, score, and verdict."""
        e, crops = self.record, []
        for k in rows:
            i, target, verdict = (
                int(e.image[k]),
                int(self.errors.target[k]),
                KINDS[self.errors.verdict[k]],
            )
            on = f", labelled {e.names[e.label_kind[target]]}" if verdict == "wrong class" else ""
            caption = (
                f"{e.names[e.kind[k]]} {e.score[k]:.2f}: {verdict}{on}, IoU"
                f" {self.errors.nearest[k]:.2f}"
            )
            crops.append(self._crop(i, e.box[k], caption, e.box[k : k + 1], self._labels(i)))
        return crops

    def labels(self, rows: Sequence[int]) -> list[Crop]:
        """With class and size, and what was found around it."""
        e, crops = self.record, []
        for k in rows:
            i, box = int(e.label_image[k]), e.label_box[k]
            rows_of = e.detections_of(i)
            found = e.box[rows_of][e.score[rows_of] >= self.least]
            width, height = (box[2:] - box[:2]).tolist()
            caption = f"{e.names[e.label_kind[k]]}: missed, {width:.0f} x {height:.0f} px"
            crops.append(self._crop(i, box, caption, found, e.label_box[k : k + 1]))
        return crops

    def _labels(self, i: int) -> np.ndarray:
        return self.record.label_box[self.record.labels_of(i)]

    def _image(self, i: int) -> np.ndarray | str:
        if i not in self._images:
            if len(self._images) > 8:
                self._images.clear()
            try:
                image = read_image(self.record.files[i])
                recorded, real = tuple(self.record.sizes[i].tolist()), image.shape[:2]
                self._images[i] = (
                    image
                    if recorded == real
                    else f"the image has changed: it was {recorded[1]} x {recorded[0]} px"
                )
            except (InputError, OSError, cv2.error) as e:
                self._images[i] = " ".join(str(e).split())
        return self._images[i]

    def _crop(
        self, i: int, box: np.ndarray, caption: str, found: np.ndarray, labels: np.ndarray
    ) -> Crop:
        image = self._image(i)
        file = self.record.name_of(i)
        if isinstance(image, str):
            return Crop(None, caption, file, image)
        height, width = image.shape[:2]
        side = max(float((box[2:] - box[:2]).max()) * CONTEXT, LEAST)
        wide, tall = max(round(min(side, width)), 1), max(round(min(side, height)), 1)
        left = round(min(max(float(box[0] + box[2]) / 2 - wide / 2, 0), width - wide))
        top = round(min(max(float(box[1] + box[3]) / 2 - tall / 2, 0), height - tall))
        gain = SIDE / max(wide, tall)
        size = max(round(wide * gain), 1), max(round(tall * gain), 1)
        mode = cv2.INTER_AREA if gain < 1 else cv2.INTER_LINEAR
        picture = Image.fromarray(
            cv2.resize(image[top : top + tall, left : left + wide], size, interpolation=mode)
        )
        canvas = ImageDraw.Draw(picture)
        for boxes, colour, dashed in ((labels, LABEL, True), (found, FOUND, False)):
            for corners in ((boxes - (left, top) * 2) * gain).tolist():
                _outline(canvas, corners, colour, dashed)
        jpeg = cv2.imencode(".jpg", np.asarray(picture)[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, 82])[
            1
        ].tobytes()
        return Crop(jpeg, caption, file)


def _outline(
    canvas: ImageDraw.ImageDraw, box: Sequence[float], colour: tuple[int, ...], dashed: bool
) -> None:
    """Over a black line, so that it is seen on any ground."""
    x1, y1, x2, y2 = (min(max(v, -1000), 2000) for v in box)
    corners = [(x1, y1), (x2, y1), (x2, y2), (x1, y2), (x1, y1)]
    canvas.line(corners, fill="black", width=4)
    for (ax, ay), (bx, by) in pairwise(corners):
        length = max(abs(bx - ax), abs(by - ay))
        pieces = max(int(length // 14), 1) if dashed else 1
        share = 0.6 if dashed else 1.0
        for k in range(pieces):
            a, b = k / pieces, (k + share) / pieces
            ends = (ax + (bx - ax) * a, ay + (by - ay) * a, ax + (bx - ax) * b, ay + (by - ay) * b)
            canvas.line(ends, fill=colour, width=2)


def sheet(crops: Sequence[Crop], columns: int = 4) -> np.ndarray:
    """(H, W, 3) uint8 RGB: the cut-outs with their captions, as one picture for those who look at
    files."""
    shown = [crop for crop in crops if crop.jpeg]
    rows = -(-len(shown) // columns)
    wide, tall = SIDE + 12, SIDE + 44
    picture = Image.new("RGB", (wide * min(columns, len(shown)), tall * rows), "white")
    canvas, font = ImageDraw.Draw(picture), ImageFont.load_default(11)
    for k, crop in enumerate(shown):
        x, y = k % columns * wide + 6, k // columns * tall + 6
        assert crop.jpeg
        picture.paste(Image.open(BytesIO(crop.jpeg)), (x, y))
        for line, text in enumerate((crop.caption, crop.file[-40:])):
            while canvas.textlength(text, font=font) > SIDE:
                text = text[:-2] + "…"
            canvas.text((x, y + SIDE + 2 + 15 * line), text, fill="black", font=font)
    return np.asarray(picture)
