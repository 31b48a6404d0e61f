"""Cut-outs of images around a detection or a label, with what is there and what was found."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw

from boltbox.detector.data.images import read_image
from boltbox.detector.evaluation.error_kinds import CLASS, KINDS, Errors
from boltbox.detector.evaluation.prediction_record import PredictionRecord
from boltbox.detector.model.boxes import clip_xyxy
from boltbox.detector.report.drawing import PALETTE, encoded
from boltbox.detector.report.html import Crop
from boltbox.detector.system.errors import InputError

SIDE = 240  # pixels of a cut-out
CONTEXT = 2.0  # its side over the box's longer one
LEAST = 64  # pixels of the file that a cut-out shows at least
FOUND, LABEL = PALETTE[0], PALETTE[1]  # thin orange: detections; thick blue: labels


def crop_detection(record: PredictionRecord, errors: Errors, k: int) -> Crop:
    """Detection k with its class, score and kind of error, and the labels around it."""
    i, verdict = int(record.image[k]), errors.verdict[k]
    caption = f"{record.names[record.kind[k]]} {record.score[k]:.2f}: {KINDS[verdict]}"
    if verdict == CLASS:
        caption += f", labelled {record.names[record.label_kind[errors.target[k]]]}"
    box, labels = record.box[k], record.label_box[record.labels_of(i)]
    picture = cut_out(record.files[i], box, box[None], labels, tuple(record.sizes[i]))
    return Crop(picture, f"{caption}, IoU {errors.nearest[k]:.2f}", record.name_of(i))


def crop_label(record: PredictionRecord, k: int, confidence: float) -> Crop:
    """Label k with its class and size, and the detections around it from a confidence on."""
    i, box = int(record.label_image[k]), record.label_box[k]
    rows = record.detections_of(i)
    found = record.box[rows][record.score[rows] >= confidence]
    width, height = box[2:] - box[:2]
    caption = f"{record.names[record.label_kind[k]]}: missed, {width:.0f} x {height:.0f} px"
    picture = cut_out(record.files[i], box, found, box[None], tuple(record.sizes[i]))
    return Crop(picture, caption, record.name_of(i))


def cut_out(
    file: str,
    box: np.ndarray | None,
    found: np.ndarray,
    labels: np.ndarray,
    size: tuple[int, int] | None = None,
) -> bytes | str:
    """A JPEG of an image around a box, None: all of it, with detections and labels, all xyxy pixels
    of the file; or why there is none. size: height and width that the image had."""
    try:
        image = read_image(file)
    except InputError as e:
        return f"cannot be shown: {e}"
    if size not in (None, image.shape[:2]):
        return "cannot be shown: the image has changed since"
    sides = np.array(image.shape[1::-1])
    box = np.array((0, 0, *sides)) if box is None else clip_xyxy(box, *sides)
    side = min(max((box[2:] - box[:2]).max() * CONTEXT, LEAST), sides.max())
    left, top = np.clip((box[:2] + box[2:] - side) / 2, 0, np.maximum(sides - side, 0)).tolist()
    picture = Image.fromarray(image).crop((left, top, left + side, top + side)).resize((SIDE, SIDE))
    canvas = ImageDraw.Draw(picture)
    for boxes, colour, width in ((labels, LABEL, 5), (found, FOUND, 2)):
        for x1, y1, x2, y2 in ((boxes - (left, top) * 2) * SIDE / side).tolist():
            canvas.rectangle((x1, y1, max(x1, x2), max(y1, y2)), outline=colour, width=width)
    return encoded(np.asarray(picture), 82)
