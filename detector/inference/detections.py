"""From the output of a network to detections in pixels of the image files."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from PIL import Image as PIL
from PIL import ImageDraw, ImageFont
from torch import Tensor

from boltbox.detector.data.images import read_image
from boltbox.detector.data.inputs.evaluation_input import tile_samples
from boltbox.detector.data.inputs.sources import Image, path_or_pixels
from boltbox.detector.data.inputs.tiles import merge
from boltbox.detector.data.sample import Batch, LetterboxInfo, collate, finish_on_device
from boltbox.detector.model.postprocess import nms
from boltbox.detector.system.errors import InputError, in_one_line, nearest, need

# Okabe and Ito's colours, which colour-blind readers tell apart; black is left out.
PALETTE = ["#e69f00", "#56b4e9", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7"]
STRIP = 256  # rows that leave Pillow together; a large image would take its memory three times
MAX_NAMED = 1000  # boxes of an image with names: more would cover it and one another


@dataclass(eq=False)
class Detections:
    """The objects found in one image, best first; `Detector.predict` returns them.

    Attributes:
        xyxy: (n, 4) float32: left, top, right, bottom in pixels of the image as it was passed (of
            a file or PIL image after EXIF rotation).
        confidence: (n,) float32 in 0..1.
        class_id: (n,) int64.
        names: The detector's class names, by class_id.
        path: Of the image file, if there is one.
    """

    xyxy: np.ndarray
    confidence: np.ndarray
    class_id: np.ndarray
    names: list[str]
    path: str | None = None

    @classmethod
    def of(cls, rows: np.ndarray, names: list[str], path: str | None = None) -> Detections:
        """From rows (n, 6): x1, y1, x2, y2, score, class."""
        return cls(rows[:, :4], rows[:, 4], rows[:, 5].astype(np.int64), names, path)

    def __str__(self) -> str:
        """Number of objects per class, like "3 cell, 1 platelet"."""
        if not len(self):
            return "nothing"
        numbers, counts = np.unique(self.class_id, return_counts=True)
        parts = [f"{count} {self.names[k]}" for k, count in zip(numbers, counts, strict=True)]
        return ", ".join(parts)

    def __len__(self) -> int:
        return len(self.xyxy)

    def __getitem__(self, index: int | slice | np.ndarray) -> Detections:
        """Some of them, by number, slice, numbers, or a mask (n,), like
        `objects[objects.confidence > 0.5]`."""
        chosen = np.atleast_1d(np.arange(len(self))[index])
        return Detections(
            self.xyxy[chosen],
            self.confidence[chosen],
            self.class_id[chosen],
            self.names,
            self.path,
        )

    def __iter__(self) -> Iterator[Detections]:
        """One by one."""
        return (self[i] for i in range(len(self)))

    def class_names(self) -> list[str]:
        """The class name of each detection."""
        return [self.names[number] for number in self.class_id]

    def plot(self, image: Image | None = None) -> np.ndarray:
        """A copy of an image, (H, W, 3) uint8 RGB, with the boxes drawn in, each with its class and
        confidence.

        Args:
            image: In any form that `predict` takes; default: the file `path`.

        Raises:
            InputError: There is no image, or the file cannot be read.
        """
        if image is None:
            if self.path is None:
                raise InputError("the detections have no file. Pass the image to plot or save")
            image = self.path
        pixels = path_or_pixels(image)
        if isinstance(pixels, str | Path):
            pixels = read_image(pixels)
        return draw_boxes(
            pixels, np.column_stack((self.xyxy, self.confidence, self.class_id)), self.names
        )

    def save(self, path: str | Path, image: Image | None = None) -> None:
        """Write the image with the boxes drawn in.

        Args:
            path: A file whose ending says its format, like drawn.jpg.
            image: See `plot`.

        Raises:
            InputError: As `plot`, or the file cannot be written.
        """
        drawn = PIL.fromarray(self.plot(image))
        try:
            drawn.save(path)
        except (ValueError, OSError) as e:
            raise InputError(f"{path}: the image cannot be written ({in_one_line(e)})") from None

    def to_json(self) -> str:
        """A list with an object per detection: name, class_id, confidence, and xyxy in pixels."""
        objects = []
        for i, name in enumerate(self.class_names()):
            entry = {
                "name": name,
                "class_id": int(self.class_id[i]),
                "confidence": round(float(self.confidence[i]), 5),
                "xyxy": [round(float(value), 3) for value in self.xyxy[i]],
            }
            objects.append(entry)
        return json.dumps(objects)

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame` with a row per detection: x1, y1, x2, y2 in pixels, confidence,
        class_id, name.

        Raises:
            InputError: The package pandas is not installed.
        """
        table = need("pandas", "to_pandas").DataFrame(self.xyxy, columns=["x1", "y1", "x2", "y2"])
        table["confidence"] = self.confidence
        table["class_id"] = self.class_id
        table["name"] = self.class_names()
        return table


