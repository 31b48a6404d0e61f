"""What a training starts from: a checkpoint of ours, a file of YOLOX or YOLOv5, or an image
classifier's backbone; and which of it stays as it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn

from boltbox.detector.data.class_names import same_names
from boltbox.detector.model.head import AnchorHead
from boltbox.detector.model.network import YOLOv5
from boltbox.detector.model.origin import passed_on
from boltbox.detector.model.timm_backbone import TimmBackbone, body_of
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.rank_zero import print_fact
from boltbox.detector.weights.timm import load_backbone
from boltbox.detector.weights.torch_file import as_input_error, shapes
from boltbox.detector.weights.trained import ANCHORS, DETECTOR, Trained, as_typed, read_weights


class LoadedWeights(NamedTuple):
    """What a network has loaded from a file of weights.

    Attributes:
        line: A sentence on it.
        has_head: Whether the outputs for boxes and objectness are loaded.
        known_classes: Numbers of the network's classes whose outputs are loaded, because the file
            has a class of the same name.
    """

    line: str
    has_head: bool = False
    known_classes: Sequence[int] = ()


@dataclass
class StartOptions:
    """What it starts from, and which of that stays.

    Args:
        weights: Pretrained weights: YOLOv5 .pt, YOLOX .pth, or a checkpoint of boltbox.
        backbone_weights: Weights of image classification for a timm backbone: a file (.safetensors,
            .pth), or pretrained: timm fetches its own.
        reuse_head: Where weights are for other classes, take their head's boxes, objectness and
            classes of the same name too; false: the whole head starts fresh, as in YOLOv5.
        freeze: Number of first layers to freeze (10: the backbone), or a list of layers.
    """

    weights: str | None = None
    backbone_weights: str | None = None
    reuse_head: bool = True
    freeze: int | list[int] = 0

    def to_dict(self) -> dict[str, Any]:
        """By name, in plain types that a checkpoint holds, without the files."""
        return {"reuse_head": self.reuse_head, "freeze": self.freeze}

    def load(self, network: YOLOv5, names: Sequence[str], keep_anchors: bool) -> LoadedWeights:
        """Start a network from the files, if any are given, and note them in its `origins`; prints
        a line for each. names: of its classes.

        Raises:
            InputError: the files do not fit the network, or are none of these.
        """
        if self.weights and self.backbone_weights:
            raise InputError(
                "model.start.weights starts the backbone too: give it or"
                " model.start.backbone_weights, not both"
            )
        loaded = LoadedWeights("")
        if self.weights:
            loaded = load_weights(network, self.weights, names, keep_anchors, self.reuse_head)
            print_fact("weights", loaded.line)
        if self.backbone_weights:
            if not isinstance(network.backbone, TimmBackbone):
                raise InputError(
                    "model.start.backbone_weights is for an image backbone of timm: name it with"
                    " --model.network.backbone timm/NAME"
                )
            line, origin = load_backbone(network.backbone, self.backbone_weights)
            network.origins = [origin]
            print_fact("weights", line)
        return loaded

    def frozen(self, network: YOLOv5) -> list[nn.Module]:
        """The layers that stay as they are: of a timm backbone the body alone. Their parameters are
        marked.

        Raises:
            InputError: layers that the network does not have.
        """
        names = network.layer_names()  # by number, as YOLOv5 counts
        numbers = range(self.freeze) if isinstance(self.freeze, int) else self.freeze
        if numbers and not 0 <= min(numbers) <= max(numbers) <= max(names):
            raise InputError(
                f"model.start.freeze {self.freeze}: the network has the layers 0 to {max(names)}"
            )
        layers = [body_of(network.get_submodule(names[i])) for i in numbers if i in names]
        frozen = [layer.requires_grad_(False) for layer in layers]
        if not any(p.requires_grad for p in network.parameters()):
            raise InputError(f"model.start.freeze {self.freeze}: nothing is left to train")
        return frozen


def load_weights(
    network: YOLOv5,
    path: str | Path,
    names: Sequence[str] = (),
    keep_anchors: bool = False,
    reuse_head: bool = False,
) -> LoadedWeights:
    """Start a network from a file, and note the file in its `origins`; of a checkpoint of ours its
    moving average is taken, if it has one.

    Args:
        names: of the network's classes.
        keep_anchors: leave the file's anchors out, because the network has been given its own.
        reuse_head: of a head for other classes take boxes, objectness, and classes of the same
            name.

    Raises:
        InputError: no such file, or its tensors are of another size or topology; the network is as
            it was.
    """
    weights = read_weights(path)
    with as_input_error(path, DETECTOR):
        loaded = copy_weights(network, weights, names, keep_anchors, reuse_head)
    network.origins = passed_on(weights.origins, path) if weights.content else weights.origins
    return loaded._replace(line=f"{path}: {loaded.line}")


def copy_weights(
    network: YOLOv5,
    weights: Trained,
    names: Sequence[str],
    keep_anchors: bool,
    reuse_head: bool,
) -> LoadedWeights:
    """Copy tensors into the network; every one must find its place, except the head's if the number
    of classes, or the kind of head, differs.

    Args:
        weights: what the file holds; its names, or those of this network, may be unknown (empty).
        names, keep_anchors, reuse_head and raises: see `load_weights`.
    """
    given, fresh, anchors = weights.tensors, network.state_dict(), network.anchors
    head, own_head = (
        {
            name: shape
            for name, shape in shapes(tensors).items()
            if name.startswith("head.") and name != ANCHORS
        }
        for tensors in (given, fresh)
    )
    same_kind = head.keys() == own_head.keys()
    if anchors is not None and ANCHORS in given:
        same_kind &= given[ANCHORS].shape[1] == anchors.shape[1]
    whole, pairs = same_kind and head == own_head, same_names(weights.names, names)
    if len(weights.names) == 1 < network.num_classes:
        pairs = {}  # the row of a single class is not trained
    of_classes = [name for name in head if head[name] != own_head.get(name)]
    moved = any(here != there for here, there in pairs.items())
    if whole and reuse_head and moved and type(network.head) is AnchorHead:
        whole, of_classes = False, [*head]  # as many classes, in another order
    left_out = set() if same_kind and not keep_anchors else {ANCHORS}
    note = "; anchors: those of model.network.anchors" if keep_anchors and same_kind else ""
    least = network.head.num_anchors * network.num_classes  # rows of a tensor of classes
    in_rows = same_kind and all(
        head[name][1:] == own_head[name][1:] and own_head[name][:1] >= (least,)
        for name in of_classes
    )
    kept = whole or (in_rows and reuse_head)
    if kept and not whole:
        rows = pairs if network.num_classes > 1 else {}  # nor is it here
        given = given | {
            name: _with_rows(fresh[name], given[name], network, rows) for name in of_classes
        }
        note += "; class outputs start from random values, as the classes differ"
        note += f", except {', '.join(weights.names[k] for k in rows.values())}" if rows else ""
    elif not whole:
        left_out |= head.keys() | own_head.keys()
        note += "; the head starts from random values, as its classes or its kind differ"
    given = {name: tensor for name, tensor in given.items() if name not in left_out}
    wrong = {name for name, _ in shapes(given).items() ^ shapes(fresh).items()} - left_out
    if wrong:
        raise InputError(
            f"these weights do not fit the network ({len(wrong)} tensors, like {min(wrong)!r}); its"
            f" network was made with {as_typed(weights.options)}"
        )
    network.load_state_dict({**fresh, **given})
    line = f"loaded {len(given)} of {len(fresh)} tensors{note}"
    trained = [k for k, theirs in pairs.items() if kept and (k == theirs or not whole)]
    return LoadedWeights(line, kept, trained)


def _with_rows(fresh: Tensor, given: Tensor, network: YOLOv5, pairs: dict[int, int]) -> Tensor:
    """A head's (A (n + C), ...) weight or bias, where n rows are of box and objectness: these are
    those of one for other classes, and so are the rows of `pairs` (class here -> class there)."""
    shape = network.head.num_anchors, -1
    rows, theirs = (tensor.detach().unflatten(0, shape).clone() for tensor in (fresh, given))
    n = rows.shape[1] - network.num_classes
    rows[:, :n] = theirs[:, :n]
    for here, there in pairs.items():
        rows[:, n + here] = theirs[:, n + there]
    return rows.flatten(0, 1)
