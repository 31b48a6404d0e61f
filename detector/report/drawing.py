"""Pictures with boxes."""

import math
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
from PIL import Image, ImageDraw, ImageFont

# Okabe and Ito's colours, which colour-blind readers tell apart; black is left out.
PALETTE = [
    (230, 159, 0),
    (86, 180, 233),
    (0, 158, 115),
    (240, 228, 66),
    (0, 114, 178),
    (213, 94, 0),
    (204, 121, 167),
]

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
    for x1, y1, x2, y2, score, c in rows[
        np.argsort(np.nan_to_num(rows[:, 4]), kind="stable")
    ].tolist():
        colour = PALETTE[int(c) % len(PALETTE)]
        text = (
            names[int(c)]
            if math.isnan(score) or not confidences
            else f"{names[int(c)]} {score:.2f}"
        )
        canvas.rectangle((x1, y1, max(x1, x2), max(y1, y2)), outline=colour, width=line)
        if not labels or len(rows) > LEGIBLE:
            continue
        left, top, right, bottom = canvas.textbbox((0, 0), text, font=font)
        width, height = right - left + 4, bottom - top + 4
        x = min(max(x1, 0), max(picture.width - width, 0))
        y = y1 - height if y1 >= height else y1
        canvas.rectangle((x, y, x + width, y + height), fill=colour)
        canvas.text(
            (x + 2 - left, y + 2 - top),
            text,
            font=font,
            fill="black" if sum(colour) > 330 else "white",
        )
    return np.asarray(picture)


def enlarge(image: np.ndarray, rows: np.ndarray, least: int = 320) -> tuple[np.ndarray, np.ndarray]:
    """Small images twice, three times, ... as large, so that text on them can be read; rows as in
    `draw_boxes`."""
    times = max(math.ceil(least / max(image.shape[:2])), 1)
    rows = rows.copy()
    rows[:, :4] *= times
    return image.repeat(times, 0).repeat(times, 1), rows


def grid(images: Sequence[np.ndarray], longest: int = 1920) -> np.ndarray:
    """Images of one size side by side, about as many rows as columns, the longer side at most so
    many pixels."""
    columns = math.ceil(math.sqrt(len(images)))
    rows = math.ceil(len(images) / columns)
    height, width = images[0].shape[:2]
    canvas = np.full((rows * height, columns * width, 3), 255, np.uint8)
    for i, image in enumerate(images):
        y, x = i // columns * height, i % columns * width
        canvas[y : y + height, x : x + width] = image
    shrink = longest / max(canvas.shape)
    if shrink < 1:
        size = (round(canvas.shape[1] * shrink), round(canvas.shape[0] * shrink))
        canvas = cv2.resize(canvas, size, interpolation=cv2.INTER_AREA)
    return canvas


def write_image(path: Path, image: np.ndarray) -> None:
    """(H, W, 3) uint8 RGB to a file; the suffix gives the format."""
    path.write_bytes(
        cv2.imencode(path.suffix, image[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, 92])[1].tobytes()
    )
