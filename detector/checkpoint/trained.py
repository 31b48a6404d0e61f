"""A trained network from a file: a checkpoint of ours (.ckpt) or YOLOv5's published weights (.pt), which say what they are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from detector.checkpoint.content import network_options, network_shapes
from detector.checkpoint.file import load_checkpoint
from detector.checkpoint.yolov5_weights import Weights, load_weights, load_yolov5, read_yolov5, unscaled_layers
from detector.model.network import YOLOv5
from detector.model.sizes import SIZES
from detector.system.errors import InputError
from detector.system.rank_zero import rank_zero_print

if TYPE_CHECKING:
    from detector.training.module import Detector


class Trained(NamedTuple):
    """path: the file · network: with its weights, the moving average's if there is one · names: class names · image_size:
    longer side in pixels of the training's input (of a .pt file: of YOLOv5's own trainings, 640, or 1280 from stride 64 on) ·
    options: what makes such a network (size, levels and so on, see NETWORK; as far as the file says)."""

    path: Path
    network: YOLOv5
    names: list[str]
    image_size: int
    options: dict[str, Any]

    def fill(self, detector: Detector) -> None:
        """Give a detector this network's weights.

        Raises:
            InputError: it is made otherwise, or knows another number of classes.
        """
        here, there = detector.names, self.names
        if len(here) != len(there):
            raise InputError(
                f"{self.path} knows {len(there)} classes, but here there are {len(here)}: use it on data with its classes, or "
                f"train it on these with fit --model.weights {self.path}"
            )
        differing = [i for i, (a, b) in enumerate(zip(here, there, strict=True)) if a != b]
        if differing:
            first = differing[0]
            called = f"'{there[first]}', the data '{here[first]}'"
            rank_zero_print(f"warning: {self.path} calls class {first} {called} ({len(differing)} names differ)")
        given = self.network.state_dict()
        if {n: t.shape for n, t in given.items()} != {n: t.shape for n, t in detector.network.state_dict().items()}:
            made = ", ".join(f"{key} {value}" for key, value in self.options.items())
            raise InputError(f"{self.path} holds a network of {made}: leave out the options of the model that differ from this")
        detector.network.load_state_dict(given)


def take_anchors(detector: Detector, path: str | Path) -> None:
    """Give a detector the anchors of a file; the classes may be others. A head without anchors stays as it is.

    Raises:
        InputError: as `read_trained`, or it has other levels or another number of anchors.
    """
    theirs, ours = read_trained(path).network.anchors, detector.network.anchors
    if theirs is None or ours is None:
        return
    if theirs.shape != ours.shape:
        (a, b, _), (c, d, _) = theirs.shape, ours.shape
        raise InputError(f"{path} has {a} levels of {b} anchors, but the options of the model say {c} levels of {d}")
    ours.copy_(theirs)


def is_published(path: str | Path) -> bool:
    """Whether a name is that of YOLOv5's weights."""
    return Path(path).suffix.lower() in (".pt", ".pth")


def read_trained(path: str | Path) -> Trained:
    """Read a .pt file of YOLOv5, or a training checkpoint of ours. Nothing in it is executed.

    Raises:
        InputError: no such file, not a detector, or damaged.
    """
    if is_published(path):
        return _published(Path(path))
    known = load_checkpoint(Path(path))["hyper_parameters"]
    options = network_options(known)
    network = YOLOv5(len(known["names"]), **options)
    load_weights(network, path)
    return Trained(Path(path), network, list(known["names"]), int(known.get("image_size", 640)), options)


def _published(path: Path) -> Trained:
    """The file says its multiples and its anchors; which levels these belong to is found by comparing shapes. Its activation is
    taken to be SiLU."""
    weights = read_yolov5(path)
    anchors = next((t for name, t in weights.state.items() if name.endswith(".anchors")), None)
    if anchors is None or anchors.ndim != 3 or not 1 <= anchors.shape[1] <= 20 or not weights.names:
        raise InputError(f"{path}: these weights hold no anchors or no class names, so they are not those of a detector")
    numbers = sorted(t.numel() for name, t in weights.state.items() if not name.endswith((".anchors", ".anchor_grid")))
    for options in _candidates(weights, len(anchors)):
        if anchors.shape[1] != 3:
            options["anchors"] = anchors.shape[1]
        shapes = network_shapes(len(weights.names), options)
        if sorted(_product(shape) for name, shape in shapes.items() if name != "anchors") != numbers:
            continue
        network = YOLOv5(len(weights.names), **options)
        try:
            load_yolov5(network, weights, path)
        except InputError:
            continue
        return Trained(path, network, weights.names, 640 if network.max_stride == 32 else 1280, options)
    reason = unscaled_layers(weights) or (
        f"they are of another topology than our sizes ({', '.join(SIZES)}); start a fit from them, with options of the model "
        "that fit, and use its checkpoint"
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


def _product(shape: tuple[int, ...]) -> int:
    product = 1
    for side in shape:
        product *= side
    return product
