"""From what a network predicts of a batch to detections in the pixels of the image files."""

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
    """What `Detector.predict` gives: the objects found in one image, best first.

    xyxy (n, 4) float32: left, top, right, bottom in pixels of the image as it was given (a file's
    after EXIF rotation) · confidence (n,) float32 in 0..1 · class_id (n,) int64 · names: the
    detector's class names, by class_id · path: of the image file, if one was given.
    """

    xyxy: np.ndarray
    confidence: np.ndarray
    class_id: np.ndarray
    names: list[str]
    path: str | None = None

    @classmethod
    def of(cls, rows: np.ndarray, names: list[str], path: str | None = None) -> Detections:
        """rows: (n, 6) x1, y1, x2, y2, score, class."""
        return cls(rows[:, :4], rows[:, 4], rows[:, 5].astype(np.int64), names, path)

    def __str__(self) -> str:
        """How many of each class, like "3 cell, 1 platelet"."""
        counts = zip(*np.unique(self.class_id, return_counts=True), strict=True)
        return ", ".join(f"{count} {self.names[k]}" for k, count in counts) or "nothing"

    def __len__(self) -> int:
        return len(self.xyxy)

    def __getitem__(self, index: int | slice | np.ndarray) -> Detections:
        """Some of them, as a list or an array is indexed: by number, slice, numbers, or a mask
        (n,), like `found[found.confidence > 0.5]`."""
        chosen = np.atleast_1d(np.arange(len(self))[index])
        kept = self.xyxy[chosen], self.confidence[chosen], self.class_id[chosen]
        return Detections(*kept, self.names, self.path)

    def __iter__(self) -> Iterator[Detections]:
        """One by one."""
        return (self[i] for i in range(len(self)))

    def plot(self, image: np.ndarray | None = None, width: int = 2) -> np.ndarray:
        """A copy of an image, (H, W, 3) uint8 RGB, with the boxes drawn in, each with its class and
        confidence.

        Args:
            image: (H, W, 3) uint8 RGB or (H, W) grey; default: the file `path`.
            width: Of the lines in pixels.

        Raises:
            InputError: No image is given and none known, or the file cannot be read.
        """
        from torchvision.utils import draw_bounding_boxes  # takes seconds

        if image is None:
            if self.path is None:
                raise InputError("these detections are not of a file: give plot or save the image")
            image = read_image(self.path)
        pixels = np.atleast_3d(image)
        pixels = np.repeat(pixels, 3 // pixels.shape[2], 2)
        if not len(self):
            return pixels
        rows = zip(self.class_id, self.confidence, strict=True)
        texts = [f"{self.names[number]} {confidence:.2f}" for number, confidence in rows]
        planes = torch.from_numpy(pixels).permute(2, 0, 1)
        drawn = draw_bounding_boxes(planes, torch.from_numpy(self.xyxy), texts, width=width)
        return drawn.permute(1, 2, 0).numpy()

    def save(self, path: str | Path, image: np.ndarray | None = None, width: int = 2) -> None:
        """Write the image with the boxes drawn in.

        Args:
            path: A file whose ending says its format, like drawn.jpg.
            image, width: See `plot`.

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
        for box, confidence, number in zip(self.xyxy, self.confidence, self.class_id, strict=True):
            entry = {
                "name": self.names[number],
                "class_id": int(number),
                "confidence": round(float(confidence), 5),
                "xyxy": [round(float(value), 3) for value in box],
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
        table["name"] = [self.names[number] for number in self.class_id]
        return table

    def to_supervision(self) -> Any:
        """The same as `supervision.Detections`, with the names in `data["class_name"]`.

        Raises:
            InputError: the package supervision is not installed.
        """
        supervision = need("supervision")
        names = np.array([self.names[i] for i in self.class_id], dtype=str)
        return supervision.Detections(
            xyxy=self.xyxy,
            confidence=self.confidence,
            class_id=self.class_id,
            data={"class_name": names},
        )


def to_rows(
    decoded: Tensor, letterboxes: Sequence[LetterboxInfo | None], thresholds: dict[str, Any]
) -> list[np.ndarray]:
    """(B, R, 5 + C) -> per image (n, 6) float32: x1, y1, x2, y2 in pixels of the image file, score,
    class; best first. thresholds: of `nms`."""
    results = []
    for found, letterbox in zip(nms(decoded, **thresholds), letterboxes, strict=True):
        assert letterbox is not None
        boxes, scores, classes = (tensor.float().cpu().numpy() for tensor in found)
        results.append(np.column_stack((letterbox.to_file(boxes), scores, classes)))
    return results


def rows_of_tiles(
    predict: Callable[[Tensor], Tensor], batch: Batch, thresholds: dict[str, Any], at_once: int
) -> np.ndarray:
    """The (n, 6) rows of the one image whose windows make up a batch, as `to_rows` gives them.

    Args:
        predict: float images -> their decoded rows.
        batch: images (B, 3, H, W) uint8: a large image's tiles would not all find room as floats.
        at_once: most windows that go through the network together.
    """
    letterbox, windows = batch.letterboxes[0], batch.windows
    assert letterbox is not None
    assert windows is not None
    rows = []
    for start in range(0, len(windows), at_once):
        part = slice(start, start + at_once)
        decoded = predict(to_floats(batch.images[part]))
        rows += to_rows(decoded, batch.letterboxes[part], thresholds)
    if len(windows) == 1:
        return rows[0]
    sources = windows.repeat([len(found) for found in rows], 0)
    joined = np.concatenate(rows)
    # a box reaches beyond its window only where the padding is
    joined[:, :4] = joined[:, :4].clip(np.tile(sources[:, :2], 2), np.tile(sources[:, 2:], 2))
    options = {name: thresholds[name] for name in ("iou", "max_det", "agnostic")}
    return merge(joined, sources, (letterbox.height, letterbox.width), **options)


def class_numbers(wanted: Sequence[int | str] | None, names: Sequence[str]) -> list[int] | None:
    """Numbers of the classes that are given by number or by name.

    >>> class_numbers([0, "dog"], ["cat", "dog"])
    [0, 1]

    Raises:
        InputError: there is no such class.
    """
    if wanted is None:
        return None
    known: dict[int | str, int] = {name: i for i, name in enumerate(names)}
    known |= {i: i for i in range(len(names))}
    for word in wanted:
        if word not in known:
            hint = f"the numbers are 0 to {len(names) - 1}"
            hint = nearest(word, names) if isinstance(word, str) else hint
            raise InputError(f"classes: there is no class {word!r}; {hint}")
    return [known[word] for word in wanted]
