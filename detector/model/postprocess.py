"""Non-maximum suppression."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from boltbox.detector.model.boxes import cxcywh_to_xyxy

MAX_CANDIDATES = 30_000  # of an image the best ones take part, as in YOLOv5


class NMSResult(NamedTuple):
    """What `nms` keeps of one image, highest score first: tensors on the network's device, in its
    coordinates. A user gets `boltbox.detector.inference.detections.Detections`: arrays, in pixels
    of the image file, with the class names.

    boxes (n, 4) xyxy pixels of the network's input; scores (n,) in 0..1; classes (n,) int64.
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
        decoded: (B, R, 5 + C), as `Head.decode` gives it.
        conf: least objectness, and least objectness * class score; or of each class one.
        iou: a box is dropped if it overlaps a better one of its class by more than this.
        max_det: most detections an image.
        multi_label: a row may become a detection of every class above `conf`; else of its best
            class only.
        agnostic: suppress across classes.
        classes: only these classes.
        rounded: compare boxes as YOLOv5 does, in float32 and 7680 px apart by class, which rounds
            those of class 79 to 1/16 px.
    """
    results = []
    for rows in decoded:
        least = rows.new_tensor(conf).expand(rows.shape[1] - 5)
        boxes, scores, labels = _candidates(rows, least, multi_label and rows.shape[1] > 6, classes)
        groups = torch.zeros_like(labels) if agnostic else labels
        if rounded:
            apart = boxes + (groups * 7680.0).unsqueeze(1)
        else:
            # a distance that moves any of these boxes clear of all others; 0 if there is none
            clear = boxes.max().double() - boxes.min() + 1 if len(boxes) else 0.0
            apart = boxes.double() + (groups * clear).unsqueeze(1)
        keep = _suppress_best(apart, scores.to(apart.dtype), iou, max_det)
        results.append(NMSResult(boxes[keep], scores[keep], labels[keep]))
    return results


def _candidates(
    rows: Tensor, least: Tensor, multi_label: bool, classes: Sequence[int] | None
) -> tuple[Tensor, Tensor, Tensor]:
    """(R, 5 + C) -> boxes xyxy, scores, classes of what may be kept, best first. least (C,): of
    each class."""
    rows = rows[rows[:, 4] > least.min()]
    products = rows[:, 5:] * rows[:, 4:5]  # (r, C)
    if multi_label:
        row, label = (products > least).nonzero(as_tuple=True)
        scores = products[row, label]
    else:
        scores, label = products.max(1)
        row = (scores > least[label]).nonzero(as_tuple=True)[0]
        scores, label = scores[row], label[row]
    if classes is not None:
        wanted = torch.isin(label, torch.tensor(classes, device=label.device))
        row, label, scores = row[wanted], label[wanted], scores[wanted]
    if len(scores) > MAX_CANDIDATES:  # sort no more than needed
        able = scores >= scores.topk(MAX_CANDIDATES, sorted=False).values.min()
        row, label, scores = row[able], label[able], scores[able]
    scores, order = scores.sort(descending=True, stable=True)
    scores, order = scores[:MAX_CANDIDATES], order[:MAX_CANDIDATES]
    return cxcywh_to_xyxy(rows[row[order], :4]), scores, label[order]


def _suppress_best(boxes: Tensor, scores: Tensor, iou: float, max_det: int) -> Tensor:
    """Indices of the first `max_det` survivors of the greedy pass over candidates sorted best
    first.

    Whether a candidate survives depends only on better ones that do. So it goes part by part, and
    ends with enough survivors.
    """
    keep = torch.arange(0, device=boxes.device)
    for part in torch.arange(len(boxes), device=boxes.device).split(2 * max_det):
        together = torch.cat((keep, part))
        keep = together[suppress(boxes[together], scores[together], iou)]
        if len(keep) >= max_det:
            break
    return keep[:max_det]


# torchvision's operator without the rest of torchvision, whose import takes seconds
_torchvision = find_spec("torchvision")
assert _torchvision is not None
for _library in Path(str(_torchvision.origin)).parent.glob("_C*.*"):
    torch.ops.load_library(_library)
suppress = torch.ops.torchvision.nms
