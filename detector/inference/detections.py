"""From the output of a network to detections in pixels of the image files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from boltbox.detector.data.images import read_image
from boltbox.detector.data.inputs.tiles import merge
from boltbox.detector.data.sample import Batch, LetterboxInfo, to_floats
from boltbox.detector.model.postprocess import nms
from boltbox.detector.system.errors import InputError, in_one_line, nearest, need


@dataclass(eq=False)
class Detections:
    """The objects found in one image, best first; `Detector.predict` returns them.

    Attributes:
        xyxy: (n, 4) float32: left, top, right, bottom in pixels of the image as it was passed (a
            file's after EXIF rotation).
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

    def plot(self, image: np.ndarray | None = None, width: int = 2) -> np.ndarray:
        """A copy of an image, (H, W, 3) uint8 RGB, with the boxes drawn in, each with its class and
        confidence.

        Args:
            image: (H, W, 3) uint8 RGB or (H, W) grey; default: the file `path`.
            width: Of the lines in pixels.

        Raises:
            InputError: There is no image, or the file cannot be read.
        """
        from torchvision.utils import draw_bounding_boxes  # takes seconds

        if image is None:
            if self.path is None:
                raise InputError("the detections have no file. Pass the image to plot or save")
            image = read_image(self.path)
        pixels = np.atleast_3d(image)
        pixels = np.repeat(pixels, 3 // pixels.shape[2], 2)
        if not len(self):
            return pixels
        named = zip(self.class_names(), self.confidence, strict=True)
        texts = [f"{name} {confidence:.2f}" for name, confidence in named]
        planes = torch.from_numpy(pixels).permute(2, 0, 1)
        drawn = draw_bounding_boxes(planes, torch.from_numpy(self.xyxy), texts, width=width)
        return drawn.permute(1, 2, 0).numpy()

    def save(self, path: str | Path, image: np.ndarray | None = None, width: int = 2) -> None:
        """Write the image with the boxes drawn in.

        Args:
            path: A file whose ending says its format, like drawn.jpg.
            image: See `plot`.
            width: See `plot`.

        Raises:
            InputError: As `plot`, or the file cannot be written.
        """
        drawn = Image.fromarray(self.plot(image, width))
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

    def to_supervision(self) -> Any:
        """The same as `supervision.Detections`, with the names in `data["class_name"]`.

        Raises:
            InputError: The package supervision is not installed.
        """
        supervision = need("supervision")
        names = np.array(self.class_names(), dtype=str)
        return supervision.Detections(
            xyxy=self.xyxy,
            confidence=self.confidence,
            class_id=self.class_id,
            data={"class_name": names},
        )


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
        batch: Images (B, 3, H, W) uint8, as floats would take too much memory.
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
    for start in range(0, len(windows), at_once):
        part = slice(start, start + at_once)
        decoded = predict(to_floats(batch.images[part]))
        rows += to_rows(decoded, batch.letterboxes[part], thresholds)
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
