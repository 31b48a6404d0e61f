"""Layers that a training leaves as they are: for the whole run, for its first epochs, or their
batch norm only."""

from __future__ import annotations

from torch.nn.modules.batchnorm import _BatchNorm

from boltbox.detector.model.network import YOLOv5
from boltbox.detector.model.timm_backbone import body_of
from boltbox.detector.system.errors import InputError


class FrozenLayers:
    """What model.start.freeze, freeze_epochs, freeze_bn and freeze_backbone_bn ask for.

    Args:
        network: whose layers for the whole run are marked here.
        freeze: number of first layers, or a list of layer numbers, as of YOLOv5
            (`YOLOv5.layer_names`); of a timm backbone the body alone.
        epochs: that they are frozen for; None: all. Until then they are computed as ever, gradients
            too, so that processes agree on what there is to exchange; the gradients are dropped.
        batch_norm: statistics of frozen layers stay too.
        backbone_batch_norm: statistics, factors and offsets of batch norm within the backbone stay
            for the whole run.

    Raises:
        InputError: layers that the network does not have.
    """

    def __init__(
        self,
        network: YOLOv5,
        freeze: int | list[int],
        epochs: int | None,
        batch_norm: bool,
        backbone_batch_norm: bool,
    ) -> None:
        layers = network.layer_names()
        numbers = list(range(freeze)) if isinstance(freeze, int) else freeze
        if numbers and not 0 <= min(numbers) <= max(numbers) <= max(layers):
            raise InputError(
                f"model.start.freeze {freeze}: the network has the layers 0 to {max(layers)}"
            )
        if epochs is not None and not numbers:
            raise InputError(
                "model.start.freeze_epochs: say which layers with model.start.freeze; 10 is the"
                " backbone"
            )
        self.layers = [body_of(network.get_submodule(layers[i])) for i in numbers if i in layers]
        self.epochs, self.batch_norm = epochs, batch_norm
        norms = [m for m in body_of(network.backbone).modules() if isinstance(m, _BatchNorm)]
        self.norms = norms if backbone_batch_norm else []
        for module in [*(self.layers if epochs is None else []), *self.norms]:
            module.requires_grad_(False)

    def start_epoch(self, epoch: int) -> None:
        """Put batch norm into the mode of the epoch."""
        if self.batch_norm:
            for module in self.layers:
                module.train(not self._hold_in(epoch))
        for norm in self.norms:
            norm.eval()

    def drop_gradients(self, epoch: int) -> None:
        """After a backward pass: of layers that are frozen for a while the optimizer sees no
        gradients."""
        if self.epochs is not None and self._hold_in(epoch):
            for module in self.layers:
                module.zero_grad()

    def _hold_in(self, epoch: int) -> bool:
        return self.epochs is None or epoch < self.epochs
