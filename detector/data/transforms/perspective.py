"""Random rotation, scale, shear, translation and perspective in one warp."""

import math

import cv2
import numpy as np

from boltbox.detector.data.sample import Polygons, Sample
from boltbox.detector.data.transforms.letterbox import GREY, LazyImage
from boltbox.detector.model.boxes import area_xyxy, clip_xyxy

POLYGON_POINTS = 1000  # of a resampled polygon, so that its hull stays tight under a warp


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
    """A random warp: perspective, rotation and scale, shear, and translation about the centre.

    Args:
        shape: (height, width) of the image.
        out_shape: (height, width) of the output.
        unit: (8,) random numbers in [0, 1) for perspective x, y, angle, scale, shear x, y,
            translation x, y; each is mapped to its range.
        degrees: rotation by +- this.
        translate: +- this fraction of the output.
        scale: scale by 1 +- this.
        shear: +- this many degrees.
        perspective: +- this.

    Returns:
        matrix: 3x3, from pixels of the image to pixels of the output.
        scale: the scale in it.
    """
    height, width = shape
    out_height, out_width = out_shape
    spread = (perspective, perspective, degrees, scale, shear, shear, translate, translate)
    centre = np.array((0, 0, 0, 1, 0, 0, 0.5, 0.5))
    low = centre - spread
    high = centre + spread
    tilt_x, tilt_y, angle, s, shear_x, shear_y, x, y = (low + (high - low) * unit).tolist()
    cos = s * math.cos(math.radians(angle))
    sin = s * math.sin(math.radians(angle))
    skew_x = math.tan(math.radians(shear_x))
    skew_y = math.tan(math.radians(shear_y))
    to_origin = np.array(((1, 0, -width / 2), (0, 1, -height / 2), (0, 0, 1)))
    tilt = np.array(((1, 0, 0), (0, 1, 0), (tilt_x, tilt_y, 1)))
    turn = np.array(((cos, sin, 0), (-sin, cos, 0), (0, 0, 1)))
    skew = np.array(((1, skew_x, 0), (skew_y, 1, 0), (0, 0, 1)))
    move = np.array(((1, 0, x * out_width), (0, 1, y * out_height), (0, 0, 1)))
    return move @ skew @ turn @ tilt @ to_origin, s


def warp_points(points: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """(n, 2) pixels -> (n, 2) float64 pixels, by a 3x3 matrix."""
    moved = np.column_stack((points, np.ones(len(points)))) @ matrix.T
    return moved[:, :2] / moved[:, 2:]


def warp_boxes(
    boxes: np.ndarray, polygons: Polygons, matrix: np.ndarray, out_shape: tuple[int, int]
) -> np.ndarray:
    """The hulls of warped objects.

    Args:
        boxes: (n, 4) xyxy pixels.
        polygons: n lists of parts. An object with polygons gets the hull of their points inside the
            output, a zero box if there is none; others that of the box's corners.
        matrix: 3x3.
        out_shape: (height, width) of the output.

    Returns:
        (n, 4) float64 xyxy pixels of the output, clipped to it.
    """
    height, width = out_shape
    corners = boxes[:, [0, 1, 2, 3, 0, 3, 2, 1]].reshape(-1, 2)  # four per box
    warped_corners = warp_points(corners, matrix).reshape(-1, 4, 2)
    hulls = np.concatenate((warped_corners.min(1), warped_corners.max(1)), 1)
    warped = clip_xyxy(hulls, width, height)
    for i, parts in enumerate(polygons):
        if parts:
            points = warp_points(np.concatenate([_resample(part) for part in parts]), matrix)
            inside = points[((points >= 0) & (points <= (width, height))).all(1)]
            warped[i] = (*inside.min(0), *inside.max(0)) if len(inside) else 0
    return warped


def _resample(part: np.ndarray) -> np.ndarray:
    """(k, 2) corners of a closed polygon -> POLYGON_POINTS points along it."""
    closed = np.concatenate((part, part[:1])).astype(float)
    corners = np.arange(len(closed))
    positions = np.linspace(0, len(closed) - 1, POLYGON_POINTS)
    x = np.interp(positions, corners, closed[:, 0])
    y = np.interp(positions, corners, closed[:, 1])
    return np.stack((x, y), 1)


def is_candidate(
    before: np.ndarray, after: np.ndarray, area_t: float | np.ndarray = 0.1
) -> np.ndarray:
    """Whether enough is left of each box to keep it.

    Args:
        before: (n, 4) xyxy pixels, already scaled as the warp scales.
        after: (n, 4) xyxy pixels.
        area_t: minimum share of the area that is left.

    Returns:
        (n,) bool.
    """
    w = after[:, 2] - after[:, 0]
    h = after[:, 3] - after[:, 1]
    aspect = np.maximum(w / (h + 1e-16), h / (w + 1e-16))
    share = area_xyxy(after) / (area_xyxy(before) + 1e-16)
    return (w > 2) & (h > 2) & (share > area_t) & (aspect < 100)


class RandomPerspective:
    """A step: a random warp to size x size pixels, which crops a mosaic of twice the size. The
    sample has no polygons afterwards.

    Args:
        size: output side in pixels; None: the size of the input.
        ranges: see `perspective_matrix`.
    """

    def __init__(self, size: int | None, **ranges: float) -> None:
        self.size = size
        self.ranges = ranges

    def __call__(self, sample: Sample, rng: np.random.Generator, partner: object = None) -> Sample:
        out_shape = (self.size, self.size) if self.size else sample.size
        matrix, scale = perspective_matrix(sample.size, out_shape, rng.random(8), **self.ranges)
        return warp_sample(sample, matrix, scale, out_shape)


def warp_sample(
    sample: Sample, matrix: np.ndarray, scale: float, out_shape: tuple[int, int]
) -> Sample:
    """Warp an image with its objects; those of which too little is left are dropped.

    Args:
        sample: a lazy image is rendered; its matrix must only scale and shift.
        matrix: 3x3, see `perspective_matrix`.
        scale: of the matrix.
        out_shape: (height, width) of the output.
    """
    image = sample.image
    size = out_shape[::-1]
    grey = (GREY, GREY, GREY)
    if isinstance(image, LazyImage):
        assert matrix[0, 1] == matrix[1, 0] == 0, "render the image before it is turned"
        gain = matrix[0, 0].item()
        x = matrix[0, 2].item()
        y = matrix[1, 2].item()
        half = 0.5 * (1 - gain)  # the matrix is about the centres of pixels
        image = image.moved(gain, (x + half, y + half), out_shape).render()
    elif (matrix[2] == (0, 0, 1)).all():
        image = cv2.warpAffine(image, matrix[:2], size, borderValue=grey)
    else:
        image = cv2.warpPerspective(image, matrix, size, borderValue=grey)
    boxes = warp_boxes(sample.boxes, sample.polygons, matrix, out_shape)
    has_polygon = [len(parts) > 0 for parts in sample.polygons]
    keep = is_candidate(sample.boxes * scale, boxes, np.where(has_polygon, 0.01, 0.1))
    return sample.replace(
        image=image,
        boxes=boxes[keep].astype(np.float32),
        classes=sample.classes[keep],
        polygons=[],
        letterbox=None,
    )
