"""Weights to start a training from: a checkpoint of ours (.ckpt), or a file of YOLOX or YOLOv5 (any
other name)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from boltbox.detector.model.network import YOLOv5
from boltbox.detector.model.network_options import NetworkOptions
from boltbox.detector.model.origin import AGPL, Origin
from boltbox.detector.model.timm_backbone import TimmBackbone
from boltbox.detector.system.errors import InputError
from boltbox.detector.weights.origins import passed_on
from boltbox.detector.weights.timm import load_backbone
from boltbox.detector.weights.torch_file import load_torch_file
from boltbox.detector.weights.trained import of_checkpoint
from boltbox.detector.weights.transfer import copy_weights
from boltbox.detector.weights.yolov5 import load_yolov5, read_yolov5
from boltbox.detector.weights.yolox import LICENCE as OF_YOLOX
from boltbox.detector.weights.yolox import load_yolox, read_yolox


def load_weights(
    network: YOLOv5, path: str | Path, keep_anchors: bool = False, reuse_head: bool = False
) -> str:
    """Start a network from a file, and note the file in its `origins`; of a checkpoint of ours its
    moving average is taken, if it has one.

    Args, returns and raises: see `copy_weights`.
    """
    name = Path(path).name
    if Path(path).suffix == ".ckpt":
        content = load_torch_file(path)
        given = of_checkpoint(path, content)
        hint = f"its network was made with {_as_typed(given.options)}"
        count = len(given.names)
        line = copy_weights(network, given.tensors, count, path, hint, keep_anchors, reuse_head)
        network.origins = passed_on(content, path)
    elif (tensors := read_yolox(path)) is not None:
        line = load_yolox(network, tensors, path)
        network.origins = [Origin(name, OF_YOLOX)]
    else:
        line = load_yolov5(network, read_yolov5(path), path, keep_anchors, reuse_head)
        network.origins = [Origin(name, AGPL)]
    return line


def start(
    network: YOLOv5,
    weights: str | None,
    backbone_weights: str | None,
    keep_anchors: bool,
    reuse_head: bool,
) -> Iterator[str]:
    """Start a network from what model.start.weights and model.start.backbone_weights name, if they
    name anything; a line for each.

    Raises:
        InputError: both are given, or the backbone is not one of timm's; else see `load_weights`
            and `load_backbone`.
    """
    if weights and backbone_weights:
        raise InputError(
            "model.start.weights starts the backbone too: give it or model.start.backbone_weights,"
            " not both"
        )
    if weights:
        yield load_weights(network, weights, keep_anchors, reuse_head)
    if backbone_weights:
        if not isinstance(network.backbone, TimmBackbone):
            raise InputError(
                "model.start.backbone_weights is for an image backbone of timm: name it with"
                " --model.network.backbone timm/NAME"
            )
        line, origin = load_backbone(network.backbone, backbone_weights)
        network.origins = [origin]
        yield line


def _as_typed(options: dict[str, Any]) -> str:
    """The size, and what differs from the defaults.

    >>> _as_typed({"size": "n", "activation": "silu", "levels": [3, 4]})
    '--model.network.size n --model.network.levels [3,4]'
    """
    defaults = vars(NetworkOptions()) | {"size": None}
    return " ".join(
        f"--model.network.{name} {str(value).replace(' ', '')}"
        for name, value in options.items()
        if value != defaults[name]
    )
