"""Published YOLOv5 weights -> our network.

Those files are pickles of whole Python objects. They are read by torch's restricted unpickler, in which every class of theirs
is a stand-in that only keeps what the file says of it: nothing in a file is executed, and a file that names anything else is
refused.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from detector.checkpoint.content import DETECTOR
from detector.checkpoint.validators import Unlike, anything, check_tensor, each, integer, items, typed
from detector.model.network import YOLOv5
from detector.model.sizes import CHANNELS, SIZES, scaled_channels
from detector.system.errors import InputError
from detector.system.text_file import is_file


class StandIn:
    """Any object of a YOLOv5 file: what it was made with, and its state."""

    state: Any = None

    def __init__(self, *args: Any) -> None:
        self.args = args

    def __setstate__(self, state: Any) -> None:
        self.state = state


# Everything that a detection checkpoint may name besides tensors and plain types.
ALLOWED = [
    *(f"models.yolo.{name}" for name in ("DetectionModel", "Model", "Detect")),
    *(f"models.common.{name}" for name in ("Conv", "DWConv", "Bottleneck", "C3", "SPP", "SPPF", "Concat", "Focus")),
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
    *(f"numpy.{core}.multiarray.{name}" for core in ("core", "_core") for name in ("_reconstruct", "scalar")),
    "numpy.ndarray",
    "numpy.dtype",
    *(f"pathlib.{name}" for name in ("Path", "PosixPath", "WindowsPath", "PurePosixPath")),
    *(f"pathlib._local.{name}" for name in ("Path", "PosixPath", "WindowsPath")),
    "__builtin__.set",
    "builtins.set",
]


@dataclass
class Weights:
    """state: tensors by YOLOv5's names ("model.0.conv.weight"), floats in float32 · names: class names ·
    multiples: (depth, width), None where the file does not say."""

    state: dict[str, Tensor]
    names: list[str]
    multiples: tuple[float, float] | None = None


def load_weights(network: YOLOv5, path: str | Path, keep_anchors: bool = False) -> str:
    """Start a network from a YOLOv5 file (.pt), or from a checkpoint of ours (.ckpt), its moving average first.

    Args, returns and raises: see `load_yolov5`.
    """
    weights = read_checkpoint(network, path) if Path(path).suffix == ".ckpt" else read_yolov5(path)
    return load_yolov5(network, weights, path, keep_anchors)


def read_checkpoint(network: YOLOv5, path: str | Path) -> Weights:
    """A checkpoint of ours, under YOLOv5's names as far as this network has them."""
    content = load_restricted(path, [])
    try:
        DETECTOR(content, "")
    except Unlike as e:
        raise InputError(f"{path}: this is not a checkpoint of a detector ({e})") from None
    tensors, options = content["state_dict"], content["hyper_parameters"]
    prefix = "ema." if any(name.startswith("ema.") for name in tensors) else "network."
    theirs = {ours: name for name, ours in key_map(network).items()}
    state = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    return Weights({theirs.get(name, name): t for name, t in state.items()}, options["names"])


def read_yolov5(path: str | Path) -> Weights:
    """The averaged weights of a YOLOv5 checkpoint, or its plain ones, as published (full or stripped).

    Raises:
        InputError: no such file, not a YOLOv5 detection checkpoint, or one that holds something outside ALLOWED.
    """
    content = load_restricted(path, ALLOWED)
    model = next((content[k] for k in ("ema", "model") if content.get(k) is not None), None)
    if not isinstance(model, StandIn) or not isinstance(model.state, dict):
        raise InputError(f"{path}: this is not a YOLOv5 checkpoint (it has no `model`)")
    try:
        state = {k: v.float() if v.is_floating_point() else v for k, v in _tensors(model)}
        names = _names(model.state)
    except Unlike as e:
        raise InputError(f"{path}: this is not a YOLOv5 checkpoint ({e})") from None
    config = model.state.get("yaml")
    told = [config.get(f"{side}_multiple") if isinstance(config, dict) else None for side in ("depth", "width")]
    multiples = [float(v) for v in told if isinstance(v, int | float) and not isinstance(v, bool) and 0 < v <= 16]
    return Weights(state, names, (multiples[0], multiples[1]) if len(multiples) == 2 else None)


