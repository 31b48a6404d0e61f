"""Pictures with boxes: images of files, and batches as the network sees them."""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import cv2
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from boltbox.detector.data.images import read_image
from boltbox.detector.data.sample import Batch
from boltbox.detector.model.boxes import clip_xyxy, cxcywhn_to_xyxy
from boltbox.detector.system.errors import InputError

# Okabe and Ito's colours, which colour-blind readers tell apart; black is left out.
PALETTE = ["#e69f00", "#56b4e9", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7"]

CONF = 0.25  # detections of a batch below are not drawn
FIRST = 16  # images of a batch that are drawn
# boxes of a picture; where there are more, their names would cover it and one another
LEGIBLE = 1000
LEAST_DRAWN = 320  # pixels of a batch's images
SIDE = 240  # pixels of a cut-out
CONTEXT = 2.0  # its side over the box's longer one
LEAST = 64  # pixels of the file that a cut-out shows at least
FOUND, LABEL = PALETTE[0], PALETTE[1]  # thin orange: detections; thick blue: labels


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
        fill = "white" if colour == "#0072b2" else "black"
        canvas.text((x + 2 - left, y + 2 - top), text, font=font, fill=fill)
    return np.asarray(picture)


def grid(images: Sequence[np.ndarray]) -> np.ndarray:
    """Images of one size side by side, about as many rows as columns, the longer side at most
    1920 pixels."""
    columns = math.ceil(math.sqrt(len(images)))
    tiles = [*images, *[np.full_like(images[0], 255)] * (-len(images) % columns)]
    rows = [np.concatenate(tiles[k : k + columns], 1) for k in range(0, len(tiles), columns)]
    canvas = np.concatenate(rows)
    shrink = 1920 / max(canvas.shape)
    if shrink < 1:
        canvas = cv2.resize(canvas, None, fx=shrink, fy=shrink, interpolation=cv2.INTER_AREA)
    return canvas


def encoded(image: np.ndarray, quality: int = 92) -> bytes:
    """(H, W, 3) uint8 RGB as a JPEG.

    Raises:
        InputError: it is too large for one.
    """
    options = [cv2.IMWRITE_JPEG_QUALITY, quality]
    done, data = cv2.imencode(".jpg", image[..., ::-1], options)
    if not done:
        raise InputError(
            f"no JPEG has {image.shape[1]} x {image.shape[0]} pixels (at most 65,500 a side): use"
            " --images false"
        )
    return data.tobytes()


def cut_out(
    file: str,
    box: np.ndarray | None,
    found: np.ndarray,
    labels: np.ndarray,
) -> bytes | str:
    """A JPEG of an image around a box, None: all of it, with detections and labels, all xyxy pixels
    of the file; or why there is none."""
    try:
        image = read_image(file)
    except InputError as e:
        return f"cannot be shown: {e}"
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
    """All in one image, with the boxes of one side; small ones twice, three times, ... as large, so
    that text on them can be read."""
    times = max(math.ceil(LEAST_DRAWN / max(pictures[0].image.shape[:2])), 1)
    return grid(
        [
            draw_boxes(
                p.image.repeat(times, 0).repeat(times, 1),
                getattr(p, side) * ([times] * 4 + [1, 1]),
                names,
            )
            for p in pictures
        ]
    )
