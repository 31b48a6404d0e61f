"""Non-maximum suppression."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from boltbox.detector.model.boxes import cxcywh_to_xyxy

MAX_CANDIDATES = 30_000  # per image; the best ones are kept, as in YOLOv5


class NMSResult(NamedTuple):
    """The detections of one image, highest score first, on the network's device. Users get
    `boltbox.detector.inference.detections.Detections`.

    Attributes:
        boxes: (n, 4) xyxy pixels of the network's input.
        scores: (n,) in 0..1.
        classes: (n,) int64.
    """

    boxes: Tensor
    scores: Tensor
    classes: Tensor


def nms(
    decoded: Tensor,
    conf: float | Sequence[float] = 0.001,
    iou: float = 0.6,
    max_det: int = 300,
    multi_label: bool = True,
    agnostic: bool = False,
    classes: Sequence[int] | None = None,
    rounded: bool = False,
) -> list[NMSResult]:
    """Greedy non-maximum suppression, image by image; ties in score keep the order of the rows.

    Args:
        decoded: (B, R, 5 + C), of `Head.decode`.
        conf: minimum objectness, and minimum objectness * class score; or one for each class.
        iou: a box is dropped if it overlaps a better one of its class by more than this.
        max_det: maximum detections per image.
        multi_label: a row may become a detection of every class above `conf`; else of its best
            class only.
        agnostic: suppress across classes.
        classes: only these classes.
        rounded: compare boxes as YOLOv5 does, in float32 and 7680 px apart by class, which rounds
            those of class 79 to 1/16 px.
    """
    results = []
    for rows in decoded:
        num_classes = rows.shape[1] - 5
        min_scores = rows.new_tensor(conf).expand(num_classes)
        boxes, scores, labels = _candidates(
            rows, min_scores, multi_label and num_classes > 1, classes
        )
        # Boxes of different groups are moved apart, so that they never overlap.
        groups = torch.zeros_like(labels) if agnostic else labels
        if rounded:
            apart = boxes + (groups * 7680.0).unsqueeze(1)
        else:
            distance = boxes.max().double() - boxes.min() + 1 if len(boxes) else 0.0
            apart = boxes.double() + (groups * distance).unsqueeze(1)
        keep = _suppress_best(apart, scores.to(apart.dtype), iou, max_det)
        results.append(NMSResult(boxes[keep], scores[keep], labels[keep]))
    return results


def _candidates(
    rows: Tensor, min_scores: Tensor, multi_label: bool, classes: Sequence[int] | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows (R, 5 + C) and minimum scores (C,) -> boxes xyxy, scores and classes of the best rows,
    best first."""
    rows = rows[rows[:, 4] > min_scores.min()]
    products = rows[:, 5:] * rows[:, 4:5]  # (r, C)
    if multi_label:
        row, label = (products > min_scores).nonzero(as_tuple=True)
    else:
        label = products.max(1).indices
        row = torch.arange(len(rows), device=rows.device)
        above = products[row, label] > min_scores[label]
        row = row[above]
        label = label[above]
    if classes is not None:
        included = torch.isin(label, torch.tensor(classes, device=label.device))
        row = row[included]
        label = label[included]
    scores = products[row, label]
    if len(scores) > MAX_CANDIDATES:  # sort no more than needed
        best = scores >= scores.topk(MAX_CANDIDATES, sorted=False).values.min()
        row = row[best]
        label = label[best]
        scores = scores[best]
    scores, order = scores.sort(descending=True, stable=True)
    scores = scores[:MAX_CANDIDATES]
    order = order[:MAX_CANDIDATES]
    return cxcywh_to_xyxy(rows[row[order], :4]), scores, label[order]


def _suppress_best(boxes: Tensor, scores: Tensor, iou: float, max_det: int) -> Tensor:
    """Indices of the first `max_det` survivors of candidates sorted best first.

    Only better survivors decide on a candidate. So it goes part by part, and ends with enough
    survivors.
    """
    keep = torch.arange(0, device=boxes.device)
    for part in torch.arange(len(boxes), device=boxes.device).split(2 * max_det):
        candidates = torch.cat((keep, part))
        keep = candidates[suppress(boxes[candidates], scores[candidates], iou)]
        if len(keep) >= max_det:
            break
    return keep[:max_det]


# torchvision's operator without importing torchvision, which takes seconds
_torchvision = find_spec("torchvision")
assert _torchvision is not None
for _library in Path(str(_torchvision.origin)).parent.glob("_C*.*"):
    torch.ops.load_library(_library)
suppress = torch.ops.torchvision.nms
