"""Weights to start a training from: a checkpoint of ours (.ckpt), or a YOLOv5 file (any other name)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from detector.checkpoint.content import DETECTOR
from detector.checkpoint.hyper_parameters import network_options
from detector.checkpoint.restricted import load_restricted
from detector.checkpoint.validators import InvalidContent
from detector.checkpoint.weights import averaged, copy_weights
from detector.checkpoint.yolov5_weights import load_yolov5, read_yolov5
from detector.model.network import YOLOv5
from detector.system.errors import InputError


def load_weights(network: YOLOv5, path: str | Path, keep_anchors: bool = False, reuse_head: bool = False) -> str:
    """Start a network from a file; of a checkpoint of ours its moving average is taken, if it has one.

    Args, returns and raises: see `copy_weights`.
    """
    if Path(path).suffix != ".ckpt":
        return load_yolov5(network, read_yolov5(path), path, keep_anchors, reuse_head)
    content = _read_ours(path)
    names, made = content["hyper_parameters"]["names"], network_options(content["hyper_parameters"])
    hint = f"its network was made with {_as_typed(made)}" if made else "they are of another size or topology"
    return copy_weights(network, averaged(content["state_dict"]), len(names), path, hint, keep_anchors, reuse_head)


def class_names(path: str | Path) -> list[str]:
    """The class names of such a file.

    Raises:
        InputError: no such file, or no detector.
    """
    return read_yolov5(path).names if Path(path).suffix != ".ckpt" else _read_ours(path)["hyper_parameters"]["names"]


def _read_ours(path: str | Path) -> dict[str, Any]:
    """Tensors and hyper-parameters are looked at, nothing else: a training need not go on from it."""
    content = load_restricted(path, [])
    try:
        DETECTOR(content, "")
    except InvalidContent as e:
        raise InputError(f"{path}: this is not a checkpoint of a detector ({e})") from None
    return content


def _as_typed(options: dict[str, Any]) -> str:
    """
    >>> _as_typed({"size": "n", "levels": [3, 4]})
    '--model.size n --model.levels [3,4]'
    """
    return " ".join(f"--model.{name} {str(value).replace(' ', '')}" for name, value in options.items())
