"""Image backbones of timm (Wightman 2019, PyTorch Image Models, doi 10.5281/zenodo.4414861) instead
of YOLOv5's.

timm is an optional package; it is imported when such a backbone is used. Nothing here downloads
weights: they come from a checkpoint, or via `boltbox.detector.weights.timm`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from boltbox.detector.model.layers import SPPF, Conv
from boltbox.detector.system.errors import InputError, in_one_line, nearest, need

PREFIX = "timm/"
LEVELS = (2, 3, 4, 5)  # of a backbone's own maps; level k has stride 2**k


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
        out_indices: the numbers of its maps that are used.

    Raises:
        InputError: timm is not installed, does not know the name, or the backbone does not make
            these maps.
    """

    def __init__(self, name: str, channels: dict[int, int], low: int) -> None:
        super().__init__()
        self.name = name
        self.top = max(channels)
        self.levels = [k for k in LEVELS if k >= min(low, LEVELS[-1])]
        self.out_indices = map_numbers(name, self.levels)
        self.body = create(name, out_indices=self.out_indices)
        self.channels_last = has_channels_last(self.body)
        config = self.body.pretrained_cfg
        self.normalise = Normalise(config["mean"], config["std"])
        self.adapt = nn.ModuleDict()
        self.down = nn.ModuleDict()
        own_channels = dict(zip(self.levels, self.body.feature_info.channels(), strict=True))
        for k in self.levels:
            if k < self.top:
                self.adapt[str(k)] = Conv(own_channels[k], channels[k])
        for k in range(LEVELS[-1] + 1, self.top + 1):
            self.down[str(k)] = Conv(channels[k - 1], channels[k], 3, 2)
        sppf_channels = channels[self.top] if self.down else own_channels[self.top]
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


def create(name: str, **options: Any) -> Any:
    """timm's model with new weights, which gives a list of maps.

    Args:
        name: of timm.
        options: of timm.
    """
    return need("timm").create_model(name, features_only=True, **options)


def has_channels_last(body: nn.Module) -> bool:
    """Whether the maps of timm's model are (B, H, W, C)."""
    return str(getattr(body, "output_fmt", "")).endswith("NHWC")


def map_numbers(name: str, levels: Sequence[int]) -> list[int]:
    """Which of a backbone's maps belong to these levels, by a trial without memory (device `meta`).

    Args:
        name: of timm.
        levels: that it must have.

    Raises:
        InputError: timm is not installed, does not know the name, or the backbone lacks a level.
    """
    option = f"model.network.backbone {PREFIX}{name}"
    known = need("timm", option).list_models()
    model, _, _ = name.partition(".")
    if model not in known:  # timm itself accepts names of files and of hubs too
        raise InputError(f"{option}: timm knows no such model; {nearest(model, known)}")
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"), torch.no_grad():
            body = create(name).eval()
            maps = body(torch.zeros(1, 3, 256, 320))
        strides = body.feature_info.reduction()  # of timm's choice of maps
        all_numbers = body.feature_info.out_indices
        numbers = []
        for level in levels:
            place = len(strides) - 1 - strides[::-1].index(2**level)  # the last of this stride
            shape = maps[place].shape
            sides = shape[1:3] if has_channels_last(body) else shape[2:]
            if sides != (256 >> level, 320 >> level):
                raise ValueError(f"its map of stride {2**level} has the shape {tuple(shape)}")
            numbers.append(all_numbers[place])
    except Exception as e:  # whatever a model raises that has no maps
        strides_text = ", ".join(str(2**level) for level in levels)
        raise InputError(
            f"{option} gives no maps of the strides {strides_text} for images of any size"
            f" ({in_one_line(e)[:200]}); see docs/backbones.md for some that do"
        ) from None
    return numbers
