"""Weights of an image classifier, or of a detector's backbone, for a timm backbone: from a file, of
which nothing is executed, or fetched by timm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from boltbox.detector.model.origin import UNKNOWN, Origin
from boltbox.detector.model.timm_backbone import PREFIX, Normalise, TimmBackbone, create
from boltbox.detector.system.errors import InputError, in_one_line, need
from boltbox.detector.weights.torch_file import as_input_error, load_torch_file

PRETRAINED = "pretrained"
WHAT = "a file of weights"
# where training scripts keep the tensors, best first
WRAPPINGS = ("state_dict_ema", "model_ema", "ema", "state_dict", "model", "module")
OF_DETECTOR = "backbone."  # prefix of the backbone's tensors in a detector's file
# prefixes in files of D-FINE, DEIM, RT-DETR, whose input is colours of 0..1 as they are
OF_DETR = ("encoder.", "decoder.")


def load_backbone(backbone: TimmBackbone, weights: str) -> tuple[str, Origin]:
    """Load the weights of an image classifier, or of a detector's backbone.

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
        tensors, licence = read_tensors(weights)
        origin = Origin(Path(weights).name, licence)
        body = _of_backbone(tensors)
        model = _classifier(backbone, body or tensors, weights)
        if body and any(key.startswith(OF_DETR) for key in tensors):
            backbone.normalise = Normalise((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    maps = create(
        name,
        out_indices=backbone.out_indices,
        pretrained=True,
        pretrained_cfg_overlay={"state_dict": model.state_dict()},
    )
    backbone.body.load_state_dict(maps.state_dict())
    line = "its weights start the backbone, the rest of the network starts fresh"
    return f"{origin.source}: {line}", origin


def _of_backbone(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The backbone's tensors in a detector's file, by the backbone's names."""
    return {
        key.removeprefix(OF_DETECTOR): tensor
        for key, tensor in tensors.items()
        if key.startswith(OF_DETECTOR)
    }


def read_tensors(path: str | Path) -> tuple[dict[str, Tensor], str]:
    """The tensors of a file by name, and the licence that it states.

    Raises:
        InputError: There is no such file, it is damaged, holds no tensors, or something that
            weights do not need.
    """
    licence = UNKNOWN
    if Path(path).suffix == ".safetensors":
        from safetensors import safe_open

        with as_input_error(path, WHAT), safe_open(path, framework="pt") as file:
            content = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            if file.metadata():
                licence = file.metadata().get("license", UNKNOWN)
    else:
        content = _unwrapped(load_torch_file(path, ["argparse.Namespace"]))  # timm's options
    tensors = {}
    with as_input_error(path, WHAT):
        for key, value in content.items():
            if isinstance(value, Tensor):
                tensors[key.removeprefix("module.")] = value
    if not tensors:
        raise InputError(f"{path}: no file of weights: it holds no tensors by name")
    return tensors, licence


def _unwrapped(content: dict[str, Any]) -> dict[str, Any]:
    """The innermost of the maps that training scripts keep tensors in."""
    for key in WRAPPINGS:
        if isinstance(content.get(key), dict):
            return _unwrapped(content[key])
    return content


def _classifier(backbone: TimmBackbone, tensors: dict[str, Tensor], source: str) -> Any:
    """timm's whole model with these tensors.

    They are by timm's names, by names of the model's authors that timm can translate, or in the
    model's order with the same shapes. What comes after the backbone's maps may be missing.
    """
    name = backbone.name
    model = need("timm").create_model(name)
    state = model.state_dict()
    shapes_here = _float_shapes(state)
    shapes_there = _float_shapes(tensors)
    if list(shapes_here.values()) == list(shapes_there.values()):
        values = [tensors[key] for key in shapes_there]
        tensors = dict(zip(shapes_here, values, strict=True))
    needed = {_flat(key) for key in backbone.body.state_dict()}
    body = [key for key in shapes_here if _flat(key) in needed]
    wrong = [k for k in body if k not in tensors or tensors[k].shape != shapes_here[k]]
    if not wrong:
        model.load_state_dict(state | {key: tensors[key] for key in body})
        return model
    try:
        overlay = {"state_dict": dict(tensors)}  # timm loads these, and fetches nothing
        return need("timm").create_model(name, pretrained=True, pretrained_cfg_overlay=overlay)
    except Exception:  # timm raises anything for weights of another model
        raise InputError(
            f"model.start.backbone_weights {source}: these are not of {PREFIX}{name} (of its"
            f" {len(body)} tensors {len(wrong)} are missing or of another shape, like"
            f" {min(wrong)}). Give weights of that model, or name the backbone that they are of"
        ) from None


def _float_shapes(tensors: dict[str, Tensor]) -> dict[str, torch.Size]:
    """Shapes by name, without counters."""
    return {key: tensor.shape for key, tensor in tensors.items() if tensor.is_floating_point()}


def _flat(name: str) -> str:
    """The same for a tensor of the whole model and of the model that returns maps.

    >>> _flat("stages.0.blocks.0.conv.weight") == _flat("stages_0.blocks.0.conv.weight")
    True
    """
    return name.removeprefix("model.").replace(".", "_")


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
