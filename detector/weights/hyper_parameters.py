"""The hyper-parameters in a checkpoint, and the network that they make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from boltbox.detector.model.assigner import Assigner
from boltbox.detector.model.box_coder import BoxCoder
from boltbox.detector.model.head import Head
from boltbox.detector.model.loss import Loss
from boltbox.detector.model.network import YOLOv5
from boltbox.detector.model.network_options import NetworkOptions

# chosen by class_path
PARTS: dict[str, type] = {
    "network.head": Head,
    "network.box_coder": BoxCoder,
    "loss.assigner": Assigner,
    "loss.function": Loss,
}
# options that are files, which a checkpoint does not name
FILES = ("weights", "backbone_weights", "ensemble")


def build_network(num_classes: int, options: dict[str, Any]) -> YOLOv5:
    """A network from hyper-parameters, with fresh weights.

    Args:
        options: of NetworkOptions, by name.

    Raises:
        InputError: they make no network.
    """
    return NetworkOptions(**options).build(num_classes)


def empty_network(num_classes: int, options: dict[str, Any]) -> YOLOv5:
    """The same without memory for its tensors (device `meta`), for names and shapes.

    Raises:
        InputError: as above.
    """
    with torch.device("meta"):
        return build_network(num_classes, options)


def network_options(hyper_parameters: dict[str, Any]) -> dict[str, Any]:
    """Those of the network that are given."""
    given = hyper_parameters.get("network", {})
    return {name: value for name, value in given.items() if value is not None}


def shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def text_names(names: Sequence[Any]) -> list[str]:
    """Class names of a file as text that can be written.

    Raises:
        ValueError: there are none. UnicodeEncodeError: one cannot be written.
    """
    found = [str(name) for name in names]
    if not "\n".join(found).encode():
        raise ValueError("no class names")
    return found
