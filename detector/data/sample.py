"""The formats of data between the modules: Labels of one image, a Sample, a Batch.

    files -> Labels -> Sample -> (transforms) -> Sample -> collate -> Batch -> (device) -> network

Boxes are xyxy pixels of the image they belong to, until `collate` writes the loss's rows (cxcywh as
fractions).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, NamedTuple, Self

import cv2
import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from boltbox.detector.model.boxes import clip_xyxy, xyxy_to_cxcywhn
from boltbox.detector.system.errors import InputError

IGNORED = -1  # class of a region that is neither object nor background
# one list per object: its parts, each (k, 2) float32 xy pixels; no parts: it has only a box
Polygons = list[list[np.ndarray]]


@dataclass
class Labels:
    """The objects of one image, as its label file says.

    Attributes:
        boxes: (n, 4) float32 xyxy pixels of the image as shown (after EXIF rotation).
        classes: (n,) int64.
        polygons: n lists of parts.
        crowd: (n,) bool: a region of uncounted objects, ignored in training and in COCO's
            evaluation.
        area: (n,) float32 square pixels, for COCO's size classes.
        height: of the image in pixels.
        width: of the image in pixels.
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
        return replace(
            self,
            boxes=self.boxes[mask],
            classes=self.classes[mask],
            polygons=[parts for parts, kept in zip(self.polygons, mask, strict=True) if kept],
            crowd=self.crowd[mask],
            area=self.area[mask],
        )

    def digest(self) -> str:
        """A checksum of boxes, classes and crowd, which tells whether labels have changed."""
        columns = (self.boxes, self.classes, self.crowd)
        return sha256(b"".join(column.tobytes() for column in columns)).hexdigest()


class LetterboxInfo(NamedTuple):
    """How an image was made of its file: x = x_file * gain_x + pad_x, y likewise.

    Attributes:
        height: of the file's image in pixels.
        width: of the file's image in pixels.
        gain_x: pixels of the image per pixel of the file.
        gain_y: likewise.
        pad_x: pixels of the image to the left.
        pad_y: pixels of the image above.
    """

    height: int
    width: int
    gain_x: float = 1.0
    gain_y: float = 1.0
    pad_x: float = 0.0
    pad_y: float = 0.0

    def moved(self, gain_x: float, gain_y: float, x: float, y: float) -> LetterboxInfo:
        """The same for the image scaled by the gains, then shifted by (x, y)."""
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
        pad = np.array((self.pad_x, self.pad_y, self.pad_x, self.pad_y))
        gain = np.array((self.gain_x, self.gain_y, self.gain_x, self.gain_y))
        boxes = (xyxy - pad) / gain
        return clip_xyxy(boxes, self.width, self.height).astype(xyxy.dtype)


