"""Random rotation, scale, shear, translation and perspective in one warp."""

import math

import cv2
import numpy as np

from boltbox.detector.data.sample import Polygons, Sample
from boltbox.detector.data.transforms.letterbox import GREY, LazyImage
from boltbox.detector.model.boxes import area_xyxy, clip_xyxy

# a polygon is resampled to this many points, so that its hull stays tight under a warp
POLYGON_POINTS = 1000


def perspective_matrix(
    shape: tuple[int, int],
    out_shape: tuple[int, int],
    unit: np.ndarray,
    degrees: float = 0.0,
    translate: float = 0.1,
    scale: float = 0.5,
    shear: float = 0.0,
    perspective: float = 0.0,
) -> tuple[np.ndarray, float]:
    """The 3x3 matrix that takes pixels of an image to pixels of the output, and the scale in it.

    Args:
        shape, out_shape: (height, width) of image and output.
        unit: 8 numbers in [0, 1): perspective x, y, angle, scale, shear x, y, translation x, y,
            each mapped to its range.
        degrees, shear: +- degrees; translate: +- fraction of the output; scale: 1 +- scale;
            perspective: +-.
    """

    (height, width), (out_height, out_width) = shape, out_shape
    spread = perspective, perspective, degrees, scale, shear, shear, translate, translate
    centre = np.array((0, 0, 0, 1, 0, 0, 0.5, 0.5))
    low, high = centre - spread, centre + spread
    tilt_x, tilt_y, angle, s, shear_x, shear_y, x, y = (low + (high - low) * unit).tolist()
    angle, shear_x, shear_y = map(math.radians, (angle, shear_x, shear_y))
    cos, sin = s * math.cos(angle), s * math.sin(angle)
    to_origin, tilt, turn, skew, move = np.tile(np.eye(3), (5, 1, 1))
    to_origin[:2, 2] = -width / 2, -height / 2
    tilt[2, :2] = tilt_x, tilt_y
    turn[:2, :2] = (cos, sin), (-sin, cos)
    skew[0, 1], skew[1, 0] = math.tan(shear_x), math.tan(shear_y)
    move[:2, 2] = x * out_width, y * out_height
    return move @ skew @ turn @ tilt @ to_origin, s


def warp_points(points: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """(n, 2) pixels -> (n, 2) float64 pixels through a 3x3 matrix."""
    moved = np.column_stack((points, np.ones(len(points)))) @ matrix.T
    return moved[:, :2] / moved[:, 2:]


def warp_boxes(
    boxes: np.ndarray, polygons: Polygons, matrix: np.ndarray, out_shape: tuple[int, int]
) -> np.ndarray:
    """(n, 4) xyxy pixels -> (n, 4) float64 xyxy pixels of the output, clipped to it.

    A box becomes the upright hull of its four corners; an object with polygons the hull of their
    points that stay inside, a zero box if none does.
    """
    height, width = out_shape
    corners = warp_points(boxes[:, [0, 1, 2, 3, 0, 3, 2, 1]].reshape(-1, 2), matrix)
    corners = corners.reshape(-1, 4, 2)
    warped = clip_xyxy(np.concatenate((corners.min(1), corners.max(1)), 1), width, height)
    for i, parts in enumerate(polygons):
        if parts:
            points = warp_points(np.concatenate([_resample(part) for part in parts]), matrix)
            inside = points[((points >= 0) & (points <= (width, height))).all(1)]
            warped[i] = (*inside.min(0), *inside.max(0)) if len(inside) else 0
    return warped


def _resample(part: np.ndarray) -> np.ndarray:
    """(k, 2) corners of a closed polygon -> POLYGON_POINTS points along it."""
    closed = np.concatenate((part, part[:1])).astype(float)
    at, corner = np.linspace(0, len(closed) - 1, POLYGON_POINTS), np.arange(len(closed))
    return np.stack([np.interp(at, corner, closed[:, i]) for i in (0, 1)], 1)


def is_candidate(
    before: np.ndarray, after: np.ndarray, area_t: float | np.ndarray = 0.1
) -> np.ndarray:
    """(n,) bool: is what is left of each box worth keeping?

    Args:
        before, after: (n, 4) xyxy pixels, `before` already scaled as the warp scales.
        area_t: least share of the area that must be left.
    """
    w, h = after[:, 2] - after[:, 0], after[:, 3] - after[:, 1]
    aspect = np.maximum(w / (h + 1e-16), h / (w + 1e-16))
    return (
        (w > 2)
        & (h > 2)
        & (area_xyxy(after) / (area_xyxy(before) + 1e-16) > area_t)
        & (aspect < 100)
    )


class RandomPerspective:
    """Warp to size x size pixels: a mosaic of twice the size is cropped, a letterboxed image stays.
    Polygons end here.

    Args:
        size: output side in pixels, None for the size of the input.
        ranges: see `perspective_matrix`.
    """

    def __init__(self, size: int | None, **ranges: float) -> None:
        self.size, self.ranges = size, ranges

    def __call__(self, sample: Sample, rng: np.random.Generator, partner: object = None) -> Sample:
        out_shape = (self.size, self.size) if self.size else sample.size
        matrix, scale = perspective_matrix(sample.size, out_shape, rng.random(8), **self.ranges)
        return warp_sample(sample, matrix, scale, out_shape)


def warp_sample(
    sample: Sample, matrix: np.ndarray, scale: float, out_shape: tuple[int, int]
) -> Sample:
    """Image and objects through the matrix; objects of which too little is left are dropped. A lazy
    image is rendered, by a matrix that only scales and shifts."""
    image, size, grey = sample.image, out_shape[::-1], (GREY,) * 3
    if isinstance(image, LazyImage):
        (gain, b, x), (d, _, y), _ = matrix.tolist()
        assert b == d == 0, "render it before it is turned"
        half = 0.5 * (1 - gain)  # the matrix is about the centres of pixels
        image = image.moved(gain, (x + half, y + half), out_shape).render()
    elif (matrix[2] == (0, 0, 1)).all():
        image = cv2.warpAffine(image, matrix[:2], size, borderValue=grey)
    else:
        image = cv2.warpPerspective(image, matrix, size, borderValue=grey)
    boxes = warp_boxes(sample.boxes, sample.polygons, matrix, out_shape)
    area_t: float | np.ndarray = 0.1
    if sample.polygons:
        area_t = np.where([len(parts) > 0 for parts in sample.polygons], 0.01, 0.1)
    keep = is_candidate(sample.boxes * scale, boxes, area_t)
    return sample.replace(
        image=image,
        boxes=boxes[keep].astype(np.float32),
        classes=sample.classes[keep],
        polygons=[],
        letterbox=None,
    )
