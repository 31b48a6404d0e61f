"""Weights of an image classifier for a timm backbone: from a file, of which nothing is executed, or
fetched by timm."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from boltbox.detector.model.network import UNKNOWN, Origin
from boltbox.detector.model.timm_backbone import PREFIX, TimmBackbone, create
from boltbox.detector.system.errors import InputError, in_one_line, need
from boltbox.detector.system.torch_file import load_torch_file

PRETRAINED = "pretrained"
# where training scripts keep the tensors, best first
WRAPPINGS = ("state_dict_ema", "model_ema", "state_dict", "model")


def load_backbone(backbone: TimmBackbone, weights: str | Path) -> tuple[str, Origin]:
    """Load the weights of an image classifier.

    Args:
        backbone: Its weights are replaced.
        weights: A .safetensors file, a torch file (.pth, .pt, .bin), or `pretrained`: timm fetches
            its own.

    Returns:
        One line that says what was loaded, and the origin.

    Raises:
        InputError: There is no such file or no network, the file holds anything but tensors and
            plain types, or is of another model; the backbone is unchanged.
    """
    name = backbone.name
    if weights == PRETRAINED:
        model = _fetch(name)
        config = model.pretrained_cfg
        source = PREFIX + name.partition(".")[0]
        if config.get("tag"):
            source += f".{config['tag']}"
        origin = Origin(source, config.get("license") or UNKNOWN)
    else:
        model = _classifier(name, weights)
        origin = Origin(Path(weights).name)
    maps = create(
        name,
        out_indices=backbone.out_indices,
        pretrained=True,
        pretrained_cfg_overlay={"state_dict": model.state_dict()},
    )
    backbone.body.load_state_dict(maps.state_dict())
    line = "its weights start the backbone, the rest of the network starts fresh"
    return f"{origin.source}: {line}", origin


def read_tensors(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a file by name.

    Raises:
        InputError: There is no such file, it is damaged, holds no tensors, or something that
            weights do not need.
    """
    content = load_torch_file(path, ["argparse.Namespace"])  # timm's options
    for key in WRAPPINGS:
        inner = content.get(key)
        if isinstance(inner, dict):
            content = inner
            break
    tensors = {}
    for key, value in content.items():
        if isinstance(value, Tensor):
            tensors[str(key).removeprefix("module.")] = value
    if not tensors:
        raise InputError(f"{path}: no file of weights: it holds no tensors by name")
    return tensors


def _classifier(name: str, path: str | Path) -> Any:
    """timm's whole model with the tensors of a file: by timm's names, by names of the model's
    authors that timm can translate, or in the model's order with the same shapes; for timm's
    classes, for others, which end the file, or without the layer of the classes."""
    tensors = read_tensors(path)
    shapes_there = _float_shapes(tensors)
    last = [(0,), *shapes_there.values()][-1]
    for classes in ({}, {"num_classes": sum(last[:1])}, {"num_classes": 0}):
        with suppress(Exception):  # timm raises anything for weights of another model
            model = need("timm").create_model(name, pretrained_cfg_overlay=classes)
            shapes_here = _float_shapes(model.state_dict())
            if list(shapes_here.values()) == list(shapes_there.values()):
                values = [tensors[key] for key in shapes_there]
                tensors = dict(zip(shapes_here, values, strict=True))
            overlay = {"state_dict": tensors} | classes  # timm loads these, and fetches nothing
            return need("timm").create_model(name, pretrained=True, pretrained_cfg_overlay=overlay)
    raise InputError(
        f"model.start.backbone_weights {path}: these are not of {PREFIX}{name}. Give weights of"
        " that model, or name the backbone that they are of"
    )


def _float_shapes(tensors: dict[str, Tensor]) -> dict[str, torch.Size]:
    """Shapes by name, without counters."""
    return {key: tensor.shape for key, tensor in tensors.items() if tensor.is_floating_point()}


def _fetch(name: str) -> Any:
    """timm's whole model with timm's weights, out of its cache or fetched."""
    try:
        return need("timm").create_model(name, pretrained=True)
    except Exception as e:  # of the hub, of the network, of the operating system
        raise InputError(
            f"model.start.backbone_weights {PRETRAINED}: timm could not fetch the weights of"
            f" {PREFIX}{name} ({type(e).__name__}: {in_one_line(e)[:200]}). Without a network give"
            " a file that was fetched elsewhere: --model.start.backbone_weights FILE"
        ) from None