@dataclass
class Sample:
    """One image with its objects.

    Attributes:
        image: (H, W, 3) uint8 RGB, or a LazyImage (transforms/letterbox.py), which has no pixels
            yet.
        boxes: (n, 4) float32 xyxy pixels of this image.
        classes: (n,) int64 class numbers, or IGNORED.
        polygons: n lists of parts in pixels of this image; none stands for n empty ones.
        letterbox: the way back to the file; None once images are mixed, mirrored or warped.
        index: of the image in its dataset; with tiles that of the training sample (windows.py).
        truth: in validation, the labels for the metrics, in pixels of the file's image.
    """

    image: Any
    boxes: np.ndarray
    classes: np.ndarray
    polygons: Polygons = field(default_factory=list)
    letterbox: LetterboxInfo | None = None
    index: int = -1
    truth: Labels | None = None

    def __post_init__(self) -> None:
        if not any(self.polygons):
            self.polygons = [[] for _ in self.boxes]

    def replace(self, **changes: Any) -> Self:
        """A copy with these fields changed; a subclass keeps its own fields."""
        return replace(self, **changes)

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) in pixels."""
        return self.image.shape[:2]

    def moved(self, image: Any, gain: tuple[float, float], shift: tuple[float, float]) -> Self:
        """A copy with another image and the objects moved to it.

        Args:
            image: the other image.
            gain: of x and y.
            shift: a point (x, y) goes to (x, y) * gain + shift.
        """
        scale = np.array(gain, np.float32)
        offset = np.array(shift, np.float32)
        polygons = []
        for parts in self.polygons:
            polygons.append([part * scale + offset for part in parts])
        return self.replace(
            image=image,
            boxes=self.boxes * np.tile(scale, 2) + np.tile(offset, 2),
            polygons=polygons,
            letterbox=self.letterbox.moved(*gain, *shift) if self.letterbox else None,
        )


class SourceImage(NamedTuple):
    """An image that was predicted on: a file, or a frame of a video or stream.

    Attributes:
        name: of its output files, without suffix.
        path: of the image or video file, or the stream's address.
        frame: number in the video, from 0.
        pixels: (H, W, 3) uint8 RGB; None: in the file.
        fps: frames/s of the output video.
        frames: how many frames the output video will have; 0: unknown.
    """

    name: str
    path: str
    frame: int | None = None
    pixels: np.ndarray | None = None
    fps: float = 0.0
    frames: int = 0


class Batch(NamedTuple):
    """Images of one size with their objects.

    Attributes:
        images: (B, 3, H, W) uint8 RGB; float in 0..1 after the device hook.
        targets: (N, 6) float32: image number in the batch, class, cx, cy, w, h as fractions of W
            and H.
        indices: of each image in the dataset.
        letterboxes: of each image.
        truths: of each image, in validation.
        windows: (n, 4) int64 x1, y1, x2, y2 in its file, of a batch of a single image that the
            network gets in parts: the full image, then its tiles (inputs/evaluation_input.py).
        pixels: (H, W, 3) uint8 RGB: the file's, from which tiles are cut.
        sources: of each image, in prediction.
        ignored: (M, 6) like `targets`: regions that are neither object nor background.
    """

    images: Tensor
    targets: Tensor
    indices: list[int]
    letterboxes: list[LetterboxInfo | None]
    truths: list[Labels | None]
    windows: np.ndarray | None = None
    pixels: Tensor | None = None
    sources: list[SourceImage] | None = None
    ignored: Tensor | None = None


def collate(items: Sequence[Sample | Batch | None]) -> Batch:
    """Samples of one size -> Batch. Boxes are clipped to the image just inside its right and lower
    edge (1e-3 px), so that their centres are in a grid cell.

    Args:
        items: samples, without those that could not be read (None); or one batch of windows, which
            is returned.
    """
    samples = []
    for item in items:
        if isinstance(item, Batch):
            return item
        if item is not None:
            samples.append(item)
    if not samples:
        return Batch(torch.empty(0, 3, 1, 1, dtype=torch.uint8), torch.zeros(0, 6), [], [], [])
    height, width = samples[0].size
    images = np.empty((len(samples), 3, height, width), np.uint8)
    for planes, sample in zip(images, samples, strict=True):
        assert sample.image.shape == (height, width, 3), "a batch has one size"
        # writes straight into the batch; numpy's transpose takes six times as long
        cv2.split(sample.image, list(planes))
    rows = target_rows(samples, height, width)
    ignored = rows[:, 1] == IGNORED
    return Batch(
        images=torch.from_numpy(images),
        targets=torch.from_numpy(rows[~ignored]),
        indices=[sample.index for sample in samples],
        letterboxes=[sample.letterbox for sample in samples],
        truths=[sample.truth for sample in samples],
        ignored=torch.from_numpy(rows[ignored]) if ignored.any() else None,
    )


def target_rows(samples: Sequence[Sample | Labels], height: int, width: int) -> np.ndarray:
    """(N, 6) float32: the objects of images of this size as `Batch.targets`."""
    counts = [len(sample.boxes) for sample in samples]
    numbers = np.repeat(np.arange(len(samples)), counts)
    classes = np.concatenate([sample.classes for sample in samples])
    boxes = np.concatenate([sample.boxes for sample in samples])
    boxes = clip_xyxy(boxes, width - 1e-3, height - 1e-3)
    rows = np.column_stack((numbers, classes, xyxy_to_cxcywhn(boxes, width, height)))
    return rows.astype(np.float32)


def finish_on_device(batch: Batch, device: torch.device) -> Batch:
    """The batch with its images on the device, uint8 -> float32 in 0..1."""
    return batch._replace(images=batch.images.to(device).float() / 255)


def check_floats(images: Tensor) -> None:
    """Raises InputError if the images of a batch are uint8 still."""
    if not images.is_floating_point():
        raise InputError(
            "images of uint8: the loaders of DetectionData need its hook, which divides by 255."
            " Give the Trainer the data module itself: datamodule=data"
        )


def rescaled(images: Tensor, size: int, stride: int, seed: int, iteration: int) -> Tensor:
    """Multi-scale training: resize a batch at random, depending on seed and iteration only.

    Args:
        images: (B, 3, H, W) float.
        size: the new longer side is 50 to 150 % of this many pixels.
        stride: the new sides are multiples of this.
        seed: of the run.
        iteration: of the training.
    """
    rng = np.random.default_rng((seed, 2, iteration))
    longest = int(rng.integers(size // 2, size * 3 // 2 + stride))
    longest = max(longest // stride, 2) * stride  # batch norm needs two values
    height, width = images.shape[2:]
    sides = []
    for side in (height, width):
        sides.append(math.ceil(side * longest / max(height, width) / stride) * stride)
    return interpolate(images, sides, mode="bilinear", align_corners=False)
