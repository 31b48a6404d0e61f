"""The formats that travel: Labels of one image, a Sample, a Batch. Nothing else defines them.

    files -> Labels -> Sample -> (transforms) -> Sample -> collate -> Batch -> (device) -> network

Boxes are xyxy pixels of the image they belong to, until `collate` writes the loss's rows (cxcywh as
fractions).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

import cv2
import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from boltbox.detector.model.boxes import clip_xyxy, xyxy_to_cxcywhn

# one entry an object: its parts, each (k, 2) float32 xy pixels; no parts = only a box
Polygons = list[list[np.ndarray]]


@dataclass
class Labels:
    """What the label file says of one image, in pixels of the image as shown (after EXIF rotation).

    boxes (n, 4) float32 xyxy · classes (n,) int64 · polygons: n lists of parts · crowd (n,) bool: a
    region of uncounted objects, ignored in training and in COCO's evaluation · area (n,) float32
    square pixels, for COCO's size classes.
    """

    boxes: np.ndarray
    classes: np.ndarray
    polygons: Polygons
    crowd: np.ndarray
    area: np.ndarray
    height: int
    width: int

    def keep(self, mask: np.ndarray) -> Labels:
        """The objects where the (n,) boolean mask is true."""
        polygons = [p for p, kept in zip(self.polygons, mask, strict=True) if kept]
        columns = (self.boxes, self.classes, self.crowd, self.area)
        boxes, classes, crowd, area = (column[mask] for column in columns)
        return Labels(boxes, classes, polygons, crowd, area, self.height, self.width)


class LetterboxInfo(NamedTuple):
    """How an image came from its file: x = x_file * gain_x + pad_x, y likewise. height, width: of
    the file's image."""

    height: int
    width: int
    gain_x: float = 1.0
    gain_y: float = 1.0
    pad_x: float = 0.0
    pad_y: float = 0.0

    def moved(self, gain_x: float, gain_y: float, x: float, y: float) -> LetterboxInfo:
        """With the image scaled, then shifted."""
        return LetterboxInfo(
            self.height,
            self.width,
            self.gain_x * gain_x,
            self.gain_y * gain_y,
            self.pad_x * gain_x + x,
            self.pad_y * gain_y + y,
        )

    def to_file(self, xyxy: np.ndarray) -> np.ndarray:
        """(n, 4) xyxy pixels of the network's input -> (n, 4) pixels of the file's image, clipped
        to it."""
        boxes = (xyxy - (self.pad_x, self.pad_y) * 2) / ((self.gain_x, self.gain_y) * 2)
        return clip_xyxy(boxes, self.width, self.height).astype(xyxy.dtype)


