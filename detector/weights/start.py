"""Where a training starts: a checkpoint of boltbox, weights of YOLOv5 or YOLOX, or the backbone of
an image classifier; and which layers are frozen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn

from boltbox.detector.data.class_names import same_names
from boltbox.detector.model.head import AnchorHead
from boltbox.detector.model.network import Origin, YOLOv5
from boltbox.detector.model.timm_backbone import TimmBackbone, body_of
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.ranges import CheckedOptions
from boltbox.detector.system.rank_zero import print_fact
from boltbox.detector.system.torch_file import as_input_error, shapes
from boltbox.detector.weights.timm import load_backbone
from boltbox.detector.weights.trained import ANCHORS, DETECTOR, Trained, as_typed, read_weights

Shapes = dict[str, tuple[int, ...]]  # of tensors, by name


class LoadedWeights(NamedTuple):
    """What a network has loaded from a file of weights.

    Attributes:
        has_head: Whether the outputs for boxes and objectness are loaded.
        known_classes: Numbers of the network's classes whose outputs are loaded, because the file
            has a class of the same name.
        line: A sentence on it.
    """

    has_head: bool = False
    known_classes: Sequence[int] = ()
    line: str = ""


@dataclass(frozen=True)
class StartOptions(CheckedOptions):
    """Weights to start from, and layers to freeze.

    Args:
        weights: Pretrained weights: YOLOv5 .pt, YOLOX .pth, or a checkpoint of boltbox.
        backbone_weights: Weights of image classification for a timm backbone: a file (.safetensors,
            .pth), or pretrained: timm fetches its own.
        reuse_head: If weights are for other classes, reuse their head's boxes, objectness and
            classes of the same name; false: the whole head starts fresh, as in YOLOv5.
        freeze: Number of first layers to freeze (10: the backbone), or a list of layers.
    """

    weights: str | Path | None = None
    backbone_weights: str | Path | None = None
    reuse_head: bool = True
    freeze: int | list[int] = 0

    def to_dict(self) -> dict[str, Any]:
        """By name, in plain types that a checkpoint holds, without the files."""
        return {"reuse_head": self.reuse_head, "freeze": self.freeze}

    def load(self, network: YOLOv5, names: Sequence[str], given_anchors: object) -> LoadedWeights:
        """Load the files, if any are named, set the network's `origins`, and print a line per file.

        Args:
            network: Its weights are replaced.
            names: Its classes.
            given_anchors: model.network.anchors; given as boxes, they stay.

        Raises:
            InputError: The files do not fit the network, or are none of these.
        """
        if self.weights and self.backbone_weights:
            raise InputError(
                "model.start.weights and model.start.backbone_weights both hold a backbone. Give"
                " one of them"
            )
        loaded = LoadedWeights()
        if self.weights:
            keep_anchors = not isinstance(given_anchors, int | None)
            loaded = load_weights(network, self.weights, names, keep_anchors, self.reuse_head)
            print_fact("weights", loaded.line)
        if self.backbone_weights:
            if not isinstance(network.backbone, TimmBackbone):
                raise InputError(
                    "model.start.backbone_weights is for a backbone of timm. Name it with"
                    " --model.network.backbone timm/NAME"
                )
            line, origin = load_backbone(network.backbone, self.backbone_weights)
            network.origins = [origin]
            print_fact("weights", line)
        return loaded

    def freeze_layers(self, network: YOLOv5) -> list[nn.Module]:
        """Freeze the parameters of the first layers; of a timm backbone only the body.

        Returns:
            The frozen layers.

        Raises:
            InputError: The network does not have these layers, or no others.
        """
        names = network.layer_names()  # by number, as YOLOv5 counts
        numbers = range(self.freeze) if isinstance(self.freeze, int) else self.freeze
        is_negative = isinstance(self.freeze, int) and self.freeze < 0
        if is_negative or (numbers and not 0 <= min(numbers) <= max(numbers) <= max(names)):
            raise InputError(
                f"model.start.freeze {self.freeze}: the network has the layers 0 to {max(names)}"
            )
        layers = []
        for number in numbers:
            if number in names:
                layer = body_of(network.get_submodule(names[number]))
                layers.append(layer.requires_grad_(False))
        if not any(p.requires_grad for p in network.parameters()):
            raise InputError(f"model.start.freeze {self.freeze}: nothing is left to train")
        return layers


def load_weights(
    network: YOLOv5,
    path: str | Path,
    names: Sequence[str] = (),
    keep_anchors: bool = False,
    reuse_head: bool = False,
) -> LoadedWeights:
    """Load a file into a network, and set its `origins`; of a checkpoint of boltbox the moving
    average, if there is one.

    Args:
        network: Its weights are replaced.
        path: A file of weights.
        names: Classes of the network.
        keep_anchors: Keep the network's anchors instead of loading those of the file.
        reuse_head: Load boxes, objectness and classes of the same name from a head for other
            classes.

    Raises:
        InputError: There is no such file, or its tensors do not fit; the network is unchanged.
    """
    weights = read_weights(path)
    with as_input_error(path, DETECTOR):
        loaded = copy_weights(network, weights, names, keep_anchors, reuse_head)
    network.origins = weights.origins
    if weights.content:  # a checkpoint, which names what it started from
        name = Path(path).name
        network.origins = [Origin(f"{name}, trained from scratch")]
        if weights.origins:
            via = f"via {name}"
            network.origins = [Origin(f"{o.source} {via}", o.licence) for o in weights.origins]
    return loaded._replace(line=f"{path}: {loaded.line}")


class HeadTransfer(Enum):
    """What a network loads from the head of a file."""

    ALL = "all"
    BOXES_AND_KNOWN_CLASSES = "boxes, objectness and classes of the same name"
    NONE = "nothing"


def head_transfer(
    network: YOLOv5, here: Shapes, there: Shapes, shared_classes: dict[int, int], reuse_head: bool
) -> HeadTransfer:
    """What a network can load from the head of a file, whose tensors have the same names.

    Args:
        network: For the classes of the data.
        here: Shapes of its head's tensors.
        there: Shapes of the file's.
        shared_classes: See `shared_classes`.
        reuse_head: Whether a part of the head may be loaded.
    """
    is_reordered = any(k != k_there for k, k_there in shared_classes.items())
    can_reorder = reuse_head and type(network.head) is AnchorHead
    if here == there and not (is_reordered and can_reorder):
        return HeadTransfer.ALL
    class_rows = network.head.num_anchors * network.head.num_classes
    for name in class_tensors(here, there):
        differ_in_rows = here[name][1:] == there[name][1:] and here[name][:1] >= (class_rows,)
        if not differ_in_rows:
            return HeadTransfer.NONE
    return HeadTransfer.BOXES_AND_KNOWN_CLASSES if reuse_head else HeadTransfer.NONE


def copy_weights(
    network: YOLOv5,
    weights: Trained,
    names: Sequence[str],
    keep_anchors: bool,
    reuse_head: bool,
) -> LoadedWeights:
    """Copy all tensors of a file into the network, but those of the head that do not fit.

    Args:
        network: Its weights are replaced.
        weights: Content of the file; its names, or those of the network, may be unknown (empty).
        names: See `load_weights`.
        keep_anchors: See `load_weights`.
        reuse_head: See `load_weights`.

    Raises:
        InputError: Other tensors do not fit; the network is unchanged.
    """
    state = network.state_dict()
    tensors = dict(weights.tensors)
    here = _head_shapes(state)
    there = _head_shapes(tensors)
    is_same_kind = here.keys() == there.keys() and not _differ_in_anchors(state, tensors)
    skipped: set[str] = set()
    if keep_anchors or not is_same_kind:
        skipped.add(ANCHORS)
    shared = shared_classes(weights.names, names)
    known: list[int] = []
    note = ""
    transfer = HeadTransfer.NONE
    if is_same_kind:
        transfer = head_transfer(network, here, there, shared, reuse_head)
    match transfer:
        case HeadTransfer.ALL:
            known = [k for k, k_there in shared.items() if k == k_there]
        case HeadTransfer.BOXES_AND_KNOWN_CLASSES:
            known = list(shared)
            copied = shared if network.head.num_classes > 1 else {}  # a single class is not trained
            for name in class_tensors(here, there):
                tensors[name] = _with_rows(state[name], tensors[name], network, copied)
            note = "; class outputs start from random values, as the classes differ"
            if copied:
                note += f", except {', '.join(weights.names[k] for k in copied.values())}"
        case HeadTransfer.NONE:
            skipped |= there.keys() | here.keys()
            note = "; the head starts from random values, as its classes or its kind differ"
    if weights.activation != network.activation:
        note += f"; the activation is {network.activation}, not {weights.activation} as there"
    loaded = {name: tensor for name, tensor in tensors.items() if name not in skipped}
    differing = shapes(loaded).items() ^ shapes(state).items()
    wrong = {name for name, _ in differing} - skipped
    if wrong:
        raise InputError(
            f"these weights do not fit the network ({len(wrong)} tensors, like {min(wrong)!r}). Its"
            f" network was made with {as_typed(weights.options)}"
        )
    network.load_state_dict(state | loaded)
    line = f"loaded {len(loaded)} of {len(state)} tensors{note}"
    return LoadedWeights(transfer is not HeadTransfer.NONE, known, line)


def shared_classes(names_there: Sequence[str], names_here: Sequence[str]) -> dict[int, int]:
    """Number of a class in the network -> in the file, of classes with the same name."""
    if len(names_there) == 1 and len(names_here) > 1:
        return {}  # the output of a single class is not trained
    return same_names(names_there, names_here)


def class_tensors(here: Shapes, there: Shapes) -> list[str]:
    """Tensors of two heads of one kind whose rows belong to classes: those that differ in shape or,
    in heads for the same number of classes, all."""
    differing = [name for name in there if there[name] != here[name]]
    return differing if differing else list(there)


def _head_shapes(tensors: Mapping[str, Tensor]) -> Shapes:
    return {
        name: shape
        for name, shape in shapes(tensors).items()
        if name.startswith("head.") and name != ANCHORS
    }


def _differ_in_anchors(here: Mapping[str, Tensor], there: Mapping[str, Tensor]) -> bool:
    """Whether both have anchors, and not as many per level."""
    if ANCHORS not in here or ANCHORS not in there:
        return False
    return here[ANCHORS].shape[1] != there[ANCHORS].shape[1]


def _with_rows(here: Tensor, there: Tensor, network: YOLOv5, classes: dict[int, int]) -> Tensor:
    """A weight or bias (A (n + C), ...) of the network's head, where the first n rows of an anchor
    are for box and objectness: these, and those of `classes`, are replaced by the file's."""
    num_anchors = network.head.num_anchors
    rows = here.detach().unflatten(0, (num_anchors, -1)).clone()
    rows_there = there.detach().unflatten(0, (num_anchors, -1))
    n = rows.shape[1] - network.head.num_classes
    rows[:, :n] = rows_there[:, :n]
    for number, number_there in classes.items():
        rows[:, n + number] = rows_there[:, n + number_there]
    return rows.flatten(0, 1)
