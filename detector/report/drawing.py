"""Pictures with boxes: images of files, and batches as the network sees them."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import cv2
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from boltbox.detector.data.sample import Batch
from boltbox.detector.model.boxes import cxcywhn_to_xyxy

# Okabe and Ito's colours, which colour-blind readers tell apart; black is left out.
PALETTE = ["#e69f00", "#56b4e9", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7"]
DARK = {"#0072b2", "#d55e00", "#009e73"}  # on which letters are white

CONF = 0.25  # detections of a batch below are not drawn
FIRST = 16  # images of a batch that are drawn
# boxes of a picture; where there are more, their names would cover it and one another
LEGIBLE = 1000


def draw_boxes(
    image: np.ndarray,
    rows: np.ndarray,
    names: Sequence[str],
    labels: bool = True,
    confidences: bool = True,
    line_width: int | None = None,
) -> np.ndarray:
    """A copy of the image with boxes and class names, most confident on top.

    Args:
        image: (H, W, 3) uint8 RGB.
        rows: (n, 6) x1, y1, x2, y2 in pixels, score (NaN for an object of the labels), class.
        names: class names.
        labels: whether to write them; they are not where there are more than LEGIBLE boxes.
        confidences: whether to write the scores beside them.
        line_width: in pixels; default: by the size of the image.
    """
    picture = Image.fromarray(image)
    canvas = ImageDraw.Draw(picture)
    line = line_width or max(round(sum(picture.size) / 800), 2)
    font = ImageFont.load_default(max(round(sum(picture.size) / 90), 10))
    order = np.argsort(np.nan_to_num(rows[:, 4]), kind="stable")
    for x1, y1, x2, y2, score, c in rows[order].tolist():
        colour, text = PALETTE[int(c) % len(PALETTE)], names[int(c)]
        if confidences and not math.isnan(score):
            text = f"{text} {score:.2f}"
        canvas.rectangle((x1, y1, max(x1, x2), max(y1, y2)), outline=colour, width=line)
        if not labels or len(rows) > LEGIBLE:
            continue
        left, top, right, bottom = canvas.textbbox((0, 0), text, font=font)
        width, height = right - left + 4, bottom - top + 4
        x = min(max(x1, 0), max(picture.width - width, 0))
        y = y1 - height if y1 >= height else y1
        canvas.rectangle((x, y, x + width, y + height), fill=colour)
        fill = "white" if colour in DARK else "black"
        canvas.text((x + 2 - left, y + 2 - top), text, font=font, fill=fill)
    return np.asarray(picture)


def enlarge(image: np.ndarray, rows: np.ndarray, least: int = 320) -> tuple[np.ndarray, np.ndarray]:
    """Small images twice, three times, ... as large, so that text on them can be read; rows as in
    `draw_boxes`."""
    times = max(math.ceil(least / max(image.shape[:2])), 1)
    return image.repeat(times, 0).repeat(times, 1), rows * ([times] * 4 + [1, 1])


def grid(images: Sequence[np.ndarray], longest: int = 1920) -> np.ndarray:
    """Images of one size side by side, about as many rows as columns, the longer side at most so
    many pixels."""
    columns = math.ceil(math.sqrt(len(images)))
    white = [np.full_like(images[0], 255)] * (-len(images) % columns)
    tiles = np.stack([*images, *white])
    rows = [np.concatenate(tiles[k : k + columns], 1) for k in range(0, len(tiles), columns)]
    canvas = np.concatenate(rows)
    shrink = longest / max(canvas.shape)
    if shrink < 1:
        canvas = cv2.resize(canvas, None, fx=shrink, fy=shrink, interpolation=cv2.INTER_AREA)
    return canvas


def encoded(image: np.ndarray, quality: int = 92) -> bytes:
    """(H, W, 3) uint8 RGB as a JPEG."""
    options = [cv2.IMWRITE_JPEG_QUALITY, quality]
    return cv2.imencode(".jpg", image[..., ::-1], options)[1].tobytes()


def write_image(path: Path, image: np.ndarray) -> None:
    """(H, W, 3) uint8 RGB to a JPEG file."""
    path.write_bytes(encoded(image))


class Picture(NamedTuple):
    """An image of a batch: (H, W, 3) uint8 RGB; labels and predictions as rows for `draw_boxes`."""

    image: np.ndarray
    labels: np.ndarray
    predictions: np.ndarray


def pictures_of(batch: Batch, found: Sequence[np.ndarray] = (), most: int = FIRST) -> list[Picture]:
    """The first images of a batch as the network sees them, with predictions above CONF.

    Args:
        found: per image (n, 6) x1, y1, x2, y2 in pixels of the image file, score, class; empty:
            nothing was predicted yet.
    """
    pixels = batch.images[:most].float().cpu().numpy().transpose(0, 2, 3, 1)
    targets, (height, width) = batch.targets.cpu().numpy(), batch.images.shape[2:]
    boxes = cxcywhn_to_xyxy(targets[:, 2:], width, height)
    labels = np.column_stack((boxes, np.full(len(boxes), np.nan), targets[:, 1]))
    pictures = []
    for i, image in enumerate((pixels * 255).round().astype(np.uint8)):
        predictions, box = np.zeros((0, 6)), batch.letterboxes[i]
        if found and box is not None:
            scale, shift = (box.gain_x, box.gain_y) * 2, (box.pad_x, box.pad_y) * 2
            sure = found[i][found[i][:, 4] > CONF]
            predictions = np.column_stack((sure[:, :4] * scale + shift, sure[:, 4:]))
        pictures.append(
            Picture(np.ascontiguousarray(image), labels[targets[:, 0] == i], predictions)
        )
    return pictures


def draw_pictures(
    pictures: Sequence[Picture], side: Literal["labels", "predictions"], names: Sequence[str]
) -> np.ndarray:
    """All in one image, with the boxes of one side."""
    return grid([draw_boxes(*enlarge(p.image, getattr(p, side)), names) for p in pictures])
