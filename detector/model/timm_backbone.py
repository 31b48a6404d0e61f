"""An image backbone of timm (Wightman 2019, PyTorch Image Models, doi 10.5281/zenodo.4414861) in
the place of YOLOv5's.

timm is an extra; it is imported where one of its backbones is asked for. Nothing here fetches
anything: weights come from a checkpoint, or by `boltbox.detector.weights.timm`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from boltbox.detector.model.layers import SPPF, Conv
from boltbox.detector.system.errors import InputError, in_one_line, nearest, need

PREFIX = "timm/"
OWN = (2, 3, 4, 5)  # levels that a backbone has maps of; level k has stride 2**k
TRIAL = (1, 3, 256, 320)  # shape of the image that shows what a backbone makes of one


class Maps(NamedTuple):
    """What a backbone makes of an image, by level: the maps' numbers, their channels; whether these
    are the last dimension."""

    number: dict[int, int]
    channels: dict[int, int]
    channels_last: bool


class Normalise(nn.Module):
    """Image (B, 3, H, W) in 0..1 -> (image - mean) * scale."""

    mean: Tensor
    scale: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).view(3, 1, 1))
        self.register_buffer("scale", 1 / torch.tensor(std).view(3, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) * self.scale


class TimmBackbone(nn.Module):
    """Image (B, 3, H, W) in 0..1 -> {level: (B, channels[level], H / 2**level, W / 2**level)} from
    the lowest level to the top.

    The image is normalised as the backbone's authors did it. 1x1 convolutions bring its maps to the
    neck's channels; strided ones make the levels above 5; SPPF makes the top level, as in YOLOv5.

    Args:
        name: of timm, like tf_efficientnet_lite0, with or without the tag of its weights.
        channels: of the neck, by level.
        low: the lowest level that the neck takes.

    Raises:
        InputError: timm is not installed, does not know the name, or the backbone does not give
            these maps.
    """

    def __init__(self, name: str, channels: dict[int, int], low: int) -> None:
        super().__init__()
        self.name, self.top, self.levels = name, max(channels), [k for k in OWN if k >= min(low, 5)]
        theirs = maps_of(name, self.levels)
        self.channels_last = theirs.channels_last
        self.out_indices = [theirs.number[k] for k in self.levels]
        self.body = create(name, out_indices=self.out_indices)
        self.normalise = Normalise(
            self.body.pretrained_cfg["mean"], self.body.pretrained_cfg["std"]
        )
        self.adapt = nn.ModuleDict(
            {str(k): Conv(theirs.channels[k], channels[k]) for k in self.levels if k < self.top}
        )
        self.down = nn.ModuleDict(
            {
                str(k): Conv(channels[k - 1], channels[k], 3, 2)
                for k in range(OWN[-1] + 1, self.top + 1)
            }
        )
        self.sppf = SPPF(
            channels[self.top] if self.down else theirs.channels[self.top], channels[self.top]
        )

    def forward(self, x: Tensor) -> dict[int, Tensor]:
        features = self.body(self.normalise(x))
        if self.channels_last:
            features = [y.permute(0, 3, 1, 2) for y in features]
        maps = dict(zip(self.levels, features, strict=True))
        maps |= {int(k): adapt(maps[int(k)]) for k, adapt in self.adapt.items()}
        for k, down in self.down.items():
            maps[int(k)] = down(maps[int(k) - 1])
        maps[self.top] = self.sppf(maps[self.top])
        return maps

    def layer_names(self) -> list[str | None]:
        """The whole, then as many layers without a module as YOLOv5's backbone has more: so
        `freeze: 10` means it too."""
        return ["", *[None] * (2 * self.top - 1)]


def body_of(backbone: nn.Module) -> nn.Module:
    """What a rate of its own and frozen layers are for: of a timm backbone its body, without the
    fresh layers that fit it to the neck; of another all."""
    return backbone.body if isinstance(backbone, TimmBackbone) else backbone


def maps_of(name: str, levels: Sequence[int]) -> Maps:
    """What a backbone makes of an image.

    Args:
        name: of timm. levels: that are needed.

    Raises:
        InputError: timm is not installed, does not know the name, or the backbone lacks a level.
    """
    timm = need("timm", f"model.network.backbone {PREFIX}{name}")
    arch, known = name.partition(".")[0], set(timm.list_models())
    # timm takes names of files and of hubs too
    if arch not in known or not re.fullmatch(r"\w+(\.[\w-]+)?", name, re.ASCII):
        raise InputError(
            f"model.network.backbone {PREFIX}{name}: timm knows no such model;"
            f" {nearest(arch, known)}"
        )
    found = _maps(name)
    if isinstance(found, Maps):
        if found.number.keys() >= set(levels):
            return found
        found = f"only of {', '.join(str(2**k) for k in found.number)}"
    strides = ", ".join(str(2**k) for k in levels)
    raise InputError(
        f"model.network.backbone {PREFIX}{name} gives no maps of the strides {strides} for images"
        f" of any size ({found}); see docs/backbones.md for some that do"
    )


def create(name: str, **options: Any) -> Any:
    """timm's model, for a name that `maps_of` has not refused, as what gives a list of maps; with
    fresh weights."""
    return need("timm").create_model(name, features_only=True, **options)


@lru_cache(maxsize=256)
def _maps(name: str) -> Maps | str:
    """Found by trying an image without memory (device `meta`); or a sentence why there is nothing
    to find."""
    with torch.random.fork_rng(devices=[]), torch.device("meta"), torch.no_grad():
        try:
            body = create(name).eval()
            outputs, about = body(torch.zeros(TRIAL)), body.feature_info
            info = list(zip(map(int, about.reduction()), map(int, about.channels()), strict=True))
        except Exception as e:  # whatever a model raises that has no maps to give
            return in_one_line(e)[:200] or type(e).__name__
    channels_last = str(getattr(body, "output_fmt", "")).endswith("NHWC")
    # of the last map of each stride
    numbers = {stride.bit_length() - 1: i for i, (stride, _) in enumerate(info)}
    numbers = {level: i for level, i in numbers.items() if level in OWN}
    for level, i in numbers.items():
        height, width, depth = TRIAL[2] >> level, TRIAL[3] >> level, info[i][1]
        if outputs[i].shape != (
            (1, height, width, depth) if channels_last else (1, depth, height, width)
        ):
            return f"its map of stride {2**level} has the shape {tuple(outputs[i].shape)}"
    return Maps(numbers, {level: info[i][1] for level, i in numbers.items()}, channels_last)
