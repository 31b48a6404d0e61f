"""Images with boxes: those of files, and batches as the network sees them."""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import cv2
import numpy as np
import torch
from PIL import Image, ImageDraw
from torchvision.utils import make_grid

from boltbox.detector.data.images import read_image
from boltbox.detector.data.sample import Batch
from boltbox.detector.inference.detections import PALETTE, draw_boxes, encode_jpeg
from boltbox.detector.model.boxes import clip_xyxy, cxcywhn_to_xyxy
from boltbox.detector.system.errors import InputError, Unreachable

CONF = 0.25  # minimum confidence of a detection that is drawn in a batch
MAX_IMAGES = 16  # of a batch
GRID_SIDE = 1920  # maximum pixels of a grid of images
CROP_SIDE = 240  # pixels
CROP_CONTEXT = 2.0  # side of a crop over the longer side of its box
CROP_MIN = 64  # minimum pixels of the file in a crop
CROP_MAX = 2**13  # pixels; of a larger part some are left out, as Pillow refuses huge ones
DETECTION = PALETTE[0]  # thin orange
LABEL = PALETTE[1]  # thick blue


def grid(images: Sequence[np.ndarray]) -> np.ndarray:
    """Images of one size side by side, about as many rows as columns, the longer side at most
    GRID_SIDE pixels.

    Args:
        images: (H, W, 3) uint8 each.

    Returns:
        (H, W, 3) uint8.
    """
    columns = math.ceil(math.sqrt(len(images)))
    tiles = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2)
    canvas = make_grid(tiles, columns, padding=0, pad_value=255).permute(1, 2, 0).numpy()
    shrink = GRID_SIDE / max(canvas.shape)
    if shrink < 1:
        canvas = cv2.resize(canvas, None, fx=shrink, fy=shrink, interpolation=cv2.INTER_AREA)
    return canvas


def crop_around(
    file: str, box: np.ndarray | None, detections: np.ndarray, labels: np.ndarray
) -> bytes | str:
    """The part of an image around a box, with detections and labels; all boxes are xyxy in pixels
    of the file.

    Args:
        file: The image.
        box: (4,) in the middle of the part; None: the whole image.
        detections: (n, 4).
        labels: (m, 4).

    Returns:
        A JPEG, or why there is none.
    """
    try:
        image = read_image(file)
    except (InputError, Unreachable) as e:
        return f"cannot be shown: {e}"
    size = np.array(image.shape[1::-1])
    if box is None:
        box = np.array((0, 0, *size))
    box = clip_xyxy(box, *size)
    side = max((box[2:] - box[:2]).max() * CROP_CONTEXT, CROP_MIN)
    side = min(side, size.max())
    corner = np.clip((box[:2] + box[2:] - side) / 2, 0, np.maximum(size - side, 0))
    left, top = corner.tolist()
    step = int(side // CROP_MAX) + 1
    area = np.array((left, top, left + side, top + side)) / step
    crop = Image.fromarray(image[::step, ::step]).crop(tuple(area.tolist()))
    crop = crop.resize((CROP_SIDE, CROP_SIDE))
    canvas = ImageDraw.Draw(crop)
    for boxes, colour, width in ((labels, LABEL, 5), (detections, DETECTION, 2)):
        for x1, y1, x2, y2 in ((boxes - (left, top) * 2) * CROP_SIDE / side).tolist():
            canvas.rectangle((x1, y1, max(x1, x2), max(y1, y2)), outline=colour, width=width)
    return encode_jpeg(np.asarray(crop), 82)


class BatchImage(NamedTuple):
    """An image of a batch, with rows for `draw_boxes`.

    Attributes:
        pixels: (H, W, 3) uint8 RGB.
        labels: (n, 6).
        predictions: (m, 6).
    """

    pixels: np.ndarray
    labels: np.ndarray
    predictions: np.ndarray


def images_of(batch: Batch, detections: Sequence[np.ndarray] = ()) -> list[BatchImage]:
    """The first images of a batch as the network sees them, with predictions above CONF.

    Args:
        batch: Images, labels and letterboxes.
        detections: Per image (n, 6) x1, y1, x2, y2 in pixels of the image file, score, class;
            empty: nothing was predicted yet.
    """
    pixels = batch.images[:MAX_IMAGES].float().cpu().numpy().transpose(0, 2, 3, 1)
    height, width = batch.images.shape[2:]
    targets = batch.targets.float().cpu().numpy()
    boxes = cxcywhn_to_xyxy(targets[:, 2:], width, height)
    labels = np.column_stack((boxes, np.full(len(boxes), np.nan), targets[:, 1]))
    images = []
    for i, image in enumerate((pixels * 255).round().astype(np.uint8)):
        predictions = np.zeros((0, 6))
        letterbox = batch.letterboxes[i]
        if detections and letterbox is not None:
            confident = detections[i][detections[i][:, 4] > CONF]
            scale = (letterbox.gain_x, letterbox.gain_y) * 2
            shift = (letterbox.pad_x, letterbox.pad_y) * 2
            predictions = np.column_stack((confident[:, :4] * scale + shift, confident[:, 4:]))
        image = np.ascontiguousarray(image)
        images.append(BatchImage(image, labels[targets[:, 0] == i], predictions))
    return images


def draw_images(
    images: Sequence[BatchImage], side: Literal["labels", "predictions"], names: Sequence[str]
) -> np.ndarray:
    """Images in one, with the boxes of one side.

    Args:
        images: Of one size.
        side: Which boxes.
        names: Class names.

    Returns:
        (H, W, 3) uint8 RGB.
    """
    drawn = []
    for image in images:
        rows = image.labels if side == "labels" else image.predictions
        drawn.append(draw_boxes(image.pixels.copy(), rows, names))
    return grid(drawn)
