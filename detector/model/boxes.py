"""Boxes: formats, conversions, overlap. The format is in each name; every function takes NumPy
arrays or tensors.

    xyxy    x1, y1, x2, y2: left, top, right, bottom edge
    cxcywh  centre and size
    cxcywhn centre and size as fractions of the image's width and height

Coordinates are continuous: a box from pixel column 3 to pixel column 5 inclusive is x1 = 3, x2 = 6.
"""

import math
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

# np.ndarray or Tensor of shape (..., 4). A function returns the type of its argument; a union would
# have to be narrowed by every caller.
Boxes = Any

EPS = 1e-7


def _concat(parts: list[Boxes]) -> Boxes:
    return torch.cat(parts, -1) if isinstance(parts[0], Tensor) else np.concatenate(parts, -1)


def cxcywh_to_xyxy(boxes: Boxes) -> Boxes:
    """(..., 4) centre and size -> (..., 4) corners, same unit."""
    centre = boxes[..., :2]
    half = boxes[..., 2:4] / 2
    return _concat([centre - half, centre + half])


def xyxy_to_cxcywh(boxes: Boxes) -> Boxes:
    """(..., 4) corners -> (..., 4) centre and size, same unit."""
    low = boxes[..., :2]
    high = boxes[..., 2:4]
    return _concat([(low + high) / 2, high - low])


def cxcywhn_to_xyxy(boxes: Boxes, width: float, height: float) -> Boxes:
    """(..., 4) fractions of a `width` x `height` image -> (..., 4) corner pixels."""
    return cxcywh_to_xyxy(boxes) * _sides(boxes, width, height)


def xyxy_to_cxcywhn(boxes: Boxes, width: float, height: float) -> Boxes:
    """(..., 4) corner pixels -> (..., 4) centre and size as fractions of a `width` x `height`
    image."""
    return xyxy_to_cxcywh(boxes) / _sides(boxes, width, height)


def clip_xyxy(boxes: Boxes, width: float, height: float) -> Boxes:
    """(..., 4) corners limited to the rectangle from (0, 0) to (width, height)."""
    limits = _sides(boxes, width, height)
    if isinstance(boxes, Tensor):
        return boxes.clip(min=0).minimum(limits)
    # ndarray.clip takes three times as long
    return np.minimum(np.maximum(boxes, 0), limits)


def _sides(boxes: Boxes, width: float, height: float) -> Boxes:
    """(4,) width, height, width, height, as an array or a tensor like the boxes."""
    sides = (width, height, width, height)
    if isinstance(boxes, Tensor):
        return boxes.new_tensor(sides)
    return np.array(sides, boxes.dtype)


def area_xyxy(boxes: Boxes) -> Boxes:
    """(..., 4) corners -> (...) area; no check for x2 < x1."""
    return (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])


def pairwise_iou_xyxy(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """(n, 4) and (m, 4) corners -> (n, m) intersection over union, in the dtype of the input."""
    return iou_xyxy(a[:, None], b[None])


def iou_xyxy(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """(..., 4) and (..., 4) corners -> (...) intersection over union, in the dtype of the input."""
    overlap = overlap_xyxy(a, b)
    return overlap / (area_xyxy(a) + area_xyxy(b) - overlap + EPS)


def overlap_xyxy(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """(..., 4) and (..., 4) corners -> (...) area of the intersection."""
    low = np.maximum(a[..., :2], b[..., :2])
    high = np.minimum(a[..., 2:], b[..., 2:])
    sides = (high - low).clip(0)
    return sides[..., 0] * sides[..., 1]


def iou_cxcywh(pred: Tensor, target: Tensor, kind: Literal["iou", "ciou"]) -> Tensor:
    """Overlap of aligned pairs of boxes, differentiable in `pred`.

    Args:
        pred: (n, 4) centre and size, any unit.
        target: (n, 4), the same unit.
        kind: `iou`, or `ciou` (Zheng et al. 2019, arXiv 1911.08287; the trade-off weight alpha is
            not differentiated, as the paper says).

    Returns:
        (n,): 1 for identical boxes; `iou` in [0, 1], `ciou` in (-1, 1] or a little lower.
    """
    px, py, pw, ph = pred.unbind(-1)
    tx, ty, tw, th = target.unbind(-1)
    px1 = px - pw / 2
    px2 = px + pw / 2
    py1 = py - ph / 2
    py2 = py + ph / 2
    tx1 = tx - tw / 2
    tx2 = tx + tw / 2
    ty1 = ty - th / 2
    ty2 = ty + th / 2

    overlap_w = (px2.minimum(tx2) - px1.maximum(tx1)).clamp(0)
    overlap_h = (py2.minimum(ty2) - py1.maximum(ty1)).clamp(0)
    overlap = overlap_w * overlap_h
    union = pw * ph + tw * th - overlap + EPS
    iou = overlap / union
    if kind == "iou":
        return iou

    hull_w = px2.maximum(tx2) - px1.minimum(tx1)
    hull_h = py2.maximum(ty2) - py1.minimum(ty1)
    centre_distance = (tx1 + tx2 - px1 - px2) ** 2 / 4 + (ty1 + ty2 - py1 - py2) ** 2 / 4
    distance_penalty = centre_distance / (hull_w**2 + hull_h**2 + EPS)
    v = 4 / math.pi**2 * (torch.atan(tw / th) - torch.atan(pw / ph.clamp(EPS))) ** 2
    with torch.no_grad():
        alpha = v / (v - iou + 1 + EPS)
    return iou - distance_penalty - alpha * v
