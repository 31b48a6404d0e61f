"""Whether a training checkpoint fits a detector and its Trainer: checked before a run touches its
folder, its loggers, its checkpoints."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from boltbox.detector.system.errors import InputError
from boltbox.detector.weights.torch_file import refused_unless_valid, shapes
from boltbox.detector.weights.trained import DETECTOR

ADVICE = (
    "leave out the options that differ from its own, or start from its weights with"
    " --model.start.weights"
)


def check_network(
    names: Sequence[str], tensors: Mapping[str, Tensor], content: Mapping[str, Any]
) -> None:
    """Compare classes and tensors.

    Args:
        names, tensors: class names and state_dict of the detector, without a moving average.
        content: of a training checkpoint.

    Raises:
        InputError: they differ; it says in what.
    """
    with refused_unless_valid("the checkpoint", DETECTOR):
        known = content["hyper_parameters"]["names"]
        theirs, ours = shapes(content["state_dict"]), shapes(tensors)
    if known != names:
        raise InputError(
            f"the checkpoint knows the classes {known}, but here they are {names}: to train on"
            " these, start from its weights with --model.start.weights"
        )
    of_network = {
        name.removeprefix("network."): shape
        for name, shape in ours.items()
        if name.startswith("network.")
    }
    if any(name.startswith("ema.") for name in theirs):
        ours |= {f"ema.{name}": shape for name, shape in of_network.items()}
    wrong = {name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)}
    if wrong:
        raise InputError(
            f"the checkpoint does not fit this network ({len(wrong)} tensors, like {min(wrong)}):"
            f" {ADVICE}"
        )


def check_resume(optimizer: Optimizer, content: Mapping[str, Any], max_epochs: int | None) -> int:
    """Compare what a training continues with besides; the number of epochs that it has behind it.

    Raises:
        InputError: the optimizer's state is of another one, or the training is past max_epochs.
    """
    with refused_unless_valid("the checkpoint", "one that a training can continue from"):
        (saved,) = content["optimizer_states"]
        finished = int(content["loops"]["fit_loop"]["epoch_progress"]["current"]["processed"])
        fits = _fits(optimizer, saved)
    if not fits:
        raise InputError(f"the checkpoint's optimizer state is of another optimizer: {ADVICE}")
    if max_epochs is not None and 0 <= max_epochs < finished:
        raise InputError(
            f"trainer.max_epochs {max_epochs}: the checkpoint has {finished} epochs behind it; give"
            " more"
        )
    return finished


def _fits(optimizer: Optimizer, saved: dict[str, Any]) -> bool:
    """Whether a state has the groups of an optimizer, and tensors as large as their parameters."""
    groups, own = saved["param_groups"], optimizer.state_dict()["param_groups"]
    if [(g.keys(), g["params"]) for g in groups] != [(g.keys(), g["params"]) for g in own]:
        return False
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return all(
        value.shape in (parameters[number].shape, ())
        for number, values in saved["state"].items()
        for value in values.values()
        if isinstance(value, Tensor)
    )


@contextmanager
def explain_restoring(path: str | Path | None) -> Iterator[None]:
    """One sentence for whatever fails while Lightning restores a checkpoint.

    Raises:
        InputError: "PATH: ..." in place of an exception from there; others pass.
    """
    try:
        yield
    except Exception as e:
        frames = traceback.extract_tb(e.__traceback__)
        if any("checkpoint_connector" in f.filename and "restore" in f.name for f in frames):
            with refused_unless_valid(str(path), DETECTOR):
                raise
        raise