def _names(state: dict[str, Any]) -> list[str]:
    """Class names: a list, or a map from 0 on; without them numbers."""
    names = state.get("names")
    if not names:
        integer(0, 10_000)(state.get("nc", 0), "nc")
        return [str(i) for i in range(state.get("nc", 0))]
    if isinstance(names, dict):
        each(anything, int)(names, "names")
        names = [names[k] for k in sorted(names)]
    items(lambda name, where: integer()(name, where) if isinstance(name, int) else typed(str)(name, where))(names, "names")
    if any("\ud800" <= letter <= "\udfff" for name in names for letter in str(name)):
        raise Unlike("names holds half characters, which cannot be written")
    return [str(name) for name in names]


def load_restricted(path: str | Path, allowed: list[str]) -> dict[str, Any]:
    """`torch.load` of tensors, plain types, stand-ins for the allowed globals; anything else is an InputError that names it."""
    if not is_file(path):
        raise InputError(f"{path}: no such weights file")
    try:
        with torch.serialization.safe_globals([(StandIn, name) for name in allowed]):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as e:
        name = re.search(r"GLOBAL ([\w.]+)", str(e))
        if name:
            raise InputError(f"{path}: refused, because it holds '{name[1]}', which weights do not need") from None
        raise InputError(f"{path}: not a checkpoint that torch can read") from None
    except Exception as e:  # whatever torch stumbles over in a damaged file
        raise InputError(f"{path}: not a readable checkpoint, perhaps damaged or cut short ({type(e).__name__})") from e
    if not isinstance(content, dict):
        raise InputError(f"{path}: not a checkpoint (it holds a {type(content).__name__})")
    return content


def _tensors(module: StandIn, prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Tensor]]:
    """(name, tensor) of a pickled module's parameters and buffers, as its state_dict would give them."""
    state = module.state if isinstance(module.state, dict) else {}
    for group in ("_parameters", "_buffers"):
        each(anything)(state.get(group) or {}, f"{prefix}{group}")
        for name, tensor in (state.get(group) or {}).items():
            if isinstance(tensor, Tensor):
                check_tensor(tensor, prefix + name)
                yield prefix + name, tensor.detach()
    children = state.get("_modules") or {}
    each(anything)(children, f"{prefix}_modules")
    if children and depth > 20:
        raise Unlike("its modules are nested too deeply")
    for name, child in children.items():
        if isinstance(child, StandIn):
            yield from _tensors(child, f"{prefix}{name}.", depth + 1)


