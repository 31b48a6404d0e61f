"""Published YOLOv5 weights -> our network.

Those files are pickles of whole Python objects. Each class that they name becomes a stand-in
(`load_torch_file`): nothing in a file is executed, and a file that names another class is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from boltbox.detector.model.network import YOLOv5
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.torch_file import StandIn, as_input_error, plain_tensor, text_names

MOST_CLASSES = 10_000
MULTIPLES = ("depth_multiple", "width_multiple")
ACTIVATIONS = {  # ours by YOLOv5's text
    "nn.SiLU()": "silu",
    "nn.ReLU()": "relu",
    "nn.LeakyReLU(0.1)": "leaky_relu",
    "nn.Hardswish()": "hardswish",
}
# Everything that a detection checkpoint may name besides tensors and plain types.
ALLOWED = [
    "models.yolo.DetectionModel",
    "models.yolo.Model",
    "models.yolo.Detect",
    "models.common.Conv",
    "models.common.DWConv",
    "models.common.Bottleneck",
    "models.common.C3",
    "models.common.SPP",
    "models.common.SPPF",
    "models.common.Concat",
    "models.common.Focus",
    "torch.nn.modules.conv.Conv2d",
    "torch.nn.modules.batchnorm.BatchNorm2d",
    "torch.nn.modules.activation.SiLU",
    "torch.nn.modules.activation.LeakyReLU",
    "torch.nn.modules.activation.Hardswish",
    "torch.nn.modules.activation.ReLU",
    "torch.nn.modules.pooling.MaxPool2d",
    "torch.nn.modules.upsampling.Upsample",
    "torch.nn.modules.container.Sequential",
    "torch.nn.modules.container.ModuleList",
    "torch.nn.modules.linear.Identity",
    "numpy.core.multiarray._reconstruct",
    "numpy.core.multiarray.scalar",
    "numpy._core.multiarray._reconstruct",
    "numpy._core.multiarray.scalar",
    "numpy.ndarray",
    "numpy.dtype",
    "pathlib.Path",
    "pathlib.PosixPath",
    "pathlib.WindowsPath",
    "pathlib.PurePosixPath",
    "pathlib._local.Path",
    "pathlib._local.PosixPath",
    "pathlib._local.WindowsPath",
    "__builtin__.set",
    "builtins.set",
]


class Weights(NamedTuple):
    """Content of a YOLOv5 file.

    Attributes:
        state: Tensors by YOLOv5's names ("model.0.conv.weight"), floats in float32.
        names: Class names.
        multiples: depth_multiple and width_multiple, if the file states them.
        activation: By our name.
    """

    state: dict[str, Tensor]
    names: list[str]
    multiples: dict[str, float]
    activation: str


def yolov5_weights(path: str | Path, content: dict[str, Any]) -> Weights:
    """The averaged weights of a YOLOv5 checkpoint or, without these, the plain ones.

    Args:
        path: The file, as published (full or stripped).
        content: What it holds, with stand-ins for ALLOWED.

    Raises:
        InputError: It is no YOLOv5 detection checkpoint, or has another activation.
    """
    with as_input_error(path, "a YOLOv5 checkpoint"):
        model = content.get("ema")
        if not model:
            model = content["model"]
        config = model.state.get("yaml") or {}
        multiples = {key: float(config[key]) for key in MULTIPLES if key in config}
        activation = config.get("activation") or "nn.SiLU()"
        if activation not in ACTIVATIONS:
            raise InputError(f"no network of boltbox has its activation {activation!r}")
        return Weights(
            dict(_tensors(model)), _names(model.state), multiples, ACTIVATIONS[activation]
        )


def _names(state: dict[str, Any]) -> list[str]:
    """Class names: a list, or a map from 0; without them numbers."""
    names = state.get("names")
    if not names:
        names = range(min(state["nc"], MOST_CLASSES))
    elif isinstance(names, dict):
        names = [names[i] for i in range(len(names))]
    return text_names(names)


def _tensors(module: StandIn, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """(name, tensor) of a pickled module's parameters and buffers, as in its state_dict."""
    for group in ("_parameters", "_buffers"):
        for name, tensor in module.state[group].items():
            if isinstance(tensor, Tensor):
                yield prefix + name, plain_tensor(tensor)
    for name, child in module.state["_modules"].items():
        if isinstance(child, StandIn):
            yield from _tensors(child, f"{prefix}{name}.")


def key_map(network: YOLOv5) -> dict[str, str]:
    """YOLOv5's name of every tensor of this network -> its name here.

    `model.<layer>.` becomes the module of `network.layer_names()`. Within a layer the names are the
    same, except in the head: `m.<level>` is `convs.<level>` here.
    """
    state = network.state_dict()
    names = {}
    for number, layer in network.layer_names().items():
        for ours in state:
            if ours.startswith(f"{layer}."):
                rest = ours.removeprefix(f"{layer}.")
                if layer == "head":
                    rest = rest.replace("convs.", "m.")
                names[f"model.{number}.{rest}"] = ours
    return names


def by_our_names(network: YOLOv5, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors by YOLOv5's names -> by the names of this network, as far as it has them."""
    names = key_map(network)
    tensors = {}
    for name, tensor in state.items():
        if not name.endswith(".anchor_grid"):  # a copy of the anchors, before release 6
            tensors[names.get(name, name)] = tensor
    return tensors
