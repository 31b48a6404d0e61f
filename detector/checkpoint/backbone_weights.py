"""Weights of image classification -> a timm backbone: from a file, of which nothing is executed, or
fetched by timm."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from torch import Tensor

from boltbox.detector.checkpoint.restricted import load_restricted
from boltbox.detector.model.origin import UNKNOWN, Origin
from boltbox.detector.model.timm_backbone import PREFIX, TimmBackbone, create, timm
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.text_file import is_file

PRETRAINED = "pretrained"
# where training scripts keep the tensors, best first
WRAPPINGS = ("state_dict_ema", "model_ema", "state_dict", "model")


def load_backbone(backbone: TimmBackbone, weights: str) -> tuple[str, Origin]:
    """Give a backbone the weights of an image classifier.

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
        tag = loaded.pretrained_cfg.get("tag")
        arch = name.partition(".")[0]
        origin = Origin(
            f"{PREFIX}{arch}.{tag}" if tag else PREFIX + arch,
            loaded.pretrained_cfg.get("license") or UNKNOWN,
        )
        line = f"{origin.source}: took timm's weights"
    else:
        tensors, licence = read_tensors(weights)
        loaded, line = _classifier(name, tensors, weights)
        origin = Origin(Path(weights).name, licence)
    maps = create(
        name,
        out_indices=backbone.out_indices,
        pretrained=True,
        pretrained_cfg_overlay=_given(loaded.state_dict()),
    )
    backbone.body.load_state_dict(maps.state_dict())
    return f"{line}; they start the backbone, the rest of the network starts fresh", origin


def read_tensors(path: str | Path) -> tuple[dict[str, Tensor], str]:
    """The tensors of a file by name, and the licence that it states.

    Raises:
        InputError: no such file, damaged, no tensors in it, or something that weights do not need.
    """
    if not is_file(path):
        raise InputError(
            f"model.start.backbone_weights {path}: no such file; give a file of weights, or"
            f" `{PRETRAINED}`"
        )
    content: dict[str, Any]
    licence = UNKNOWN
    if Path(path).suffix == ".safetensors":
        content, licence = _read_safetensors(path)
    else:
        # timm's own training keeps its options
        content = load_restricted(path, ["argparse.Namespace"])
        content = next(
            (content[key] for key in WRAPPINGS if isinstance(content.get(key), dict)), content
        )
    tensors = {
        str(k).removeprefix("module."): v for k, v in content.items() if isinstance(v, Tensor)
    }
    if not tensors:
        raise InputError(
            f"model.start.backbone_weights {path}: it holds no tensors by name, so it is no file of"
            " weights"
        )
    return tensors, licence


def _read_safetensors(path: str | Path) -> tuple[dict[str, Any], str]:
    try:
        from safetensors import safe_open
    except ImportError:
        raise InputError(
            f'{path}: the package safetensors is missing; pip install -e ".[backbones]"'
        ) from None
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            return tensors, (file.metadata() or {}).get("license", UNKNOWN)
    except Exception as e:  # whatever it stumbles over in a damaged file
        raise InputError(
            f"{path}: not a readable safetensors file, perhaps damaged or cut short"
            f" ({type(e).__name__})"
        ) from None


def _classifier(name: str, tensors: dict[str, Tensor], source: str) -> tuple[Any, str]:
    """timm's whole model with these tensors: by its names, by names of the model's authors that
    timm knows how to turn into its own, or else in their order, if all shapes agree. And a line."""
    model = timm().create_model(name)
    own = model.state_dict()
    head = {
        f"{layer}.{kind}"
        for layer in _words(model.pretrained_cfg.get("classifier"))
        for kind in ("weight", "bias")
    }
    # no counters
    ours, theirs = (
        {k: v for k, v in given.items() if v.is_floating_point()} for given in (own, tensors)
    )
    needed = {key: tensor.shape for key, tensor in ours.items() if key not in head}
    if all(key in theirs and theirs[key].shape == shape for key, shape in needed.items()):
        model.load_state_dict(
            {key: theirs[key] if key in needed else fresh for key, fresh in own.items()}
        )
        return model, f"{source}: took {len(needed)} tensors"
    if [tensor.shape for tensor in theirs.values()] == [tensor.shape for tensor in ours.values()]:
        model.load_state_dict({**own, **dict(zip(ours, theirs.values(), strict=True))})
        return (
            model,
            (
                f"{source}: took {len(ours)} tensors in their order: all shapes agree, though the"
                " names are not timm's"
            ),
        )
    try:
        model = timm().create_model(name, pretrained=True, pretrained_cfg_overlay=_given(tensors))
        return model, f"{source}: took {len(tensors)} tensors, whose names timm knows"
    except Exception:  # whatever timm raises at weights of another model
        wrong = {
            key for key, shape in needed.items() if key not in theirs or theirs[key].shape != shape
        }
        raise InputError(
            f"model.start.backbone_weights {source}: these are not of {PREFIX}{name} (of its"
            f" {len(needed)} tensors {len(wrong)} are missing or of another shape, like"
            f" {min(wrong)}); give those, or name the backbone that they are of"
        ) from None


def _given(tensors: dict[str, Tensor]) -> dict[str, Any]:
    """What has timm load these tensors, and fetch nothing."""
    return {"state_dict": dict(tensors)}


def _words(value: Any) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value or ())


def _fetched(name: str) -> Any:
    """timm's whole model with timm's weights, out of its cache or fetched."""
    try:
        from huggingface_hub import constants

        try:
            socket.getaddrinfo(urlsplit(constants.ENDPOINT).hostname, None)
        except OSError:
            constants.HF_HUB_OFFLINE = True  # or it would try for a minute
        return timm().create_model(name, pretrained=True)
    except Exception as e:  # of the hub, of the network, of the operating system
        reason = (str(e).strip().splitlines() or [type(e).__name__])[0]
        raise InputError(
            f"model.start.backbone_weights {PRETRAINED}: timm could not fetch the weights of"
            f" {PREFIX}{name} ({type(e).__name__}: {reason[:200]}); without a network give a file"
            " that was fetched elsewhere: --model.start.backbone_weights FILE"
        ) from None
