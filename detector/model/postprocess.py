"""From the network's raw maps to boxes: decode, then non-maximum suppression."""

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from boltbox.detector.model.box_coder import BoxCoder, YOLOv5BoxCoder
from boltbox.detector.model.boxes import cxcywh_to_xyxy

MAX_CANDIDATES = 30_000  # the best so many of an image take part, as in YOLOv5


class NMSResult(NamedTuple):
    """What `nms` keeps of one image, highest score first: tensors on the network's device, in its
    coordinates. A user gets `boltbox.detector.inference.detections.Detections`: arrays, in pixels
    of the image file, with the class names.

    boxes (n, 4) xyxy pixels of the network's input; scores (n,) in 0..1; classes (n,) int64.
    """

    boxes: Tensor
    scores: Tensor
    classes: Tensor


def boxes_in_pixels(
    raw: Sequence[Tensor], anchors: Tensor | None, strides: Sequence[int], box_coder: BoxCoder
) -> list[Tensor]:
    """Raw maps -> per level (B, A, H, W, 4) cx, cy, w, h in pixels of the network's input, float32.
    Arguments: see `decode`."""
    parts = []
    for level, (maps, stride) in enumerate(zip(raw, strides, strict=True)):
        a, h, w = maps.shape[1:4]
        numbers = maps[..., :4].float().contiguous()
        own = None if anchors is None else anchors[level].view(1, a, 1, 1, 2)
        boxes = box_coder.decode(numbers, own)  # (B, A, H, W, 4) grid units, relative to the cell
        rows, columns = torch.meshgrid(
            torch.arange(h, device=maps.device), torch.arange(w, device=maps.device), indexing="ij"
        )
        corner = torch.stack((columns, rows), -1)  # (H, W, 2)
        parts.append(torch.cat((boxes[..., :2] + corner, boxes[..., 2:]), -1) * stride)
    return parts


def decode(
    raw: Sequence[Tensor],
    anchors: Tensor | None,
    strides: Sequence[int],
    box_coder: BoxCoder | None = None,
) -> Tensor:
    """Raw maps -> boxes and scores, in float32.

    Args:
        raw: per level (B, A, H, W, 5 + C) logits.
        anchors: (levels, A, 2) in units of each level's stride; None: the head has none.
        strides: pixels per cell of each level.
        box_coder: what the first four numbers mean; default: YOLOv5's.

    Returns:
        (B, R, 5 + C): cx, cy, w, h in pixels of the network's input, objectness, class scores (not
            multiplied together);
        the R rows are ordered by level, anchor, row, column.
    """
    boxes = boxes_in_pixels(raw, anchors, strides, box_coder or YOLOv5BoxCoder())
    scores = [maps.float().sigmoid()[..., 4:] for maps in raw]
    return torch.cat(
        [torch.cat(pair, -1).flatten(1, 3) for pair in zip(boxes, scores, strict=True)], 1
    )


def candidates(
    raw: Sequence[Tensor],
    anchors: Tensor | None,
    strides: Sequence[int],
    box_coder: BoxCoder,
    conf: float,
) -> list[Tensor]:
    """The rows of `decode` with objectness above `conf`, per image (n, 5 + C), in its order. Only
    these are decoded: of thousands of rows a trained network leaves a few hundred. Arguments: see
    `decode`."""
    numbers, boxes, images = [], [], []
    for level, (maps, stride) in enumerate(zip(raw, strides, strict=True)):
        image, anchor, row, column = (maps[..., 4].float().sigmoid() > conf).nonzero(as_tuple=True)
        chosen = maps[image, anchor, row, column].float()  # (n, 5 + C)
        found = box_coder.decode(
            chosen[:, :4].contiguous(), None if anchors is None else anchors[level][anchor]
        )
        boxes.append(
            torch.cat((found[:, :2] + torch.stack((column, row), 1), found[:, 2:]), 1) * stride
        )
        numbers.append(chosen[:, 4:])
        images.append(image)
    image, order = torch.cat(images).sort(stable=True)
    rows = torch.cat((torch.cat(boxes), torch.cat(numbers).sigmoid()), 1)[order]
    return list(rows.split(image.bincount(minlength=len(raw[0])).tolist()))


def nms(
    decoded: Tensor | Sequence[Tensor],
    conf: float = 0.001,
    iou: float = 0.6,
    max_det: int = 300,
    multi_label: bool = True,
    agnostic: bool = False,
    classes: Sequence[int] | None = None,
    rounded: bool = False,
) -> list[NMSResult]:
    """Greedy non-maximum suppression, image by image; ties in score keep the order of the rows.

    Args:
        decoded: (B, R, 5 + C), as `decode` gives it, or per image (n, 5 + C), as `candidates` gives
            them.
        conf: least objectness, and least objectness * class score.
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
        boxes, scores, labels = _candidates(rows, conf, multi_label and rows.shape[1] > 6, classes)
        groups = torch.zeros_like(labels) if agnostic else labels
        if rounded:
            apart = boxes + (groups * 7680.0).unsqueeze(1)
        else:
            apart = boxes.double() + (groups * _extent(boxes)).unsqueeze(1)
        keep = _suppress_best(apart, scores.to(apart.dtype), iou, max_det)
        results.append(NMSResult(boxes[keep], scores[keep], labels[keep]))
    return results


def _candidates(
    rows: Tensor, conf: float, multi_label: bool, classes: Sequence[int] | None
) -> tuple[Tensor, Tensor, Tensor]:
    """(R, 5 + C) -> boxes xyxy, scores, classes of what may be kept, best first."""
    rows = rows[rows[:, 4] > conf]
    products = rows[:, 5:] * rows[:, 4:5]  # (r, C)
    if multi_label:
        row, label = (products > conf).nonzero(as_tuple=True)
        scores = products[row, label]
    else:
        scores, label = products.max(1)
        row = (scores > conf).nonzero(as_tuple=True)[0]
        scores, label = scores[row], label[row]
    if classes is not None:
        wanted = torch.isin(label, torch.tensor(classes, device=label.device))
        row, label, scores = row[wanted], label[wanted], scores[wanted]
    if len(scores) > MAX_CANDIDATES:  # sort no more than needed
        able = (scores >= scores.topk(MAX_CANDIDATES, sorted=False).values.min()).nonzero(
            as_tuple=True
        )[0]
        row, label, scores = row[able], label[able], scores[able]
    scores, order = scores.sort(descending=True, stable=True)
    scores, order = scores[:MAX_CANDIDATES], order[:MAX_CANDIDATES]
    return cxcywh_to_xyxy(rows[row[order], :4]), scores, label[order]


def _extent(boxes: Tensor) -> Tensor:
    """A distance in pixels, float64, that moves any of these boxes clear of all others."""
    return (
        boxes.max().double() - boxes.min() + 1
        if len(boxes)
        else boxes.new_zeros((), dtype=torch.double)
    )


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


def _load_operators() -> None:
    """torchvision's, without the rest of torchvision, whose import takes seconds."""
    spec = find_spec("torchvision")
    assert spec is not None
    assert spec.origin is not None
    libraries = [p for p in Path(spec.origin).parent.glob("_C*") if p.suffix in (".so", ".pyd")]
    for library in libraries:
        torch.ops.load_library(library)
    if not libraries:  # another layout than that of its releases
        import_module("torchvision")


_load_operators()
suppress = torch.ops.torchvision.nms
