"""Tensors of a file -> a network that is there already."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from boltbox.detector.model.network import YOLOv5
from boltbox.detector.system.errors import InputError


def averaged(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Of a checkpoint's `state_dict` the network's tensors, by the network's names: the moving
    average's if there is one."""
    prefix = "ema." if any(name.startswith("ema.") for name in tensors) else "network."
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }


def copy_weights(
    network: YOLOv5,
    given: dict[str, Tensor],
    num_classes: int,
    source: str | Path,
    hint: str,
    keep_anchors: bool = False,
    reuse_head: bool = False,
) -> str:
    """Copy tensors into the network; every one must find its place, except the head's if the number
    of classes, or the kind of head, differs.

    Args:
        given: tensors by the network's names.
        num_classes: of the network that they are from.
        source: the file, for messages.
        hint: what to do about tensors that do not fit, for the message.
        keep_anchors: leave the given anchors out, because the network has been given its own.
        reuse_head: of a head for other classes take what has nothing to do with classes: boxes and
            objectness.

    Returns:
        One line that says what was taken and what was not.

    Raises:
        InputError: the tensors are of another size or topology; the network is as it was.
    """
    fresh = network.state_dict()
    left_out = {"anchors"} if keep_anchors else set()
    theirs = given.get("anchors", network.anchors)
    there = num_classes, theirs.shape[1] if theirs is not None and theirs.ndim == 3 else 0
    here = network.num_classes, 0 if network.anchors is None else network.anchors.shape[1]
    if network.anchor_head() is not None:
        another_kind = any(name.startswith("head.") for name in given.keys() - fresh.keys())
    else:
        heads = {name: tensor.shape for name, tensor in fresh.items() if name.startswith("head.")}
        another_kind = any(
            name not in given or given[name].shape != shape for name, shape in heads.items()
        )
    reused = reuse_head and not another_kind and there[0] != here[0] and there[1] == here[1] > 0
    if reused:
        given = given | {
            name: _with_boxes(fresh[name], tensor, here[1])
            for name, tensor in given.items()
            if name.startswith("head.convs.")
            and name in fresh
            and tensor.shape[1:] == fresh[name].shape[1:]
        }
    elif there != here or another_kind:
        of_head = ("head.", f"model.{max(network.layer_names())}.")  # the second: YOLOv5's name
        left_out |= {name for name in (*fresh, *given) if name.startswith(of_head)}
    if there[1] != here[1] or another_kind:
        left_out.add("anchors")
    given = {name: tensor for name, tensor in given.items() if name not in left_out}
    wrong = set(given) ^ (set(fresh) - left_out) | {
        name for name in set(given) & set(fresh) if given[name].shape != fresh[name].shape
    }
    if wrong:
        raise InputError(
            f"{source}: these weights do not fit the network ({len(wrong)} tensors, like"
            f" {min(wrong)}); {hint}"
        )
    network.load_state_dict({**fresh, **given})
    taken = f"{source}: took {len(given)} of {len(fresh)} tensors"
    if keep_anchors:
        taken += "; not the anchors, which model.network.anchors gives"
    if another_kind:
        taken += "; not the head, which is of another kind and starts fresh"
    elif reused:
        taken += (
            f"; of the head for {there[0]} classes boxes and objectness, its {here[0]} classes"
            " start fresh"
        )
    elif there != here:
        unlike = [
            f"{a} {what} there, {b} here"
            for a, b, what in zip(there, here, ("classes", "anchors a level"), strict=True)
            if a != b
        ]
        taken += f"; not the head ({'; '.join(unlike)}), which starts fresh"
    return taken


def _with_boxes(fresh: Tensor, given: Tensor, num_anchors: int) -> Tensor:
    """A head's (A (5 + C), ...) weight or bias, with the rows of box and objectness of one for
    other classes."""
    # (A, 5 + C, ...)
    rows, theirs = (tensor.detach().unflatten(0, (num_anchors, -1)) for tensor in (fresh, given))
    return torch.cat((theirs[:, :5].to(rows), rows[:, 5:]), 1).flatten(0, 1)