def key_map(network: YOLOv5) -> dict[str, str]:
    """YOLOv5's name of every tensor of this network -> its name here.

    `model.<layer>.` becomes the module of `network.layer_names()`; within a layer the names are the same, but for the head:
    `m.<level>` is `convs.<level>` here, and its `anchors` belong to the network.
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
        names[f"model.{layers[layer]}.{rest.replace('convs.', 'm.') if layer == 'head' else rest}"] = ours
    return names


def load_yolov5(network: YOLOv5, weights: Weights, source: str | Path, keep_anchors: bool = False) -> str:
    """Copy published weights into the network; every tensor must find its place, except the head's if the number of classes
    differs.

    Args:
        source: the file, for messages.
        keep_anchors: leave the file's anchors out, because the network has been given its own.

    Returns:
        One line that says what was taken and what was not.

    Raises:
        InputError: the file is of another size or topology; it says which size to ask for.
    """
    names = key_map(network)
    known_extra = {name for name in weights.state if name.endswith(".anchor_grid")}  # a copy of the anchors, before release 6
    fresh = network.state_dict()
    given = {names.get(name, name): tensor for name, tensor in weights.state.items() if name not in known_extra}
    left_out = {"anchors"} if keep_anchors else set()
    theirs = given.get("anchors", network.anchors)
    there = len(weights.names), theirs.shape[1] if theirs is not None and theirs.ndim == 3 else 0
    here = network.num_classes, 0 if network.anchors is None else network.anchors.shape[1]
    if network.anchor_head() is not None:
        another_kind = any(name.startswith("head.") for name in given.keys() - fresh.keys())
    else:
        heads = {name: tensor.shape for name, tensor in fresh.items() if name.startswith("head.")}
        another_kind = any(name not in given or given[name].shape != shape for name, shape in heads.items())
    if there != here or another_kind:
        of_head = ("head.", f"model.{max(network.layer_names())}.")
        left_out |= {name for name in (*fresh, *given) if name.startswith(of_head)}
    if there[1] != here[1] or another_kind:
        left_out.add("anchors")
    given = {name: tensor for name, tensor in given.items() if name not in left_out}
    wrong = set(given) ^ (set(fresh) - left_out) | {
        name for name in set(given) & set(fresh) if given[name].shape != fresh[name].shape
    }
    if wrong:
        raise InputError(
            f"{source}: these weights do not fit the network ({len(wrong)} tensors, like {min(wrong)}); {_size_hint(weights)}"
        )
    network.load_state_dict({**fresh, **given})
    taken = f"{source}: took {len(given)} of {len(fresh)} tensors"
    if keep_anchors:
        taken += "; not the anchors, which model.anchors gives"
    if another_kind:
        taken += "; not the head, which is of another kind and starts fresh"
    elif there != here:
        unlike = [
            f"{a} {what} there, {b} here"
            for a, b, what in zip(there, here, ("classes", "anchors a level"), strict=True)
            if a != b
        ]
        taken += f"; not the head ({'; '.join(unlike)}), which starts fresh"
    return taken


def _size_hint(weights: Weights) -> str:
    levels = len(_anchors(weights))
    rows = ((name, row) for name, row in SIZES.items() if len(row.levels) == levels)
    sizes = [name for name, row in rows if (row.depth, row.width) == weights.multiples]
    if reason := unscaled_layers(weights):
        return f"they are of size {sizes[0]}, but {reason}" if sizes else reason
    return f"they are of size {sizes[0]}: use --model.size {sizes[0]}" if sizes else "they are of another size or topology"


def _anchors(weights: Weights) -> Tensor:
    """(levels, A, 2) in units of the strides, empty if there are none."""
    anchors = next((t for name, t in weights.state.items() if name.endswith(".anchors")), None)
    return anchors if anchors is not None and anchors.ndim == 3 else torch.zeros(0, 0, 2)


def unscaled_layers(weights: Weights) -> str:
    """Why no network of ours can hold these weights, if that is because YOLOv5 left layers unscaled: those whose nominal number
    of channels is that of the head's output. Otherwise an empty string."""
    levels, per_level, _ = _anchors(weights).shape
    classes = len(weights.names)
    outputs, table = per_level * (5 + classes), CHANNELS.get(max(5, levels + 2), ())
    if weights.multiples is None or outputs not in table:
        return ""
    ours = scaled_channels(outputs, weights.multiples[1])
    layer = max(2 * table.index(outputs) - 1, 0)  # the stem is 0, then every other layer of the backbone halves the map
    theirs = weights.state.get(f"model.{layer}.conv.weight")
    if ours == outputs or theirs is None or theirs.shape[:1] != (outputs,):
        return ""
    return (
        f"YOLOv5 does not scale layers that are as wide as the head's output, here {per_level} anchors x "
        f"(5 + {classes} classes) = {outputs} channels, and every network here scales them, to {ours}: the file can be used in "
        "YOLOv5 alone, but a fit can start from weights of that size for another number of classes, such as the published ones"
    )
