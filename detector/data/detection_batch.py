"""Batches of a user's own loader, in the style of torchvision's detectors."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from boltbox.detector.data.sample import Batch, Labels, LetterboxInfo, target_rows
from boltbox.detector.data.transforms.letterbox import GREY, round_up
from boltbox.detector.model.boxes import clip_xyxy
from boltbox.detector.system.errors import InputError


def detection_batch(given: Any, num_classes: int, stride: int, labelled: bool = True) -> Batch:
    """What torchvision's detectors are trained on -> Batch.

    Args:
        given: (images, targets). images: B of (3, H, W), or (B, 3, H, W), float in 0..1, each put
            at the top left on grey if it is smaller than the batch. targets: B mappings with
            `boxes` (n, 4) xyxy in pixels of the image and `labels` (n,), 0 to num_classes - 1;
            other keys are ignored, boxes without an area are left out.
        num_classes: of the network.
        stride: sides of the batch are multiples of it, in pixels.
        labelled: False: targets may be missing.

    Raises:
        InputError: it is something else.
    """
    if _is_pair(given):
        images = list(given[0])
        targets = list(given[1])
    elif not labelled:
        images = list(given)
        targets = [{"boxes": [], "labels": []} for _ in images]
    else:
        raise InputError(
            "data of your own: a batch must be (images, targets): images of 3 x H x W, float in"
            " 0..1, and a list of dicts with boxes (n, 4), xyxy in pixels, and labels (n,)"
        )
    if not images or not all(map(_is_image, images)) or len(images) != len(targets):
        raise InputError(
            "data of your own: images must be 3 x H x W, float in 0..1 (of 0..255: give"
            " image / 255), with a target for each"
        )
    _, height, width = np.array([image.shape for image in images]).max(0).tolist()
    height = round_up(height, stride)
    width = round_up(width, stride)
    canvas = torch.full((len(images), 3, height, width), GREY / 255)
    truths: list[Any] = []
    frames: list[LetterboxInfo | None] = []
    for i, (image, target) in enumerate(zip(images, targets, strict=True)):
        h, w = image.shape[1:]
        canvas[i, :, :h, :w] = image
        truths.append(_labels_of(target, h, w, num_classes))
        frames.append(LetterboxInfo(h, w))
    rows = torch.from_numpy(target_rows(truths, height, width))
    return Batch(canvas, rows, list(range(len(images))), frames, truths)


def _is_image(value: Any) -> bool:
    """Whether it is a (3, H, W) float Tensor in 0..1."""
    if not isinstance(value, Tensor) or value.ndim != 3 or len(value) != 3:
        return False
    # a bicubic filter may overshoot
    return value.is_floating_point() and bool(value.min() > -0.5) and bool(value.max() < 1.5)


def _is_pair(given: Any) -> bool:
    if not isinstance(given, tuple | list) or len(given) != 2:
        return False
    if not isinstance(given[1], tuple | list):
        return False
    return all(isinstance(target, Mapping) and "boxes" in target for target in given[1])


def _labels_of(target: Mapping[str, Any], height: int, width: int, num_classes: int) -> Labels:
    """The boxes with an area, clipped to the image of this size."""
    try:
        boxes = torch.as_tensor(target["boxes"]).detach().float().cpu().numpy()
        classes = torch.as_tensor(target["labels"]).cpu().numpy()
        if classes.shape != (len(boxes),) or (len(boxes) and boxes.shape[1:] != (4,)):
            raise ValueError(f"shapes {list(boxes.shape)} and {list(classes.shape)}")
    except (KeyError, TypeError, ValueError) as e:
        raise InputError(
            f"data of your own: boxes must be (n, 4) and labels (n,), both numbers: {e}"
        ) from None
    boxes = boxes.reshape(-1, 4)
    ordered = (boxes[:, 2:] >= boxes[:, :2]).all(1)  # NaN is not
    shares = ((boxes > 0) & (boxes < 1)).all(1)  # no object of an image lies within its first pixel
    strange = boxes[~ordered | shares]
    if len(strange):
        raise InputError(
            f"data of your own: there is a box {strange[0].tolist()}; boxes are x1, y1, x2, y2 in"
            " pixels, x1 <= x2 and y1 <= y2, not x, y, width, height, nor in 0..1"
        )
    boxes = clip_xyxy(boxes, width - 1e-3, height - 1e-3)
    sides = boxes[:, 2:] - boxes[:, :2]
    kept = (sides > 0).all(1)
    boxes = boxes[kept]
    classes = classes[kept].astype(np.int64)
    wrong = classes[(classes < 0) | (classes >= num_classes)]
    if len(wrong):
        raise InputError(
            f"data of your own: there is a label {wrong[0]}; labels are 0 to {num_classes - 1},"
            " places in the Detector's names: there is no class for the background, which is"
            " torchvision's 0"
        )
    crowd = np.zeros(len(boxes), bool)
    return Labels(boxes, classes, [[] for _ in boxes], crowd, sides[kept].prod(1), height, width)
