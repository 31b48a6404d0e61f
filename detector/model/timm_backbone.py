"""Image backbones of timm (Wightman 2019, PyTorch Image Models, doi 10.5281/zenodo.4414861) instead
of YOLOv5's.

timm is an optional package; it is imported when such a backbone is used. Nothing here downloads
weights: they come from a checkpoint, or via `boltbox.detector.weights.timm`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from boltbox.detector.model.layers import SPPF, Conv
from boltbox.detector.system.errors import InputError, in_one_line, nearest, need

PREFIX = "timm/"
LEVELS = (2, 3, 4, 5)  # of a backbone's own maps; level k has stride 2**k
TRIAL = (1, 3, 256, 320)  # shape of the image that shows which maps a backbone makes


class Maps(NamedTuple):
    """The maps that a backbone makes of an image.

    Attributes:
        number: of the map in the backbone's output, by level.
        channels: of the map, by level.
        channels_last: whether maps are (B, H, W, C).
    """

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
        low: the lowest level of the neck.

    Attributes:
        body: timm's model.
        out_indices: the numbers of the maps that are used.

    Raises:
        InputError: timm is not installed, does not know the name, or the backbone does not make
            these maps.
    """

    def __init__(self, name: str, channels: dict[int, int], low: int) -> None:
        super().__init__()
        self.name = name
        self.top = max(channels)
        self.levels = [k for k in LEVELS if k >= min(low, LEVELS[-1])]
        maps = maps_of(name, self.levels)
        self.channels_last = maps.channels_last
        self.out_indices = [maps.number[k] for k in self.levels]
        self.body = create(name, out_indices=self.out_indices)
        config = self.body.pretrained_cfg
        self.normalise = Normalise(config["mean"], config["std"])
        self.adapt = nn.ModuleDict()
        self.down = nn.ModuleDict()
        for k in self.levels:
            if k < self.top:
                self.adapt[str(k)] = Conv(maps.channels[k], channels[k])
        for k in range(LEVELS[-1] + 1, self.top + 1):
            self.down[str(k)] = Conv(channels[k - 1], channels[k], 3, 2)
        sppf_channels = channels[self.top] if self.down else maps.channels[self.top]
        self.sppf = SPPF(sppf_channels, channels[self.top])

    def forward(self, x: Tensor) -> dict[int, Tensor]:
        features = self.body(self.normalise(x))
        if self.channels_last:
            features = [y.permute(0, 3, 1, 2) for y in features]
        maps = dict(zip(self.levels, features, strict=True))
        for k, adapt in self.adapt.items():
            maps[int(k)] = adapt(maps[int(k)])
        for k, down in self.down.items():
            maps[int(k)] = down(maps[int(k) - 1])
        maps[self.top] = self.sppf(maps[self.top])
        return maps

    def layer_names(self) -> list[str | None]:
        """The backbone as one layer, then None for the other layers of YOLOv5's backbone, so that
        `freeze: 10` freezes all of it."""
        names: list[str | None] = [""]
        return names + [None] * (2 * self.top - 1)


def body_of(backbone: nn.Module) -> nn.Module:
    """The pretrained part, for freezing and a learning rate of its own: timm's model, without the
    new layers that fit it to the neck; of another backbone all."""
    return backbone.body if isinstance(backbone, TimmBackbone) else backbone


def maps_of(name: str, levels: Sequence[int]) -> Maps:
    """The maps of a backbone.

    Args:
        name: of timm.
        levels: that it must have.

    Raises:
        InputError: timm is not installed, does not know the name, or the backbone lacks a level.
    """
    timm = need("timm", f"model.network.backbone {PREFIX}{name}")
    known = set(timm.list_models())
    model, _, _ = name.partition(".")
    # timm accepts names of files and of hubs too
    if model not in known or not re.fullmatch(r"\w+(\.[\w-]+)?", name, re.ASCII):
        raise InputError(
            f"model.network.backbone {PREFIX}{name}: timm knows no such model;"
            f" {nearest(model, known)}"
        )
    maps = _maps(name)
    if isinstance(maps, Maps):
        if maps.number.keys() >= set(levels):
            return maps
        maps = f"only of {_strides(maps.number)}"
    raise InputError(
        f"model.network.backbone {PREFIX}{name} gives no maps of the strides {_strides(levels)} for"
        f" images of any size ({maps}); see docs/backbones.md for some that do"
    )


def _strides(levels: Iterable[int]) -> str:
    return ", ".join(str(2**k) for k in levels)


def create(name: str, **options: Any) -> Any:
    """timm's model with new weights, which gives a list of maps.

    Args:
        name: that `maps_of` accepts.
        options: of timm.
    """
    return need("timm").create_model(name, features_only=True, **options)


@lru_cache(maxsize=256)
def _maps(name: str) -> Maps | str:
    """The maps of an image without memory (device `meta`), or the reason why there are none."""
    with torch.random.fork_rng(devices=[]), torch.device("meta"), torch.no_grad():
        try:
            body = create(name).eval()
            outputs = body(torch.zeros(TRIAL))
            strides = [int(stride) for stride in body.feature_info.reduction()]
            channels = [int(c) for c in body.feature_info.channels()]
        except Exception as e:  # whatever a model raises that has no maps
            return in_one_line(e)[:200] or type(e).__name__
    channels_last = str(getattr(body, "output_fmt", "")).endswith("NHWC")
    maps = Maps({}, {}, channels_last)
    for number, stride in enumerate(strides):
        level = stride.bit_length() - 1
        if level in LEVELS:  # of several maps of one stride, the last
            maps.number[level] = number
            maps.channels[level] = channels[number]
    for level, number in maps.number.items():
        height = TRIAL[2] >> level
        width = TRIAL[3] >> level
        shape = (1, channels[number], height, width)
        if channels_last:
            shape = (1, height, width, channels[number])
        if outputs[number].shape != shape:
            return f"its map of stride {2**level} has the shape {tuple(outputs[number].shape)}"
    return maps
