"""torchvision's non-maximum suppression, without the rest of torchvision, whose import takes
seconds."""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor


def _load_operators() -> None:
    spec = find_spec("torchvision")
    assert spec is not None
    assert spec.origin is not None
    libraries = [p for p in Path(spec.origin).parent.glob("_C*") if p.suffix in (".so", ".pyd")]
    for library in libraries:
        torch.ops.load_library(library)
    if not libraries:  # another layout than that of its releases
        import_module("torchvision")


_load_operators()


def suppress(boxes: Tensor, scores: Tensor, iou: float) -> Tensor:
    """Indices, best first, of the boxes (n, 4) xyxy that no better one overlaps by more than
    `iou`."""
    return torch.ops.torchvision.nms(boxes, scores, iou)
