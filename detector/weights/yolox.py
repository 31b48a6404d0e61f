"""YOLOX's published weights (Ge et al. 2021, arXiv 2107.08430; yolox_s.pth and so on) -> backbone
and neck of our network.

YOLOX's head is decoupled and has no anchors, so ours starts fresh; `examples/yolox_head.py` is a
head like YOLOX's, and loads its weights.

The stem: YOLOX takes the four pixels of each 2 x 2 block as channels (Focus) and convolves these
3x3; here that is one 6x6 convolution of stride 2 on the image. YOLOX feeds BGR images of 0..255,
since its release 0.1.1rc0; we feed RGB images of 0..1. The files of 0.1.0, which YOLOX calls
legacy, were trained on RGB images normalised by mean and standard deviation. A file does not say
which it is: one of 0.1.0 loads in the same way, and its stem then sees images that it was not
trained on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from boltbox.detector.model.network import empty_network
from boltbox.detector.system.torch_file import as_input_error, plain_tensor, shapes

LICENCE = "Apache-2.0, if published by YOLOX"  # a file does not say who trained it

# YOLOX's name of each part -> ours. Within a part `conv1` is `cv1` here.
PARTS = {
    "backbone.backbone.stem.conv": "backbone.stem",
    "backbone.backbone.dark2.0": "backbone.down.2",
    "backbone.backbone.dark2.1": "backbone.c3.2",
    "backbone.backbone.dark3.0": "backbone.down.3",
    "backbone.backbone.dark3.1": "backbone.c3.3",
    "backbone.backbone.dark4.0": "backbone.down.4",
    "backbone.backbone.dark4.1": "backbone.c3.4",
    "backbone.backbone.dark5.0": "backbone.down.5",
    "backbone.backbone.dark5.1": "backbone.sppf",
    "backbone.backbone.dark5.2": "backbone.c3.5",
    "backbone.lateral_conv0": "neck.lateral.4",
    "backbone.C3_p4": "neck.top_down.4",
    "backbone.reduce_conv1": "neck.lateral.3",
    "backbone.C3_p3": "neck.top_down.3",
    "backbone.bu_conv2": "neck.down.4",
    "backbone.C3_n3": "neck.bottom_up.4",
    "backbone.bu_conv1": "neck.down.5",
    "backbone.C3_n4": "neck.bottom_up.5",
}
SIZES: list[dict[str, Any]] = [
    {"size": "n"},
    {"size": "s"},
    {"size": "m"},
    {"size": "l"},
    {"size": "x"},
    {"depth_multiple": 0.33, "width_multiple": 0.375},  # YOLOX-Tiny
]
STEM = "backbone.backbone.stem.conv.conv.weight"


def yolox_tensors(path: str | Path, content: dict[str, Any]) -> dict[str, Tensor] | None:
    """The tensors of a YOLOX file by the names of our network, floats in float32; the head's by
    YOLOX's names.

    Args:
        path: The file.
        content: What it holds.

    Returns:
        None: It is no YOLOX file.

    Raises:
        InputError: Something in it is no tensor, or the stem is of another kind.
    """
    model = content.get("model")
    if not isinstance(model, dict) or STEM not in model:
        return None
    with as_input_error(path, "a file of YOLOX's s, m, l, x or tiny"):
        tensors = {str(name): plain_tensor(tensor) for name, tensor in model.items()}
        tensors[STEM] = stem_kernel(tensors[STEM])
        return {our_name(name): tensor for name, tensor in tensors.items()}


def our_name(name: str) -> str:
    """
    >>> our_name("backbone.backbone.dark3.1.m.0.conv2.bn.weight")
    'backbone.c3.3.m.0.cv2.bn.weight'
    """
    for part, ours in PARTS.items():
        if name.startswith(f"{part}."):
            return ours + re.sub(r"\.conv(\d)", r".cv\1", name.removeprefix(part))
    return name


def stem_kernel(focus: Tensor) -> Tensor:
    """Focus' kernel (C, 12, 3, 3) for BGR images of 0..255 -> (C, 3, 6, 6) for RGB images of 0..1,
    with padding 2.

    The 12 channels are the colours of the top left pixel of each block, then of the bottom left,
    top right, bottom right one.
    """
    # (C, column in the block, row in the block, colour, block row, block column)
    blocks = focus.unflatten(1, (2, 2, 3))
    return 255 * blocks.permute(0, 3, 4, 2, 5, 1).flatten(4, 5).flatten(2, 3).flip(1)


def options_for(tensors: dict[str, Tensor]) -> dict[str, Any]:
    """The options of the network with these tensors, by our names; only its backbone, if they are
    of none of YOLOX's sizes."""
    has_depthwise = any(".dconv." in name for name in tensors)
    backbone = "yolox_depthwise" if has_depthwise else "yolox"
    for size in SIZES:
        options = {"backbone": backbone} | size
        if _body(empty_network(1, options).state_dict()) == _body(tensors):
            return options
    return {"backbone": backbone}


def _body(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """Shapes by name, without the head's."""
    return {name: shape for name, shape in shapes(tensors).items() if not name.startswith("head.")}
