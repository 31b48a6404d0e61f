"""Published YOLOv5 weights -> our network.

Those files are pickles of whole Python objects. Every class of theirs becomes a stand-in
(`load_restricted`): nothing in a file is executed, and a file that names anything else is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from boltbox.detector.checkpoint.restricted import StandIn, load_restricted
from boltbox.detector.checkpoint.validators import (
    InvalidContent,
    anything,
    check_tensor,
    instance_of,
    integer,
    list_of,
    mapping_of,
)
from boltbox.detector.checkpoint.weights import copy_weights
from boltbox.detector.model.network import YOLOv5
from boltbox.detector.model.sizes import CHANNELS, SIZES, scaled_channels
from boltbox.detector.system.errors import InputError

# Everything that a detection checkpoint may name besides tensors and plain types.
ALLOWED = [
    *(f"models.yolo.{name}" for name in ("DetectionModel", "Model", "Detect")),
    *(
        f"models.common.{name}"
        for name in ("Conv", "DWConv", "Bottleneck", "C3", "SPP", "SPPF", "Concat", "Focus")
    ),
    *(
        f"torch.nn.modules.{name}"
        for name in (
            "conv.Conv2d",
            "batchnorm.BatchNorm2d",
            "activation.SiLU",
            "activation.LeakyReLU",
            "activation.Hardswish",
            "activation.ReLU",
            "pooling.MaxPool2d",
            "upsampling.Upsample",
            "container.Sequential",
            "container.ModuleList",
            "linear.Identity",
        )
    ),
    *(
        f"numpy.{core}.multiarray.{name}"
        for core in ("core", "_core")
        for name in ("_reconstruct", "scalar")
    ),
    "numpy.ndarray",
    "numpy.dtype",
    *(f"pathlib.{name}" for name in ("Path", "PosixPath", "WindowsPath", "PurePosixPath")),
    *(f"pathlib._local.{name}" for name in ("Path", "PosixPath", "WindowsPath")),
    "__builtin__.set",
    "builtins.set",
]


@dataclass
class Weights:
    """state: tensors by YOLOv5's names ("model.0.conv.weight"), floats in float32 · names: class
    names · multiples: (depth, width), None where the file does not say."""

    state: dict[str, Tensor]
    names: list[str]
    multiples: tuple[float, float] | None = None


def read_yolov5(path: str | Path) -> Weights:
    """The averaged weights of a YOLOv5 checkpoint, or its plain ones, as published (full or
    stripped).

    Raises:
        InputError: no such file, not a YOLOv5 detection checkpoint, or one that holds something
            outside ALLOWED.
    """
    content = load_restricted(path, ALLOWED)
    model = next((content[k] for k in ("ema", "model") if content.get(k) is not None), None)
    if not isinstance(model, StandIn) or not isinstance(model.state, dict):
        raise InputError(f"{path}: this is not a YOLOv5 checkpoint (it has no `model`)")
    try:
        state = {k: v.float() if v.is_floating_point() else v for k, v in _tensors(model)}
        names = _names(model.state)
    except InvalidContent as e:
        raise InputError(f"{path}: this is not a YOLOv5 checkpoint ({e})") from None
    config = model.state.get("yaml")
    told = [
        config.get(f"{side}_multiple") if isinstance(config, dict) else None
        for side in ("depth", "width")
    ]
    multiples = [
        float(v)
        for v in told
        if isinstance(v, int | float) and not isinstance(v, bool) and 0 < v <= 16
    ]
    return Weights(state, names, (multiples[0], multiples[1]) if len(multiples) == 2 else None)


def _names(state: dict[str, Any]) -> list[str]:
    """Class names: a list, or a map from 0 on; without them numbers."""
    names = state.get("names")
    if not names:
        integer(0, 10_000)(state.get("nc", 0), "nc")
        return [str(i) for i in range(state.get("nc", 0))]
    if isinstance(names, dict):
        mapping_of(anything, int)(names, "names")
        names = [names[k] for k in sorted(names)]
    list_of(
        lambda name, where: (
            integer()(name, where) if isinstance(name, int) else instance_of(str)(name, where)
        )
    )(names, "names")
    if any("\ud800" <= letter <= "\udfff" for name in names for letter in str(name)):
        raise InvalidContent("names holds half characters, which cannot be written")
    return [str(name) for name in names]


def _tensors(module: StandIn, prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Tensor]]:
    """(name, tensor) of a pickled module's parameters and buffers, as its state_dict would give
    them."""
    state = module.state if isinstance(module.state, dict) else {}
    for group in ("_parameters", "_buffers"):
        mapping_of(anything)(state.get(group) or {}, f"{prefix}{group}")
        for name, tensor in (state.get(group) or {}).items():
            if isinstance(tensor, Tensor):
                check_tensor(tensor, prefix + name)
                yield prefix + name, tensor.detach()
    children = state.get("_modules") or {}
    mapping_of(anything)(children, f"{prefix}_modules")
    if children and depth > 20:
        raise InvalidContent("its modules are nested too deeply")
    for name, child in children.items():
        if isinstance(child, StandIn):
            yield from _tensors(child, f"{prefix}{name}.", depth + 1)


def key_map(network: YOLOv5) -> dict[str, str]:
    """YOLOv5's name of every tensor of this network -> its name here.

    `model.<layer>.` becomes the module of `network.layer_names()`; within a layer the names are the
    same, but for the head: `m.<level>` is `convs.<level>` here, and its `anchors` belong to the
    network.
    """
    layers = {name: i for i, name in network.layer_names().items()}
    head = layers["head"]
    names = {}
    for ours in network.state_dict():
        if ours == "anchors":
            names[f"model.{head}.anchors"] = ours
            continue
        layer = next(name for name in layers if ours.startswith(name + "."))
        rest = ours.removeprefix(layer + ".")
        names[
            f"model.{layers[layer]}.{rest.replace('convs.', 'm.') if layer == 'head' else rest}"
        ] = ours
    return names


def by_our_names(network: YOLOv5, weights: Weights) -> dict[str, Tensor]:
    """The tensors of a file by the names of this network, as far as it has them."""
    names = key_map(network)
    # of the anchors, before release 6
    copies = {name for name in weights.state if name.endswith(".anchor_grid")}
    return {
        names.get(name, name): tensor
        for name, tensor in weights.state.items()
        if name not in copies
    }


def load_yolov5(
    network: YOLOv5,
    weights: Weights,
    source: str | Path,
    keep_anchors: bool = False,
    reuse_head: bool = False,
) -> str:
    """Copy published weights into the network.

    Args, returns and raises: see `copy_weights`.
    """
    given = by_our_names(network, weights)
    return copy_weights(
        network, given, len(weights.names), source, _size_hint(weights), keep_anchors, reuse_head
    )


def _size_hint(weights: Weights) -> str:
    levels = len(_anchors(weights))
    rows = ((name, row) for name, row in SIZES.items() if len(row.levels) == levels)
    sizes = [name for name, row in rows if (row.depth, row.width) == weights.multiples]
    if reason := unscaled_layers(weights):
        return f"they are of size {sizes[0]}, but {reason}" if sizes else reason
    return (
        f"they are of size {sizes[0]}: use --model.network.size {sizes[0]}"
        if sizes
        else "they are of another size or topology"
    )


def _anchors(weights: Weights) -> Tensor:
    """(levels, A, 2) in units of the strides, empty if there are none."""
    anchors = next((t for name, t in weights.state.items() if name.endswith(".anchors")), None)
    return anchors if anchors is not None and anchors.ndim == 3 else torch.zeros(0, 0, 2)


def unscaled_layers(weights: Weights) -> str:
    """Why no network of ours can hold these weights, if that is because YOLOv5 left layers
    unscaled: those whose nominal number of channels is that of the head's output. Otherwise an
    empty string."""
    levels, per_level, _ = _anchors(weights).shape
    classes = len(weights.names)
    outputs, table = per_level * (5 + classes), CHANNELS.get(max(5, levels + 2), ())
    if weights.multiples is None or outputs not in table:
        return ""
    ours = scaled_channels(outputs, weights.multiples[1])
    # the stem is 0, then every other layer of the backbone halves the map
    layer = max(2 * table.index(outputs) - 1, 0)
    theirs = weights.state.get(f"model.{layer}.conv.weight")
    if ours == outputs or theirs is None or theirs.shape[:1] != (outputs,):
        return ""
    return (
        f"YOLOv5 does not scale layers that are as wide as the head's output, here {per_level}"
        f" anchors x (5 + {classes} classes) = {outputs} channels, and every network here scales"
        f" them, to {ours}: the file can be used in YOLOv5 alone, but a fit can start from weights"
        " of that size for another number of classes, such as the published ones"
    )
