"""The options of what a training starts from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from boltbox.detector.model.network import YOLOv5
from boltbox.detector.system.ranges import check_ranges
from boltbox.detector.system.rank_zero import rank_zero_print
from boltbox.detector.training.freezing import FrozenLayers
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
        class_prior: Starting bias of the classes: all alike, or by their frequency in the training
            labels.
        freeze: Number of first YOLOv5 layers to freeze (10: the backbone), or a list of layer
            numbers.
        freeze_epochs: First epochs that freeze holds for; default: all.
        freeze_backbone_bn: Batch norm of the backbone stays as it was loaded, statistics and all;
            the rest of it is trained.
    """

    weights: str | None = None
    backbone_weights: str | None = None
    reuse_head: bool = True
    class_prior: Literal["uniform", "frequency"] = "uniform"
    freeze: int | list[int] = 0
    freeze_epochs: int | None = None
    freeze_backbone_bn: bool = False

    def __post_init__(self) -> None:
        check_ranges(vars(self), "model.start")

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

    def frozen(self, network: YOLOv5, literal: bool) -> FrozenLayers:
        """The layers that stay as they are.

        Args:
            literal: as YOLOv5: batch norm statistics of frozen layers move.

        Raises:
            InputError: layers that the network does not have.
        """
        layers = self.freeze, self.freeze_epochs, not literal, self.freeze_backbone_bn
        return FrozenLayers(network, *layers)
