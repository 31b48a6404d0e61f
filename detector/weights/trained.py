"""A trained network from a file: a checkpoint of ours (.ckpt) or YOLOv5's published weights (.pt),
which say what they are; or the backbone and neck of one of YOLOX."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import product
from os.path import isdir
from pathlib import Path
from typing import Any

from torch import Tensor

from boltbox.detector.data.images import MAX_SIDE
from boltbox.detector.model.network import SIZES, YOLOv5
from boltbox.detector.model.network_options import NetworkOptions, empty_network
from boltbox.detector.model.origin import AGPL, Origin, origins_of
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.rank_zero import rank_zero_print
from boltbox.detector.weights.torch_file import (
    load_torch_file,
    not_finite,
    refused_unless_valid,
    shapes,
)
from boltbox.detector.weights.yolov5 import (
    ALLOWED,
    Weights,
    by_our_names,
    text_names,
    yolov5_weights,
)
from boltbox.detector.weights.yolox import LICENCE, options_for, yolox_tensors

ANCHORS = "head.anchors"  # which a head for other classes may take
DETECTOR = "a checkpoint of a detector"


@dataclass
class Trained:
    """What a file says of a trained network.

    path: the file · names: class names · image_size: longer side in pixels of the training's input
    (of a .pt file: of YOLOv5's own trainings, 640, or 1280 from stride 64 on) · options: what makes
    such a network (NetworkOptions, if the file states it) · tensors: by the network's names, the
    moving average's if there is one · origins: of the weights · content: of a checkpoint of ours,
    all that it holds · thresholds: of each class the confidence of the best F1 in its validation.
    """

    path: Path
    names: list[str]
    image_size: int
    options: dict[str, Any]
    tensors: dict[str, Tensor]
    origins: list[Origin]
    content: dict[str, Any] | None = None
    thresholds: list[float] | None = None

    @cached_property
    def network(self) -> YOLOv5:
        """The network with its weights.

        Raises:
            InputError: the tensors are not those of a network with these options.
        """
        with refused_unless_valid(self.path, DETECTOR):
            network = NetworkOptions(**self.options).build(len(self.names))
            self._fill(network)
        return network

    def arguments(self) -> dict[str, Any]:
        """Arguments of a Detector like the one in the file, by name; its groups of options are
        maps."""
        if self.content is None:
            return {"names": self.names, "network": self.options}
        return {**self.content["hyper_parameters"], "names": self.names}

    def fill(self, network: YOLOv5, names: list[str]) -> None:
        """Give a network for these classes the file's weights.

        Raises:
            InputError: it has other options, or another number of classes.
        """
        if len(names) != len(self.names):
            raise InputError(
                f"{self.path} knows {len(self.names)} classes, but here there are {len(names)}: use"
                " it on data with its classes, or train it on these with fit --model.start.weights"
                f" {self.path}"
            )
        pairs = enumerate(zip(names, self.names, strict=True))
        differing = [(i, here, there) for i, (here, there) in pairs if here != there]
        if differing:
            i, here, there = differing[0]
            rank_zero_print(
                f"warning: {self.path} calls class {i} '{there}', the data '{here}'"
                f" ({len(differing)} names differ)"
            )
        if shapes(self.tensors) != shapes(network.state_dict()):
            raise InputError(
                f"{self.path} holds a network made with {as_typed(self.options)}: leave out the"
                " options of the model that differ from this"
            )
        self._fill(network)

    def _fill(self, network: YOLOv5) -> None:
        self.refuse_not_finite()
        network.load_state_dict(self.tensors)
        network.origins = self.origins

    def refuse_not_finite(self) -> None:
        """Raises InputError if a tensor holds NaN or infinity: its network would find nothing."""
        if name := not_finite(self.tensors):
            raise InputError(
                f"{self.path}: {name} is not finite; give a checkpoint from before the training"
                " diverged"
            )


def is_published(path: str | Path) -> bool:
    """Whether a name is that of YOLOv5's weights."""
    return Path(path).suffix.lower() in (".pt", ".pth")


def read_trained(path: str | Path) -> Trained:
    """Read a checkpoint of ours, a run folder's best or, without one, its last, or a file of
    YOLOv5. Nothing in it is executed.

    Raises:
        InputError: no such file, not a detector, or damaged.
    """
    trained = read_weights(path)
    if not trained.names:
        raise InputError(
            f"{path}: YOLOX's weights are no whole detector: train one from them with fit"
            f" --model.start.weights {path} {as_typed(trained.options)}, and use its checkpoint"
        )
    return trained


def read_weights(path: str | Path) -> Trained:
    """The same, or a file of YOLOX: without class names, its head by YOLOX's names."""
    path = Path(path)
    if isdir(path):
        names = [f"checkpoints/{name}.ckpt" for name in ("best", "last")]
        found = [path / name for name in names if (path / name).is_file()]
        if not found:
            raise InputError(f"{path}: no run folder (it has no {names[0]}); give a checkpoint")
        path = found[0]
    is_ours = path.suffix == ".ckpt"
    content = load_torch_file(path, () if is_ours else ALLOWED)
    if is_ours or ("state_dict" in content and not is_published(path)):
        return of_checkpoint(path, content)
    tensors = yolox_tensors(path, content)
    if tensors is None:
        return _published(path, yolov5_weights(path, content))
    return Trained(path, [], 640, options_for(tensors), tensors, [Origin(path.name, LICENCE)])


def of_checkpoint(path: Path, content: dict[str, Any]) -> Trained:
    """
    Args:
        content: of the file.

    Raises:
        InputError: it has no class names, no hyper-parameters or no tensors.
    """
    with refused_unless_valid(path, DETECTOR):
        known, tensors = content["hyper_parameters"], content["state_dict"]
        image_size = int(content.get("image_size", 640))
        if not 1 <= image_size <= MAX_SIDE:
            raise InputError(
                f"image_size {image_size} is not within 1 to {MAX_SIDE}; give another file"
            )
        prefix = "ema." if any(name.startswith("ema.") for name in tensors) else "network."
        return Trained(
            path,
            text_names(known["names"]),
            image_size,
            {name: value for name, value in known.get("network", {}).items() if value is not None},
            {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)},
            origins_of(content),
            content,
            [*map(float, content.get("thresholds") or [])] or None,
        )


