"""A trained network from a file: a checkpoint of ours (.ckpt) or YOLOv5's published weights (.pt),
which say what they are. YOLOX's hold no head of ours, and are refused."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from boltbox.detector.checkpoint.compatibility import TrainedModule
from boltbox.detector.checkpoint.file import CheckpointFile, read_checkpoint
from boltbox.detector.checkpoint.hyper_parameters import (
    FILES,
    build_network,
    empty_network,
    network_options,
)
from boltbox.detector.checkpoint.origins import origins_of
from boltbox.detector.checkpoint.runs import find_checkpoint
from boltbox.detector.checkpoint.weights import averaged
from boltbox.detector.checkpoint.yolov5_weights import (
    Weights,
    by_our_names,
    read_yolov5,
    unscaled_layers,
)
from boltbox.detector.checkpoint.yolox_weights import refuse_yolox
from boltbox.detector.model.network import YOLOv5
from boltbox.detector.model.origin import AGPL, Origin
from boltbox.detector.model.sizes import SIZES
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.rank_zero import rank_zero_print


@dataclass
class Trained:
    """What a file says of a trained network.

    path: the file · names: class names · image_size: longer side in pixels of the training's input
    (of a .pt file: of YOLOv5's own trainings, 640, or 1280 from stride 64 on) · options: what makes
    such a network (NetworkOptions, if the file states it) · tensors: by the network's names, the
    moving average's if there is one · checkpoint: of a file of ours, all that it holds · origins:
    of the weights.
    """

    path: Path
    names: list[str]
    image_size: int
    options: dict[str, Any]
    tensors: dict[str, Tensor]
    checkpoint: CheckpointFile | None = None
    origins: list[Origin] = field(default_factory=list)

    @cached_property
    def network(self) -> YOLOv5:
        """The network with its weights."""
        network = build_network(len(self.names), self.options)
        network.load_state_dict(self.tensors)
        network.origins = self.origins
        return network

    def arguments(self, constructor: Callable[..., Any]) -> dict[str, Any]:
        """Arguments that make such a module, by name, its groups of options as maps: all that the
        file knows and the constructor takes."""
        known: dict[str, Any] = {"names": self.names, "network": self.options}
        if self.checkpoint:
            known |= self.checkpoint.content["hyper_parameters"]
        taken = inspect.signature(constructor).parameters
        return {name: value for name, value in known.items() if name in taken and name not in FILES}

    def fill(self, detector: TrainedModule) -> None:
        """Give a detector the file's weights; of a checkpoint of ours network and moving average.

        Raises:
            InputError: it is made otherwise, or knows another number of classes.
        """
        if self.checkpoint:
            detector.on_load_checkpoint(self.checkpoint.content)
            detector.load_state_dict(self.checkpoint.content["state_dict"])
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


def read_trained(path: str | Path, constructor: Callable[..., Any] | None = None) -> Trained:
    """Read a .pt file of YOLOv5, or a training checkpoint of ours. Nothing in it is executed.

    Args:
        constructor: see `read_checkpoint`.

    Raises:
        InputError: no such file, not a detector, or damaged.
    """
    return (
        _published(Path(path))
        if is_published(path)
        else _ours(read_checkpoint(Path(path), constructor))
    )


def find_trained(
    ckpt_path: str, run: Path | None, constructor: Callable[..., Any] | None = None
) -> Trained | None:
    """Read what `--ckpt_path` means: `last`, `best`, `auto` (see `find_checkpoint`), a .ckpt file
    or a .pt file.

    Returns:
        None: `auto`, and there is no checkpoint.

    Raises:
        InputError: there is none, or it cannot be read.
    """
    if is_published(ckpt_path):
        return _published(Path(ckpt_path))
    found = find_checkpoint(ckpt_path, run, constructor)
    return found and _ours(found)


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
        (a, b, _), (c, d, _) = theirs.shape, ours.shape
        raise InputError(
            f"{path} has {a} levels of {b} anchors, but the options of the model say {c} levels"
            f" of {d}"
        )
    ours.copy_(theirs)


def shapes(tensors: dict[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def _ours(file: CheckpointFile) -> Trained:
    known, tensors = file.content["hyper_parameters"], averaged(file.content["state_dict"])
    size, origins = file.content.get("image_size", 640), origins_of(file.content)
    return Trained(
        file.path, list(known["names"]), size, network_options(known), tensors, file, origins
    )


def _published(path: Path) -> Trained:
    """The file says its multiples and its anchors; which levels these belong to is found by
    comparing shapes. Its activation is taken to be SiLU."""
    refuse_yolox(path)
    weights = read_yolov5(path)
    anchors = next((t for name, t in weights.state.items() if name.endswith(".anchors")), None)
    if anchors is None or anchors.ndim != 3 or not 1 <= anchors.shape[1] <= 20 or not weights.names:
        raise InputError(
            f"{path}: these weights hold no anchors or no class names, so they are not those of a"
            " detector"
        )
    for options in _candidates(weights, len(anchors)):
        if anchors.shape[1] != 3:
            options["anchors"] = anchors.shape[1]
        network = empty_network(len(weights.names), options)
        tensors = by_our_names(network, weights)
        if shapes(tensors) == shapes(network.state_dict()):
            size = 640 if network.max_stride == 32 else 1280
            return Trained(
                path, weights.names, size, options, tensors, origins=[Origin(path.name, AGPL)]
            )
    reason = unscaled_layers(weights) or (
        f"they are of another topology than our sizes ({', '.join(SIZES)}); start a fit from them,"
        " with options of the model that fit, and use its checkpoint"
    )
    raise InputError(f"{path}: no network of ours holds these weights; {reason}")


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
