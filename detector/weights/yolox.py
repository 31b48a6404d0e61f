"""YOLOX's published weights (Ge et al. 2021, arXiv 2107.08430; yolox_s.pth and so on) -> backbone
and neck of our network.

Its head is decoupled and without anchors, so that ours starts fresh.

The stem: YOLOX takes the four pixels of each 2 x 2 block as channels (Focus) and convolves these
3x3; here that is one 6x6 convolution of stride 2 on the image. YOLOX feeds BGR images of 0..255,
from its release 0.1.1rc0 on; we feed RGB images of 0..1. The files of 0.1.0, which YOLOX calls
legacy, took RGB images normalised by mean and standard deviation. A file does not say which it is:
one of 0.1.0 is read in the same way, and its stem then sees images that it was not trained on.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from torch import Tensor

from boltbox.detector.model.network import SIZES
from boltbox.detector.model.network_options import empty_network
from boltbox.detector.system.errors import InputError
from boltbox.detector.weights.torch_file import (
    load_torch_file,
    plain_tensor,
    refused_unless_valid,
    shapes,
)

LICENCE = "Apache-2.0, if published by YOLOX"  # a file does not say who trained it
# What a file may name besides tensors and plain types: numbers of numpy, such as the best AP.
ALLOWED = [*(f"numpy.{core}.multiarray.scalar" for core in ("core", "_core")), "numpy.dtype"]

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
TINY = {"depth_multiple": 0.33, "width_multiple": 0.375}  # of a network like YOLOX-Tiny
OWN = ("head.", "anchors")  # tensors that start fresh
STEM = "backbone.backbone.stem.conv.conv.weight"
HEAD = "head.of_yolox"  # a name that no head here has, in place of all those of YOLOX's head
LEAF = r"conv\.weight|bn\.(?:weight|bias|running_mean|running_var|num_batches_tracked)"
NAME = re.compile(
    rf"(?P<part>.+?)\.(?P<block>m\.\d{{1,4}}\.)?(?:conv(?P<number>[123])\.)?(?P<leaf>{LEAF})",
    re.ASCII,
)


def read_yolox(path: str | Path) -> dict[str, Tensor] | None:
    """The tensors of a YOLOX file by YOLOX's names, floats in float32.

    Returns:
        None: it is none, or cannot be read; `read_yolov5` says what is wrong with it.

    Raises:
        InputError: it is one, but something in it is no tensor.
    """
    try:
        content = load_torch_file(path, ALLOWED)
    except InputError:  # of YOLOv5's classes none is among ALLOWED
        return None
    model = content.get("model")
    if not isinstance(model, dict) or STEM not in model:
        return None
    with refused_unless_valid(path, "a file of YOLOX"):
        return {str(name): plain_tensor(tensor) for name, tensor in model.items()}


def refuse_yolox(path: str | Path) -> None:
    """
    Raises:
        InputError: it is a file of YOLOX, where a whole detector is needed.
    """
    if read_yolox(path) is not None:
        raise InputError(
            f"{path}: YOLOX's weights hold no class names, and their head is not used here: train a"
            f" detector from them with fit --model.start.weights {path} --model.network.backbone"
            " yolox, and use"
            " its checkpoint"
        )


def our_name(name: str) -> str | None:
    """
    >>> our_name("backbone.backbone.dark3.1.m.0.conv2.bn.weight"), our_name("backbone.bu_conv1.conv.weight")
    ('backbone.c3.3.m.0.cv2.bn.weight', 'neck.down.5.conv.weight')
    >>> our_name("head.stems.0.conv.weight")
    """  # noqa: E501
    found = NAME.fullmatch(name)
    if not found or found["part"] not in PARTS:
        return None
    layer = f"cv{found['number']}." if found["number"] else ""
    return f"{PARTS[found['part']]}.{found['block'] or ''}{layer}{found['leaf']}"


def stem_kernel(focus: Tensor) -> Tensor:
    """Focus' kernel (C, 12, 3, 3) for BGR images of 0..255 -> (C, 3, 6, 6) for RGB images of 0..1,
    with padding 2.

    The 12 channels are the colours of the top left pixel of each block, then of the bottom left,
    top right, bottom right one.
    """
    # (C, column in the block, row in the block, colour, block row, block column)
    blocks = focus.unflatten(1, (2, 2, 3))
    return 255 * blocks.permute(0, 3, 4, 2, 5, 1).flatten(4, 5).flatten(2, 3).flip(1)


def by_our_names(tensors: dict[str, Tensor], source: str | Path) -> dict[str, Tensor]:
    """Backbone and neck by the names of our network.

    Raises:
        InputError: their convolutions are depthwise (YOLOX-Nano), or it is another topology
            (YOLOX-Darknet53).
    """
    tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith("head.")}
    names = {name: our_name(name) for name in tensors}
    if any(".dconv." in name or ".pconv." in name for name in names):
        raise InputError(
            f"{source}: these weights are of depthwise convolutions, like YOLOX-Nano's, which no"
            " network here has; start from yolox_tiny.pth, with --model.network.backbone yolox"
            " --model.network.depth_multiple 0.33 --model.network.width_multiple 0.375"
        )
    unknown = [name for name, ours in names.items() if ours is None]
    if STEM not in tensors or tensors[STEM].shape[1:] != (12, 3, 3):
        unknown.append(STEM)
    if unknown:
        raise InputError(
            f"{source}: these weights are of another topology than YOLOX's s, m, l, x and tiny"
            f" ({len(unknown)} tensors, like {min(unknown)!r}); start from one of those"
        )
    return {
        ours: stem_kernel(tensors[name]) if name == STEM else tensors[name]
        for name, ours in names.items()
        if ours
    }


def options_for(given: dict[str, Tensor]) -> dict[str, Any]:
    """The options of the network that these tensors, by our names, are of, as far as they are of a
    size of YOLOX's."""
    sizes: list[dict[str, Any]] = [
        {"size": name} for name, row in SIZES.items() if row.levels == (3, 4, 5)
    ]
    for size in (*sizes, TINY):
        options = {"backbone": "yolox", **size}
        tensors = empty_network(1, options).state_dict().items()
        if shapes(given) == shapes({n: t for n, t in tensors if not n.startswith(OWN)}):
            return options
    return {"backbone": "yolox"}