def as_typed(options: dict[str, Any]) -> str:
    """The size, and what differs from the defaults.

    >>> as_typed({"size": "n", "activation": "silu", "width_multiple": 0.5})
    '--model.network.size n --model.network.width_multiple 0.5'
    """
    defaults = vars(NetworkOptions()) | {"size": None}
    return " ".join(
        f"--model.network.{name} {str(value).replace(' ', '')}"
        for name, value in options.items()
        if value != defaults.get(name)
    )


def take_anchors(network: YOLOv5, path: str | Path) -> None:
    """Give a network the anchors of a file; the classes may be others. A head without anchors stays
    as it is.

    Raises:
        InputError: as `read_trained`, or it has other levels or another number of anchors.
    """
    theirs, ours = read_trained(path).tensors.get(ANCHORS), network.anchors
    if theirs is None or ours is None:
        return
    if theirs.shape != ours.shape:
        raise InputError(
            f"{path} has anchors of shape {[*theirs.shape]} (levels, anchors a level, 2), but the"
            f" options of the model say {[*ours.shape]}"
        )
    ours.copy_(theirs)


def _published(path: Path, weights: Weights) -> Trained:
    """The file says its multiples and its anchors; which levels these belong to is found by
    comparing shapes. Its activation is taken to be SiLU."""
    anchors = next((t for n, t in weights.state.items() if n.endswith(".anchors")), Tensor())
    if anchors.ndim != 3 or not 1 <= anchors.shape[1] <= 20:
        raise InputError(f"{path}: these weights hold no anchors, so they are not of a detector")
    sizes = [name for name, row in SIZES.items() if len(row.levels) == len(anchors)]
    for multiples, name in product((dict[str, float](), weights.multiples), sizes):
        options: dict[str, Any] = {"size": name, **multiples}
        if anchors.shape[1] != 3:
            options["anchors"] = anchors.shape[1]
        with refused_unless_valid(path, "a YOLOv5 checkpoint"):
            network = empty_network(len(weights.names), options)
        tensors = by_our_names(network, weights)
        if shapes(tensors) == shapes(network.state_dict()):
            size = 640 if network.max_stride == 32 else 1280
            origins = [Origin(path.name, AGPL)]
            return Trained(path, weights.names, size, options, tensors, origins)
    raise InputError(
        f"{path}: no network of ours holds these weights: they are of another topology than our"
        f" sizes ({', '.join(SIZES)})"
    )