def draw_boxes(
    image: np.ndarray,
    rows: np.ndarray,
    names: Sequence[str],
    with_names: bool = True,
    with_confidences: bool = True,
    line_width: int | None = None,
) -> np.ndarray:
    """Draw boxes and class names into an image, most confident on top.

    Args:
        image: (H, W, 3) uint8 RGB.
        rows: (n, 6) x1, y1, x2, y2 in pixels, score (NaN for an object of the labels), class; or
            (n, 7) with the number of the track.
        names: Class names.
        with_names: Write class names, if there are at most MAX_NAMED boxes.
        with_confidences: Write confidences after the names.
        line_width: In pixels; default: by the size of the image.

    Returns:
        The image.
    """
    picture = PIL.fromarray(image)
    canvas = ImageDraw.Draw(picture)
    if line_width is None:
        line_width = max(round(sum(picture.size) / 800), 2)
    font = _font(max(round(sum(picture.size) / 90), 10), "".join(names))
    order = np.argsort(np.nan_to_num(rows[:, 4]), kind="stable")
    for x1, y1, x2, y2, score, c, *track in rows[order].tolist():
        text = names[int(c)]
        colour = PALETTE[int(c) % len(PALETTE)]
        if track:
            text = f"{text} #{track[0]:.0f}"
        if with_confidences and not math.isnan(score):
            text = f"{text} {score:.2f}"
        canvas.rectangle((x1, y1, max(x1, x2), max(y1, y2)), outline=colour, width=line_width)
        if not with_names or len(rows) > MAX_NAMED:
            continue
        left, top, right, bottom = canvas.textbbox((0, 0), text, font=font)
        width = right - left + 4
        height = bottom - top + 4
        x = min(max(x1, 0), max(picture.width - width, 0))
        y = y1 - height if y1 >= height else y1
        canvas.rectangle((x, y, x + width, y + height), fill=colour)
        fill = "white" if colour == "#0072b2" else "black"
        canvas.text((x + 2 - left, y + 2 - top), text, font=font, fill=fill)
    for top in range(0, picture.height, STRIP):
        bottom = min(top + STRIP, picture.height)
        image[top:bottom] = picture.crop((0, top, picture.width, bottom))
    return image


def _font(size: int, text: str) -> Any:
    """Pillow's own, or for letters that are not English that of matplotlib's configuration."""
    if text.isascii():
        return ImageFont.load_default(size)
    from matplotlib.font_manager import FontProperties, findfont

    return ImageFont.truetype(findfont(FontProperties()), size)


def encode_jpeg(image: np.ndarray, quality: int = 92) -> bytes:
    """(H, W, 3) uint8 RGB as a JPEG.

    Args:
        image: (H, W, 3) uint8 RGB.
        quality: Of the JPEG, up to 100.

    Returns:
        The content of the file.

    Raises:
        InputError: it is too large for one.
    """
    options = [cv2.IMWRITE_JPEG_QUALITY, quality]
    done, data = cv2.imencode(".jpg", image[..., ::-1], options)
    if not done:
        raise InputError(
            f"no JPEG has {image.shape[1]} x {image.shape[0]} pixels (at most 65,500 per side): use"
            " --images false"
        )
    return data.tobytes()


def to_rows(
    decoded: Tensor, letterboxes: Sequence[LetterboxInfo | None], thresholds: dict[str, Any]
) -> list[np.ndarray]:
    """Suppress, and map boxes back to the image files.

    Args:
        decoded: (B, R, 5 + C).
        letterboxes: Per image how it became the input.
        thresholds: Arguments of `nms`.

    Returns:
        Per image (n, 6) float32: x1, y1, x2, y2 in pixels of the image file, score, class; best
        first.
    """
    results = []
    for detections, letterbox in zip(nms(decoded, **thresholds), letterboxes, strict=True):
        assert letterbox is not None
        boxes, scores, classes = (tensor.float().cpu().numpy() for tensor in detections)
        results.append(np.column_stack((letterbox.to_file(boxes), scores, classes)))
    return results


def rows_of_tiles(
    predict: Callable[[Tensor], Tensor], batch: Batch, thresholds: dict[str, Any], at_once: int
) -> np.ndarray:
    """The rows of the one image whose windows make up a batch, see `to_rows`.

    Args:
        predict: Float images -> their decoded rows.
        batch: The full image on the device, and its windows.
        thresholds: Arguments of `nms`.
        at_once: Maximum windows that go through the network together.

    Returns:
        (n, 6), best first.
    """
    letterbox = batch.letterboxes[0]
    windows = batch.windows
    assert letterbox is not None
    assert windows is not None
    rows = []
    for start in range(0, len(windows), at_once):  # all tiles together would take too much memory
        images = batch.images[start:]  # the full image is window 0
        letterboxes = batch.letterboxes[start:]
        tiles = tile_samples(batch, max(start, 1), start + at_once)
        if tiles:
            batch_of_tiles = finish_on_device(collate(tiles), images.device)
            images = torch.cat((images, batch_of_tiles.images))
            letterboxes += [tile.letterbox for tile in tiles]
        rows += to_rows(predict(images), letterboxes, thresholds)
    if len(windows) == 1:
        return rows[0]
    window_of = windows.repeat([len(of_window) for of_window in rows], 0)
    joined = np.concatenate(rows)
    # a box reaches beyond its window only into the padding
    joined[:, :4] = joined[:, :4].clip(np.tile(window_of[:, :2], 2), np.tile(window_of[:, 2:], 2))
    return merge(
        joined,
        window_of,
        (letterbox.height, letterbox.width),
        iou=thresholds["iou"],
        max_det=thresholds["max_det"],
        agnostic=thresholds["agnostic"],
    )


def class_numbers(classes: Sequence[int | str] | None, names: Sequence[str]) -> list[int] | None:
    """Numbers of classes that are named or numbered.

    >>> class_numbers([0, "dog"], ["cat", "dog"])
    [0, 1]

    Raises:
        InputError: There is no such class.
    """
    if classes is None:
        return None
    numbers = []
    for item in classes:
        if item in names:
            numbers.append(names.index(str(item)))
        elif item in range(len(names)):
            numbers.append(int(item))
        else:
            hint = f"the numbers are 0 to {len(names) - 1}"
            if isinstance(item, str):
                hint = nearest(item, names)
            raise InputError(f"classes: there is no class {item!r}; {hint}")
    return numbers
