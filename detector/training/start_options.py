"""The options of what a training starts from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from boltbox.detector.model.network import YOLOv5
from boltbox.detector.model.timm_backbone import body_of
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.rank_zero import rank_zero_print
from boltbox.detector.weights.hyper_parameters import FILES
from boltbox.detector.weights.start import start


@dataclass
class StartOptions:
    """What it starts from, and which of that stays.

    Args:
        weights: Weights to start from: a YOLOv5 .pt file, a YOLOX .pth file or a checkpoint of
            ours.
        backbone_weights: Weights of image classification for a timm backbone: a file (.safetensors,
            .pth), or pretrained: timm fetches its own.
        reuse_head: Where weights are for other classes, take their head's boxes and objectness too;
            false: the whole head starts fresh, as in YOLOv5.
        freeze: Number of first YOLOv5 layers to freeze (10: the backbone), or a list of layer
            numbers.
    """

    weights: str | None = None
    backbone_weights: str | None = None
    reuse_head: bool = True
    freeze: int | list[int] = 0

    def plain(self) -> dict[str, Any]:
        """By name, in plain types that a checkpoint holds, without the files."""
        return {name: value for name, value in vars(self).items() if name not in FILES}

    def load(self, network: YOLOv5, keep_anchors: bool) -> None:
        """Start a network from the files, if any are given; prints a line for each.

        Raises:
            InputError: the files do not fit the network, or are none of these.
        """
        files = self.weights, self.backbone_weights
        for line in start(network, *files, keep_anchors, self.reuse_head):
            rank_zero_print(line)

    def frozen(self, network: YOLOv5) -> list[nn.Module]:
        """The layers that stay as they are: of a timm backbone the body alone. Their parameters are
        marked.

        Raises:
            InputError: layers that the network does not have.
        """
        names = network.layer_names()  # by number, as YOLOv5 counts
        numbers = range(self.freeze) if isinstance(self.freeze, int) else self.freeze
        if numbers and not 0 <= min(numbers) <= max(numbers) <= max(names):
            raise InputError(
                f"model.start.freeze {self.freeze}: the network has the layers 0 to {max(names)}"
            )
        layers = [body_of(network.get_submodule(names[i])) for i in numbers if i in names]
        return [layer.requires_grad_(False) for layer in layers]
