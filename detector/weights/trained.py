"""A trained network from a file: a boltbox checkpoint (.ckpt) or YOLOv5's published weights (.pt),
which say what they are; or the backbone and neck of one of YOLOX."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from os.path import isdir
from pathlib import Path
from typing import Any

from torch import Tensor

from boltbox.detector.data.images import MAX_SIDE
from boltbox.detector.data.inputs.tiles import Tiles, tiles_of
from boltbox.detector.model.network import SIZES, NetworkOptions, Origin, YOLOv5, empty_network
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.ranges import check_arguments
from boltbox.detector.system.rank_zero import rank_zero_print
from boltbox.detector.system.torch_file import (
    as_input_error,
    load_torch_file,
    not_finite,
    shapes,
    text_names,
)
from boltbox.detector.weights.published import AGPL, local_file
from boltbox.detector.weights.yolov5 import ALLOWED, Weights, by_our_names, yolov5_weights
from boltbox.detector.weights.yolox import LICENCE, options_for, yolox_tensors

ANCHORS = "head.anchors"  # which a head for other classes may take
DETECTOR = "a checkpoint of a detector"
CONFIG = "config.json"  # of a folder of save_pretrained, with
TENSORS = "model.safetensors"
LIBRARY = "boltbox"
MAX_CONFIG = 10_000_000  # bytes
ADVICE = (
    "leave out the options that differ from its own, or start from its weights with"
    " --model.start.weights"
)
# what a checkpoint holds that a training can continue from
TRAINING_PARTS = {"state_dict", "hyper_parameters", "optimizer_states", "loops", "callbacks"}


@dataclass
class Trained:
    """A trained network in a file.

    Attributes:
        path: The file.
        names: Class names.
        image_size: Longer side of the training's input in pixels; of a .pt file that of YOLOv5's
            own trainings: 640, or 1280 if the largest stride is 64.
        options: Those that make such a network (NetworkOptions), as far as the file states them.
        tensors: Those of the moving average, if there is one, by the network's names.
        origins: What the weights started from.
        content: All that a boltbox checkpoint holds; None: the file is not one.
        thresholds: Per class the confidence of the best F1 in its validation.
        tiles: That it was trained on.
    """

    path: Path
    names: list[str]
    image_size: int
    options: dict[str, Any]
    tensors: dict[str, Tensor]
    origins: list[Origin]
    content: dict[str, Any] | None = None
    thresholds: list[float] | None = None
    tiles: Tiles | None = None

    @cached_property
    def network(self) -> YOLOv5:
        """The network with its weights.

        Raises:
            InputError: the tensors are not those of a network with these options.
        """
        with as_input_error(self.path, DETECTOR):
            network = NetworkOptions(**self.options).build(len(self.names))
            self._fill(network)
        return network

    @property
    def activation(self) -> str:
        """Of its network."""
        return self.options.get("activation", "silu")

    @property
    def training_content(self) -> dict[str, Any] | None:
        """`content`, if a training can continue from it."""
        if self.content is None or not self.content.keys() >= TRAINING_PARTS:
            return None
        return self.content

    def arguments(self) -> dict[str, Any]:
        """Arguments of a Detector like the one in the file, by name; its groups of options are
        maps."""
        if self.content is None:
            return {"names": self.names, "network": self.options}
        return self.content["hyper_parameters"] | {"names": self.names}

    def fill(self, network: YOLOv5, names: list[str]) -> None:
        """Load the file's weights into a network.

        Args:
            network: Its weights are replaced.
            names: Its classes.

        Raises:
            InputError: the network has other options, or another number of classes.
        """
        if len(names) != len(self.names):
            raise InputError(
                f"{self.path} has {len(self.names)} classes, the data {len(names)}: use it on data"
                " with its classes, or train it on these with fit --model.start.weights"
                f" {self.path}"
            )
        differing = [i for i, name in enumerate(names) if name != self.names[i]]
        if differing:
            i = differing[0]
            rank_zero_print(
                f"warning: {self.path} calls class {i} '{self.names[i]}', the data '{names[i]}'"
                f" ({len(differing)} names differ)"
            )
        differs = shapes(self.tensors) != shapes(network.state_dict())
        if differs or self.activation != network.activation:
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
        name = not_finite(self.tensors)
        if name:
            raise InputError(
                f"{self.path}: {name} is not finite; give a checkpoint from before the training"
                " diverged"
            )


def is_published(path: str | Path) -> bool:
    """Whether a file of this name holds published weights.

    Args:
        path: The file, which need not be there.
    """
    return Path(path).suffix.lower() in (".pt", ".pth")


def read_trained(path: str | Path) -> Trained:
    """Read a boltbox checkpoint, a run folder's best or, without one, its last, a folder of
    save_pretrained, or a file of YOLOv5. Nothing in it is executed.

    Args:
        path: The file or the folder.

    Returns:
        The network in it.

    Raises:
        InputError: no such file, not a detector, or damaged.
    """
    check_arguments(read_trained, locals())
    trained = read_weights(path)
    if not trained.names:
        raise InputError(
            f"{path}: YOLOX's weights are no whole detector: train one from them with fit"
            f" --model.start.weights {path} {as_typed(trained.options)}, and use its checkpoint"
        )
    return trained


def read_weights(path: str | Path) -> Trained:
    """The same, or a file of YOLOX: without class names, its head by YOLOX's names.

    Args:
        path: The file or the folder.

    Returns:
        The network in it.
    """
    path = Path(path)
    if (path / CONFIG).is_file() and (path / TENSORS).is_file():
        return _of_folder(path)
    if isdir(path):
        path = _checkpoint_of(path)
    if path.suffix == ".ckpt":
        return of_checkpoint(path, load_torch_file(path))
    content = load_torch_file(local_file(path), ALLOWED)
    if "state_dict" in content:
        return of_checkpoint(path, content)
    tensors = yolox_tensors(path, content)
    if tensors is None:
        return _yolov5(path, yolov5_weights(path, content))
    return Trained(path, [], 640, options_for(tensors), tensors, [Origin(path.name, LICENCE)])


def _of_folder(folder: Path) -> Trained:
    """The network of a folder of save_pretrained."""
    with as_input_error(folder, "a folder of save_pretrained"):
        config = folder / CONFIG
        if config.stat().st_size > MAX_CONFIG:
            raise InputError(f"{CONFIG} is too large. Give another folder")
        content = json.loads(config.read_bytes())
        if content.get("library_name") != LIBRARY:
            raise InputError("not a detector of boltbox. Give another folder")
        content["state_dict"] = load_torch_file(folder / TENSORS)
    return of_checkpoint(folder, content)


def _checkpoint_of(run: Path) -> Path:
    """The best checkpoint of a run folder or, without one, the last."""
    for name in ("best", "last"):
        path = run / f"checkpoints/{name}.ckpt"
        if path.is_file():
            return path
    raise InputError(f"{run}: no run folder (it has no checkpoints/best.ckpt); give a checkpoint")


def of_checkpoint(path: Path, content: dict[str, Any]) -> Trained:
    """The network of a boltbox checkpoint.

    Args:
        path: The file.
        content: What it holds.

    Raises:
        InputError: it has no class names, no hyper-parameters or no tensors.
    """
    with as_input_error(path, DETECTOR):
        arguments = content["hyper_parameters"]
        image_size = int(content.get("image_size", 640))
        if not 1 <= image_size <= MAX_SIDE:
            raise InputError(
                f"image_size {image_size} is not within 1 to {MAX_SIDE}; give another file"
            )
        options = arguments.get("network", {})
        state = content["state_dict"]
        prefix = "ema." if any(name.startswith("ema.") for name in state) else "network."
        thresholds = content.get("thresholds")
        tiles = content.get("tiles")
        return Trained(
            path,
            text_names(arguments["names"]),
            image_size,
            {name: value for name, value in options.items() if value is not None},
            {n.removeprefix(prefix): t for n, t in state.items() if n.startswith(prefix)},
            origins_of(content),
            content,
            [float(value) for value in thresholds] if thresholds else None,
            tiles_of(tiles) if tiles else None,
        )


def origins_of(content: dict[str, Any]) -> list[Origin]:
    """What a checkpoint's network started from, as far as the checkpoint states it.

    Args:
        content: What the checkpoint holds.
    """
    entries = content.get("origins", [{"source": "an unrecorded source"}])
    return [Origin(**entry) for entry in entries]


def check_network(
    checkpoint: Mapping[str, Any], names: Sequence[str], tensors: dict[str, Tensor], activation: str
) -> None:
    """Compare the classes, tensors and activation of a Detector with those of the checkpoint that
    it continues from.

    Args:
        checkpoint: Its content.
        names: Class names of the Detector.
        tensors: Of the Detector.
        activation: Of its network.

    Raises:
        InputError: They are others.
    """
    with as_input_error("the checkpoint", DETECTOR):
        arguments = checkpoint["hyper_parameters"]
        saved_names = arguments["names"]
        saved = arguments.get("network")
        saved_activation = activation  # options given to load_from_checkpoint take its place
        if isinstance(saved, Mapping):
            saved_activation = saved.get("activation", "silu")
        different = shapes(checkpoint["state_dict"]).items() ^ shapes(tensors).items()
    if saved_names != names:
        raise InputError(
            f"the checkpoint knows the classes {saved_names}, but here they are {names}: to train"
            " on these, start from its weights with --model.start.weights; if only the names"
            " differ, the command strip renames them"
        )
    if different and all(name.startswith("ema.") for name, _ in different):
        raise InputError(
            "the checkpoint holds no moving average of the weights, as its run kept none: give"
            " --ema.enabled false (in a script EMA(enabled=False)), or start from its weights with"
            " --model.start.weights"
        )
    if different:
        raise InputError(
            f"the checkpoint does not fit this network ({len(dict(different))} tensors, like"
            f" {min(different)[0]}): {ADVICE}"
        )
    if saved_activation != activation:
        raise InputError(
            f"the checkpoint's activation is {saved_activation}, not {activation}: {ADVICE}"
        )


def as_typed(options: dict[str, Any]) -> str:
    """The options of a network as they are typed: its size, and what differs from the defaults.

    Args:
        options: Of a network, by name.

    >>> as_typed({"size": "n", "activation": "silu", "width_multiple": 0.5})
    '--model.network.size n --model.network.width_multiple 0.5'
    """
    defaults = vars(NetworkOptions()) | {"size": None}
    words = []
    for name, value in options.items():
        if value != defaults.get(name):
            text = str(value).replace(" ", "")
            words.append(f"--model.network.{name} {text}")
    return " ".join(words)


def _yolov5(path: Path, weights: Weights) -> Trained:
    """A file of YOLOv5 states its anchors, and may state its multiples and its activation, else
    SiLU; its size is that whose network has tensors of the same shapes."""
    anchors = Tensor()
    for name, tensor in weights.state.items():
        if name.endswith(".anchors"):
            anchors = tensor
            break
    if anchors.ndim != 3:
        raise InputError(f"{path}: these weights hold no anchors, so they are not of a detector")
    per_level = None if anchors.shape[1] == 3 else anchors.shape[1]
    stated = {"anchors": per_level, "activation": weights.activation}
    candidates: list[dict[str, Any]] = []
    for multiples in ({}, weights.multiples):
        for size, row in SIZES.items():
            if len(row.levels) == len(anchors):
                candidates.append({"size": size} | multiples | stated)
    for options in candidates:
        with as_input_error(path, "a YOLOv5 checkpoint"):
            network = empty_network(len(weights.names), options)
        tensors = by_our_names(network, weights.state)
        if shapes(tensors) == shapes(network.state_dict()):
            image_size = 640 if network.max_stride == 32 else 1280
            origins = [Origin(path.name, AGPL)]
            return Trained(path, weights.names, image_size, options, tensors, origins)
    raise InputError(
        f"{path}: no network of boltbox has these weights: their topology is none of"
        f" {', '.join(SIZES)}"
    )