@dataclass
class Sample:
    """One image with its objects.

    Attributes:
        image: (H, W, 3) uint8 RGB, or a LazyImage (transforms/letterbox.py), which has no pixels
            yet.
        boxes: (n, 4) float32 xyxy pixels of this image.
        classes: (n,) int64.
        polygons: n lists of parts in pixels of this image, or an empty list if no object has any.
        letterbox: the way back to the file; None once images are mixed, mirrored or warped.
        index: of the image in its data set.
        truth: validation only: what the metrics compare with, in pixels of the file's image.
    """

    image: Any
    boxes: np.ndarray
    classes: np.ndarray
    polygons: Polygons = field(default_factory=list)
    letterbox: LetterboxInfo | None = None
    index: int = -1
    truth: Labels | None = None

    def replace(self, **changes: Any) -> Self:
        """A sample with these fields changed and all others kept, those of a subclass too."""
        return replace(self, **changes)

    def parts(self) -> Polygons:
        """The polygons as n lists, also where there is none."""
        return self.polygons or [[] for _ in range(len(self.boxes))]

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) in pixels."""
        height, width = self.image.shape[:2]
        return height, width

    def moved(self, image: Any, gain: tuple[float, float], shift: tuple[float, float]) -> Self:
        """With another image, to which coordinates (x, y) go by x * gain + shift."""
        scale, offset = np.array(gain * 2, np.float32), np.array(shift * 2, np.float32)
        return self.replace(
            image=image,
            boxes=self.boxes * scale + offset,
            polygons=[[part * scale[:2] + offset[:2] for part in parts] for parts in self.polygons],
            letterbox=self.letterbox.moved(*gain, *shift) if self.letterbox else None,
        )


class Picture(NamedTuple):
    """Something that was predicted on. name: what its files are called, without suffix · path: of
    the image or video file, or the stream's address · frame: number in the video, from 0 · pixels
    (H, W, 3) uint8 RGB, None: read them from the file · fps: of the video that is written,
    frames/s · frames: how many it is to have; 0: unknown."""

    name: str
    path: str
    frame: int | None = None
    pixels: np.ndarray | None = None
    fps: float = 0.0
    frames: int = 0


class Batch(NamedTuple):
    """images (B, 3, H, W) uint8 RGB, float in 0..1 after the device hook; targets (N, 6) float32:
    image number in the batch, class, cx, cy, w, h as fractions of W, H; then an entry an image:
    index in the data set, LetterboxInfo, Labels (validation only).

    windows (B, 4) int64: all B images show one image, each the part x1, y1, x2, y2 of the file's
    pixels (inputs/evaluation_input.py); they stay uint8, and there is one index and one truth.
    pictures: the frames of a video, which no file holds to be read again."""

    images: Tensor
    targets: Tensor
    indices: list[int]
    letterboxes: list[LetterboxInfo | None]
    truths: list[Labels | None]
    windows: np.ndarray | None = None
    pictures: list[Picture] | None = None


def collate(samples: list[Sample]) -> Batch:
    """Samples of one size -> Batch. Boxes are clipped to the image just inside its right and lower
    edge (1e-3 px), so that their centres lie in a grid cell."""
    height, width = samples[0].size
    images = np.empty((len(samples), 3, height, width), np.uint8)
    for planes, s in zip(images, samples, strict=True):
        assert s.image.shape == (height, width, 3), "a batch has one size"
        # writes where they belong; numpy's transpose takes six times as long
        cv2.split(s.image, list(planes))
    boxes = clip_xyxy(np.concatenate([s.boxes for s in samples]), width - 1e-3, height - 1e-3)
    numbers = np.repeat(np.arange(len(samples)), [len(s.boxes) for s in samples])
    classes = np.concatenate([s.classes for s in samples])
    rows = np.column_stack((numbers, classes, xyxy_to_cxcywhn(boxes, width, height)))
    targets = torch.from_numpy(rows.astype(np.float32))
    return Batch(
        torch.from_numpy(images),
        targets,
        [s.index for s in samples],
        [s.letterbox for s in samples],
        [s.truth for s in samples],
    )


def finish_on_device(batch: Batch) -> Batch:
    """Images uint8 -> float in 0..1. Tiles stay uint8: as floats they would not all find room."""
    return batch if batch.windows is not None else batch._replace(images=to_floats(batch.images))


def to_floats(images: Tensor) -> Tensor:
    """(B, 3, H, W) uint8 -> float32 in 0..1, on the device where they are."""
    return images.float() / 255


def rescaled(images: Tensor, size: int, stride: int, seed: int, iteration: int) -> Tensor:
    """(B, 3, H, W) resized so that the longer side is 50 to 150 % of `size` pixels, by seed and
    iteration alone; sides are multiples of `stride`."""
    rng = np.random.default_rng((seed, 2, iteration))
    size = max(int(rng.integers(size // 2, size * 3 // 2 + stride)) // stride, 1) * stride
    longest = max(images.shape[2:])
    sides = [math.ceil(s * size / longest / stride) * stride for s in images.shape[2:]]
    return interpolate(images, sides, mode="bilinear", align_corners=False)
