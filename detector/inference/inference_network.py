"""The network of a detector as it predicts: fused, in company, or with another predictor in its
place."""

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from boltbox.detector.inference.ensemble import Ensemble
from boltbox.detector.inference.rows import Decoded, Predictor, dtype_of, forward_function
from boltbox.detector.inference.tta import TestTimeAugmentation
from boltbox.detector.model.network import YOLOv5


class InferenceNetwork:
    """What predicts for a detector. It holds copies, and is no module itself: checkpoints do not
    know of it.

    Attributes:
        members: networks that predict together with the detector's own (an ensemble).
        predictor: predicts in the place of the detector's own network, if it is set: an exported
            file.
        fused: a copy of the detector's network with the batch norms folded into the convolutions;
            None: there is none yet.
    """

    def __init__(self, members: Sequence[YOLOv5] = ()) -> None:
        self.members = list(members)
        self.predictor: Predictor | None = None
        self.fused: YOLOv5 | None = None
        # ensemble and test-time augmentation over predictor or network
        self._composed: Predictor | None = None
        self._prepared: tuple[Any, ...] | None = None  # what `prepare` was asked for

    def clear(self) -> None:
        """Predict with the detector's network as it is, until something is made ready."""
        self.fused = self._composed = self._prepared = None

    def fuse(self, network: YOLOv5) -> None:
        """Make the network alone ready."""
        self.clear()
        self.fused = network.fused()

    def prepare(self, network: YOLOv5, tta: bool) -> None:
        """Make the network ready, with the ensemble, and with test-time augmentation if wanted.
        What is ready stays."""
        device, dtype = next(network.parameters()).device, dtype_of(network)
        # torch counts what is written in place
        changes = sum(t._version for t in [*network.parameters(), *network.buffers()])
        wanted = network, tta, device, dtype, changes, self.predictor
        if self.fused is not None and self._prepared == wanted:
            return
        self.fuse(network)
        assert self.fused is not None
        members = [member.to(device, dtype).fused() for member in self.members]
        networks = [self.fused, *members]
        predictors = [
            self.predictor or forward_function(self.fused),
            *map(forward_function, members),
        ]
        if tta:
            predictors = [
                TestTimeAugmentation(predictor, each.head.rows_per_level, each.max_stride)
                for predictor, each in zip(predictors, networks, strict=True)
            ]
        self._composed = Ensemble(predictors) if members else predictors[0] if tta else None
        self._prepared = wanted

    def predict(
        self, network: YOLOv5, images: Tensor, conf: float
    ) -> tuple[Decoded, list[Tensor] | None]:
        """The rows of images (B, 3, H, W): all, or those with objectness above `conf`; and the raw
        prediction, if it is that of one network in one pass. In the autocast that is on, except
        that of bfloat16: its 8 bits are too few for confidences.

        Args:
            network: predicts if nothing was made ready.
        """
        device = images.device.type
        low = torch.get_autocast_dtype(device) == torch.bfloat16
        with torch.autocast(device, enabled=False) if low else contextlib.nullcontext():
            predictor = self._composed or self.predictor
            if predictor is not None:
                return predictor(images), None
            chosen = self.fused or network
            raw = [maps.float() for maps in chosen(images.to(dtype_of(chosen)))]
        return chosen.head.candidates(raw, conf), raw
