"""The options of a Detector."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

from boltbox.detector.model.loss import LossOptions
from boltbox.detector.model.network_options import NetworkOptions
from boltbox.detector.training.optimizer import OptimOptions
from boltbox.detector.weights.start import StartOptions

T = TypeVar("T")


class Options(NamedTuple):
    """The options of a Detector; see there."""

    network: NetworkOptions
    loss: LossOptions
    optim: OptimOptions
    start: StartOptions
    literal: bool
    multi_scale: bool
    compile: bool


def as_group(kind: type[T], options: T | Mapping[str, Any]) -> T:
    """A group of options, which a checkpoint holds as a map."""
    return kind(**options) if isinstance(options, Mapping) else options
