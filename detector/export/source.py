"""The network to export, from a checkpoint of ours or from YOLOv5's published weights."""

from pathlib import Path
from typing import Any, NamedTuple

from detector.checkpoint_file import load_checkpoint
from detector.errors import InputError
from detector.export.metadata import MODEL_OPTIONS
from detector.export.runtime import format_of
from detector.network import SIZES, YOLOv5
from detector.runs import resolve_checkpoint
from detector.weights import Weights, load_weights, load_yolov5, read_yolov5, unscaled_layers


class Trained(NamedTuple):
    """A network with its weights (the moving average's if there is one), and what is known of it."""

    path: Path
    network: YOLOv5
    names: list[str]
    image_size: int
    options: dict[str, Any]


def read_trained(ckpt_path: str, run: str | None = None) -> Trained:
    """`last`, `best`, a checkpoint of ours (.ckpt) or a YOLOv5 file (.pt).

    Raises:
        InputError: there is none, or it cannot be read.
    """
    if format_of(ckpt_path):
        raise InputError(f"ckpt_path {ckpt_path}: this is an exported file already; give the checkpoint that it was made from")
    if Path(ckpt_path).suffix == ".pt":
        return _published(Path(ckpt_path))
    path = None if ckpt_path == "auto" else resolve_checkpoint(ckpt_path, Path(run) if run else None)
    if path is None:
        raise InputError("ckpt_path auto: that is for fit; give `last`, `best` or a file")
    known = load_checkpoint(path)["hyper_parameters"]
    options = {key: known.get(key) for key in MODEL_OPTIONS if known.get(key) is not None}
    network = YOLOv5(len(known["names"]), anchors=known.get("anchors"), **options)
    load_weights(network, path)
    return Trained(path, network, list(known["names"]), int(known["image_size"]), options)


def _published(path: Path) -> Trained:
    """The file says its multiples and its anchors; which levels these belong to is found by trying."""
    weights = read_yolov5(path)
    anchors = next((t for name, t in weights.state.items() if name.endswith(".anchors")), None)
    if anchors is None or anchors.ndim != 3 or not weights.names:
        raise InputError(f"{path}: these weights hold no anchors or no class names")
    for options in _candidates(weights, len(anchors)):
        network = YOLOv5(len(weights.names), anchors=anchors.shape[1], **options)
        try:
            load_yolov5(network, weights, path)
        except InputError:
            continue
        return Trained(path, network, weights.names, 640 if network.max_stride == 32 else 1280, options)
    reason = unscaled_layers(weights) or "start a fit from them and export its checkpoint"
    raise InputError(f"{path}: these weights fit no size of ours; {reason}")


def _candidates(weights: Weights, levels: int) -> list[dict[str, Any]]:
    sizes = [name for name, row in SIZES.items() if len(row.levels) == levels]
    if weights.multiples is None:
        return [{"size": name} for name in sizes]
    exact = [{"size": name} for name in sizes if (SIZES[name].depth, SIZES[name].width) == weights.multiples]
    depth, width = weights.multiples
    return exact + [{"size": name, "depth_multiple": depth, "width_multiple": width} for name in sizes]
