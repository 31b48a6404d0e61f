"""Batches of data of one's own, in the style of torchvision's detectors."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from boltbox.detector.data.sample import Batch, Labels, LetterboxInfo
from boltbox.detector.data.transforms.letterbox import GREY, round_up
from boltbox.detector.model.boxes import clip_xyxy, xyxy_to_cxcywhn
from boltbox.detector.system.errors import InputError


def detection_batch(given: Any, num_classes: int, stride: int, labelled: bool = True) -> Batch:
    """What torchvision's detectors are trained on -> Batch.

    Args:
        given: (images, targets). images: B of (3, H, W), or (B, 3, H, W), float in 0..1, each put
            at the top left on grey, where they are smaller than the batch. targets: B mappings with
            `boxes` (n, 4) xyxy in pixels of the image and `labels` (n,), 0 to num_classes - 1;
            other keys are ignored, boxes without an area are left out.
        stride: sides of the batch are multiples of it, in pixels.
        labelled: False: images alone will do.

    Raises:
        InputError: it is something else.
    """
    is_pair = isinstance(given, tuple | list) and len(given) == 2
    is_pair = is_pair and isinstance(given[1], tuple | list) and all(map(is_target, given[1]))
    if not is_pair and labelled:
        raise InputError(
            "data of your own: a batch must be (images, targets): images of 3 x H x W, float in"
            " 0..1, and a list of dicts with boxes (n, 4), xyxy in pixels, and labels (n,)"
        )
    images = list(given[0] if is_pair else given)
    targets = list(given[1]) if is_pair else [{"boxes": [], "labels": []} for _ in images]
    if not images or not all(map(is_image, images)) or len(images) != len(targets):
        raise InputError(
            "data of your own: images must be 3 x H x W, float in 0..1,"
            f" {_why(images) or 'with a target for each'}"
        )
    sizes = [(image.shape[1], image.shape[2]) for image in images]
    height, width = (round_up(max(sides), stride) for sides in zip(*sizes, strict=True))
    canvas = torch.full((len(images), 3, height, width), GREY / 255)
    rows, truths = [], list[Labels | None]()
    for i, ((h, w), image, target) in enumerate(zip(sizes, images, targets, strict=True)):
        canvas[i, :, :h, :w] = image
        try:
            boxes = torch.as_tensor(target["boxes"]).detach().float().cpu().numpy()
            labels = torch.as_tensor(target["labels"]).cpu().numpy()
            if len(boxes) != len(labels) or (len(boxes) and boxes.shape[1:] != (4,)):
                raise ValueError(f"shapes {[*boxes.shape]} and {[*labels.shape]}")
        except (TypeError, ValueError) as e:
            raise InputError(
                f"data of your own: boxes must be (n, 4) and labels (n,), both numbers: {e}"
            ) from None
        boxes = clip_xyxy(boxes.reshape(-1, 4), w - 1e-3, h - 1e-3)
        kept = (boxes[:, 2:] > boxes[:, :2]).all(1)
        boxes, labels = boxes[kept], labels[kept].astype(np.int64)
        wrong = labels[(labels < 0) | (labels >= num_classes)]
        if len(wrong):
            raise InputError(
                f"data of your own: there is a label {wrong[0]}; labels are 0 to"
                f" {num_classes - 1}, places in the Detector's names: there is no class for the"
                " background, which is torchvision's 0"
            )
        fractions = xyxy_to_cxcywhn(boxes, width, height)
        rows.append(np.column_stack((np.full(len(boxes), i), labels, fractions)))
        area, crowd = (boxes[:, 2:] - boxes[:, :2]).prod(1), np.zeros(len(boxes), bool)
        truths.append(Labels(boxes, labels, [[] for _ in boxes], crowd, area, h, w))
    lines = torch.from_numpy(np.concatenate(rows).astype(np.float32))
    frames: list[LetterboxInfo | None] = [LetterboxInfo(*size) for size in sizes]
    return Batch(canvas, lines, list(range(len(images))), frames, truths)


def _why(images: list[Any]) -> str:
    """What the first image of 0..255 is, and what to do; "" if there is none."""
    for image in images:
        if isinstance(image, Tensor) and image.ndim == 3 and len(image) == 3 and image.numel():
            top = float(image.max())
            if image.dtype == torch.uint8 or top > 1.5:
                dtype = str(image.dtype).removeprefix("torch.")
                size = " x ".join(map(str, image.shape))
                return f"not {dtype} {size} up to {top:g}: give image / 255"
    return ""


def is_target(value: Any) -> bool:
    return isinstance(value, Mapping) and {"boxes", "labels"} <= value.keys()


def is_image(value: Any) -> bool:
    if not isinstance(value, Tensor) or value.ndim != 3 or len(value) != 3:
        return False
    # a bicubic filter may overshoot
    return value.is_floating_point() and bool(value.min() > -0.5) and bool(value.max() < 1.5)
