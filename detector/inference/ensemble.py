"""Several detectors predict on the same images; suppression then chooses among the rows of all."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from boltbox.detector.inference.rows import Predictor
from boltbox.detector.model.network import YOLOv5
from boltbox.detector.system.errors import InputError
from boltbox.detector.weights.trained import read_trained


class Ensemble:
    """A predictor that joins the rows of several, in their order."""

    def __init__(self, predictors: Sequence[Predictor]) -> None:
        self.predictors = predictors

    def __call__(self, images: Tensor) -> Tensor:
        return torch.cat([predictor(images) for predictor in self.predictors], 1)


def load_member(path: str | Path, names: Sequence[str]) -> YOLOv5:
    """The network of a file, which must know the classes `names`, in this order.

    Raises:
        InputError: no such file, not a detector, or other classes; it says which differ.
    """
    trained = read_trained(path)
    theirs = trained.names
    if theirs != list(names):
        pairs = [(i, a, b) for i, (a, b) in enumerate(zip(names, theirs, strict=False)) if a != b]
        differ = (
            f"class {pairs[0][0]} is '{pairs[0][1]}' here and '{pairs[0][2]}' there"
            if pairs
            else "the first ones agree"
        )
        raise InputError(
            f"model.ensemble {path}: it knows other classes ({len(names)} here, {len(theirs)}"
            f" there; {differ}); detectors of an ensemble must have the same names in the same"
            " order"
        )
    return trained.network
