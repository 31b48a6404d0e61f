"""A trained network from a file: a checkpoint of ours (.ckpt) or YOLOv5's published weights (.pt),
which say what they are. YOLOX's hold no head of ours, and are refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from boltbox.detector.model.network import YOLOv5
from boltbox.detector.model.origin import AGPL, Origin
from boltbox.detector.model.sizes import SIZES
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.rank_zero import rank_zero_print
from boltbox.detector.weights.hyper_parameters import (
    FILES,
    build_network,
    empty_network,
    network_options,
    shapes,
    text_names,
)
from boltbox.detector.weights.origins import origins_of
from boltbox.detector.weights.torch_file import load_torch_file, refused_unless_valid
from boltbox.detector.weights.transfer import averaged
from boltbox.detector.weights.yolov5 import Weights, by_our_names, read_yolov5
from boltbox.detector.weights.yolox import refuse_yolox

DETECTOR = "a checkpoint of a detector"


class TrainedModule(Protocol):
    """What a checkpoint is of: boltbox.detector.training.module.Detector.

    names: of its classes · network · ema: its moving average, None while there is none.
    """

    @property
    def names(self) -> list[str]: ...

    @property
    def network(self) -> YOLOv5: ...

    @property
    def ema(self) -> YOLOv5 | None: ...

    def state_dict(self) -> Mapping[str, Tensor]: ...

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> Any: ...

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None: ...


@dataclass
class Trained:
    """What a file says of a trained network.

    path: the file · names: class names · image_size: longer side in pixels of the training's input
    (of a .pt file: of YOLOv5's own trainings, 640, or 1280 from stride 64 on) · options: what makes
    such a network (NetworkOptions, if the file states it) · tensors: by the network's names, the
    moving average's if there is one · content: of a checkpoint of ours, all that it holds ·
    origins: of the weights.
    """

    path: Path
    names: list[str]
    image_size: int
    options: dict[str, Any]
    tensors: dict[str, Tensor]
    content: dict[str, Any] | None = None
    origins: list[Origin] = field(default_factory=list)

    @cached_property
    def network(self) -> YOLOv5:
        """The network with its weights.

        Raises:
            InputError: the tensors are not those of a network with these options.
        """
        with refused_unless_valid(self.path, DETECTOR):
            network = build_network(len(self.names), self.options)
            network.load_state_dict(self.tensors)
        network.origins = self.origins
        return network

    def arguments(self) -> dict[str, Any]:
        """Arguments of a Detector like the one in the file, by name; its groups of
        options are maps."""
        if self.content is None:
            return {"names": self.names, "network": self.options}
        known = {**self.content["hyper_parameters"], "names": self.names}
        return {name: value for name, value in known.items() if name not in FILES}

    def fill(self, detector: TrainedModule) -> None:
        """Give a detector the file's weights; of a checkpoint of ours network and moving average.

        Raises:
            InputError: its network has other options, or another number of classes.
        """
        if self.content is not None:
            detector.on_load_checkpoint(self.content)
            detector.load_state_dict(self.content["state_dict"])
            return
        here, there = detector.names, self.names
        if len(here) != len(there):
            raise InputError(
                f"{self.path} knows {len(there)} classes, but here there are {len(here)}: use it on"
                " data with its classes, or train it on these with fit --model.start.weights"
                f" {self.path}"
            )
        differing = [i for i, (a, b) in enumerate(zip(here, there, strict=True)) if a != b]
        if differing:
            first = differing[0]
            called = f"'{there[first]}', the data '{here[first]}'"
            rank_zero_print(
                f"warning: {self.path} calls class {first} {called} ({len(differing)} names differ)"
            )
        if shapes(self.tensors) != shapes(detector.network.state_dict()):
            made = ", ".join(f"{key} {value}" for key, value in self.options.items())
            raise InputError(
                f"{self.path} holds a network of {made}: leave out the options of the model that"
                " differ from this"
            )
        detector.network.load_state_dict(self.tensors)
        detector.network.origins = self.origins


def is_published(path: str | Path) -> bool:
    """Whether a name is that of YOLOv5's weights."""
    return Path(path).suffix.lower() in (".pt", ".pth")


def read_trained(path: str | Path) -> Trained:
    """Read a .pt file of YOLOv5, or a checkpoint of ours. Nothing in it is executed.

    Raises:
        InputError: no such file, not a detector, or damaged.
    """
    if is_published(path):
        return _published(Path(path))
    return of_checkpoint(path, load_torch_file(path))


def of_checkpoint(path: str | Path, content: dict[str, Any]) -> Trained:
    """
    Args:
        content: of the file.

    Raises:
        InputError: it has no class names, no hyper-parameters or no tensors.
    """
    with refused_unless_valid(path, DETECTOR):
        known, tensors = content["hyper_parameters"], averaged(content["state_dict"])
        names, size = text_names(known["names"]), int(content.get("image_size", 640))
        origins = origins_of(content)
        return Trained(Path(path), names, size, network_options(known), tensors, content, origins)


def take_anchors(detector: TrainedModule, path: str | Path) -> None:
    """Give a detector the anchors of a file; the classes may be others. A head without anchors
    stays as it is.

    Raises:
        InputError: as `read_trained`, or it has other levels or another number of anchors.
    """
    theirs, ours = read_trained(path).tensors.get("anchors"), detector.network.anchors
    if theirs is None or ours is None:
        return
    if theirs.shape != ours.shape:
        raise InputError(
            f"{path} has anchors of shape {[*theirs.shape]} (levels, anchors a level, 2), but the"
            f" options of the model say {[*ours.shape]}"
        )
    ours.copy_(theirs)


def _published(path: Path) -> Trained:
    """The file says its multiples and its anchors; which levels these belong to is found by
    comparing shapes. Its activation is taken to be SiLU."""
    refuse_yolox(path)
    weights = read_yolov5(path)
    anchors = weights.anchors
    if not 1 <= anchors.shape[1] <= 20:
        raise InputError(f"{path}: these weights hold no anchors, so they are not of a detector")
    for options in _candidates(weights, len(anchors)):
        if anchors.shape[1] != 3:
            options["anchors"] = anchors.shape[1]
        with refused_unless_valid(path, "a YOLOv5 checkpoint"):
            network = empty_network(len(weights.names), options)
        tensors = by_our_names(network, weights)
        if shapes(tensors) == shapes(network.state_dict()):
            size = 640 if network.max_stride == 32 else 1280
            return Trained(
                path, weights.names, size, options, tensors, origins=[Origin(path.name, AGPL)]
            )
    raise InputError(
        f"{path}: no network of ours holds these weights: they are of another topology than our"
        f" sizes ({', '.join(SIZES)})"
    )


def _candidates(weights: Weights, levels: int) -> Iterator[dict[str, Any]]:
    """Options of a network, likely ones first."""
    rows = {name: row for name, row in SIZES.items() if len(row.levels) == levels}
    for name, row in rows.items():
        if weights.multiples in (None, (row.depth, row.width)):
            yield {"size": name}
    if weights.multiples:
        depth, width = weights.multiples
        for own in sorted({row.levels for row in rows.values()}):
            yield {"depth_multiple": depth, "width_multiple": width, "levels": list(own)}
