"""Weights of an image classifier, or of a detector that has it as its backbone, -> a timm backbone:
from a file, of which nothing is executed, or fetched by timm."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from torch import Tensor

from boltbox.detector.model.origin import UNKNOWN, Origin
from boltbox.detector.model.timm_backbone import PREFIX, Normalise, TimmBackbone, create
from boltbox.detector.system.errors import InputError, in_one_line, need
from boltbox.detector.weights.torch_file import as_input_error, load_torch_file

PRETRAINED = "pretrained"
# where training scripts keep the tensors, best first
WRAPPINGS = ("state_dict_ema", "model_ema", "ema", "state_dict", "model", "module")
OF_DETECTOR = "backbone."  # in a detector's file the start of its backbone's names
# of DETR's family: D-FINE, DEIM, RT-DETR feed their networks colours of 0..1 as they are
OF_DETR = ("encoder.", "decoder.")


def load_backbone(backbone: TimmBackbone, weights: str) -> tuple[str, Origin]:
    """Give a backbone the weights of an image classifier, or of a detector's backbone.

    Args:
        weights: a .safetensors file, a torch file (.pth, .pt, .bin), or `pretrained`: timm fetches
            its own.

    Returns:
        One line that says what was taken, and the origin.

    Raises:
        InputError: no such file, one that holds anything but tensors and plain types, weights of
            another model, or no network to fetch them from; the backbone is as it was.
    """
    name = backbone.name
    if weights == PRETRAINED:
        loaded = _fetched(name)
        config, arch = loaded.pretrained_cfg, name.partition(".")[0]
        tag = f".{config['tag']}" if config.get("tag") else ""
        origin = Origin(f"{PREFIX}{arch}{tag}", config.get("license") or UNKNOWN)
    else:
        tensors, licence = read_tensors(weights)
        body = {
            key.removeprefix(OF_DETECTOR): tensor
            for key, tensor in tensors.items()
            if key.startswith(OF_DETECTOR)
        }
        loaded = _classifier(backbone, body or tensors, weights)
        if body and any(key.startswith(OF_DETR) for key in tensors):
            backbone.normalise = Normalise((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
        origin = Origin(Path(weights).name, licence)
    maps = create(
        name,
        out_indices=backbone.out_indices,
        pretrained=True,
        pretrained_cfg_overlay={"state_dict": loaded.state_dict()},
    )
    backbone.body.load_state_dict(maps.state_dict())
    line = "its weights start the backbone, the rest of the network starts fresh"
    return f"{origin.source}: {line}", origin


def read_tensors(path: str | Path) -> tuple[dict[str, Tensor], str]:
    """The tensors of a file by name, and the licence that it states.

    Raises:
        InputError: no such file, damaged, no tensors in it, or something that weights do not need.
    """
    licence, what = UNKNOWN, "a file of weights"
    if Path(path).suffix == ".safetensors":
        from safetensors import safe_open

        with as_input_error(path, what), safe_open(path, framework="pt") as file:
            content = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            licence = (file.metadata() or {}).get("license", UNKNOWN)
    else:
        # timm's own training keeps its options
        content = load_torch_file(path, ["argparse.Namespace"])
        while inner := [content[key] for key in WRAPPINGS if isinstance(content.get(key), dict)]:
            content = inner[0]
    with as_input_error(path, what):
        found = {k.removeprefix("module."): v for k, v in content.items() if isinstance(v, Tensor)}
    if not found:
        raise InputError(f"{path}: no file of weights: it holds no tensors by name")
    return found, licence


def _classifier(backbone: TimmBackbone, tensors: dict[str, Tensor], source: str) -> Any:
    """timm's whole model with these tensors: by its names, whatever lies behind the maps, or by
    names of the model's authors that timm knows how to turn into its own, or in their order if all
    shapes agree."""
    name = backbone.name
    model = need("timm").create_model(name)
    own, needed = model.state_dict(), {_flat(key) for key in backbone.body.state_dict()}
    # no counters
    floats, given = (
        {key: tensor.shape for key, tensor in found.items() if tensor.is_floating_point()}
        for found in (own, tensors)
    )
    if list(floats.values()) == list(given.values()):
        tensors = dict(zip(floats, (tensors[key] for key in given), strict=True))
    body = {key: shape for key, shape in floats.items() if _flat(key) in needed}
    wrong = [key for key in body if key not in tensors or tensors[key].shape != body[key]]
    if not wrong:
        model.load_state_dict({**own, **{key: tensors[key] for key in body}})
        return model
    try:
        overlay = {"state_dict": dict(tensors)}  # has timm load these, and fetch nothing
        return need("timm").create_model(name, pretrained=True, pretrained_cfg_overlay=overlay)
    except Exception:  # whatever timm raises at weights of another model
        raise InputError(
            f"model.start.backbone_weights {source}: these are not of {PREFIX}{name} (of its"
            f" {len(body)}"
            f" tensors {len(wrong)} are missing or of another shape, like {min(wrong)}); give"
            " those, or name the backbone that they are of"
        ) from None


def _flat(name: str) -> str:
    """As which a tensor of the whole model and of the one that gives maps are the same.

    >>> _flat("stages.0.blocks.0.conv.weight") == _flat("stages_0.blocks.0.conv.weight")
    True
    """
    return name.removeprefix("model.").replace(".", "_")


def _fetched(name: str) -> Any:
    """timm's whole model with timm's weights, out of its cache or fetched."""
    try:
        from huggingface_hub import constants

        try:
            socket.getaddrinfo(urlsplit(constants.ENDPOINT).hostname, None)
        except OSError:
            constants.HF_HUB_OFFLINE = True  # or it would try for a minute
        return need("timm").create_model(name, pretrained=True)
    except Exception as e:  # of the hub, of the network, of the operating system
        raise InputError(
            f"model.start.backbone_weights {PRETRAINED}: timm could not fetch the weights of"
            f" {PREFIX}{name} ({type(e).__name__}: {in_one_line(e)[:200]}); without a network give"
            " a file that was fetched elsewhere: --model.start.backbone_weights FILE"
        ) from None
