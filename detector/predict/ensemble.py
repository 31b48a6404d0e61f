"""Several detectors look at the same images; suppression then chooses among the rows of all."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from detector.checkpoint_file import load_checkpoint
from detector.errors import InputError
from detector.network import SIZES, YOLOv5
from detector.weights import load_weights, load_yolov5, read_yolov5, unscaled_layers


class Ensemble:
    """A predictor that joins the rows of several, in their order. looks: each float (B, 3, H, W) in 0..1 -> (B, R, 5 + C)."""

    def __init__(self, looks: Sequence[Callable[[Tensor], Tensor]]) -> None:
        self.looks = looks

    def __call__(self, images: Tensor) -> Tensor:
        return torch.cat([look(images) for look in self.looks], 1)


def load_member(path: str | Path, names: Sequence[str]) -> YOLOv5:
    """The network of a file, which must know the classes `names`, in this order.

    Raises:
        InputError: no such file, not a detector, or other classes; it says which differ.
    """
    network, theirs, _ = load_network(path)
    if theirs != list(names):
        pairs = [(i, a, b) for i, (a, b) in enumerate(zip(names, theirs, strict=False)) if a != b]
        differ = f"class {pairs[0][0]} is '{pairs[0][1]}' here and '{pairs[0][2]}' there" if pairs else "the first ones agree"
        raise InputError(
            f"model.ensemble {path}: it knows other classes ({len(names)} here, {len(theirs)} there; {differ}); "
            "detectors of an ensemble must have the same names in the same order"
        )
    return network


def load_network(path: str | Path) -> tuple[YOLOv5, list[str], dict[str, Any]]:
    """Network, class names, and the options that make such a network, of a checkpoint of ours (.ckpt; its moving average, if it
    has one) or of a YOLOv5 file (.pt; it says itself which size it is, and its activation is taken to be SiLU)."""
    if Path(path).suffix != ".ckpt":
        return _from_yolov5(path)
    options = load_checkpoint(Path(path))["hyper_parameters"]
    shape = {k: options[k] for k in ("size", "depth_multiple", "width_multiple", "levels", "anchors", "activation")}
    network = YOLOv5(len(options["names"]), **shape)
    load_weights(network, path)
    return network, options["names"], shape


def _from_yolov5(path: str | Path) -> tuple[YOLOv5, list[str], dict[str, Any]]:
    weights = read_yolov5(path)
    anchors = next((t for name, t in weights.state.items() if name.endswith(".anchors")), None)
    if anchors is None or anchors.ndim != 3:
        raise InputError(f"{path}: these weights have no anchors, so they are not those of a detector")
    rows = {name: row for name, row in SIZES.items() if len(row.levels) == len(anchors)}
    known: list[dict[str, Any]] = [{"size": n} for n, r in rows.items() if weights.multiples in (None, (r.depth, r.width))]
    if weights.multiples:
        depth, width = weights.multiples
        every = {r.levels for r in rows.values()}
        known += [{"depth_multiple": depth, "width_multiple": width, "levels": list(levels)} for levels in sorted(every)]
    for shape in known:
        if anchors.shape[1] != 3:
            shape["anchors"] = anchors.shape[1]
        network = YOLOv5(len(weights.names), **shape)
        try:
            load_yolov5(network, weights, path)
        except InputError:
            continue
        return network, weights.names, shape
    reason = unscaled_layers(weights) or f"they are of another topology than our sizes: {', '.join(SIZES)}"
    raise InputError(f"{path}: no network of ours holds these weights; {reason}")
