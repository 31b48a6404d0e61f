"""Whether a training checkpoint goes with a detector: said before a run touches its folder, its
loggers, its checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer

from boltbox.detector.model.network import YOLOv5
from boltbox.detector.system.errors import InputError

# what an optimizer keeps of a parameter
MOMENTUM, ADAM = ("momentum_buffer",), ("step", "exp_avg", "exp_avg_sq")


class TrainedModule(Protocol):
    """What a checkpoint is of: boltbox.detector.training.module.Detector.

    names: of its classes · network · ema: its moving average, None while there is none · hparams:
    its options by name.
    """

    @property
    def names(self) -> list[str]: ...

    @property
    def network(self) -> YOLOv5: ...

    @property
    def ema(self) -> YOLOv5 | None: ...

    @property
    def hparams(self) -> Any: ...

    def state_dict(self) -> Mapping[str, Tensor]: ...

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> Any: ...

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None: ...

    def configure_optimizers(self) -> Optimizer: ...


def check_network(detector: TrainedModule, content: dict[str, Any]) -> None:
    """Compare classes and tensors.

    Args:
        content: of a training checkpoint.

    Raises:
        InputError: they differ; it says in what.
    """
    names = content.get("hyper_parameters", {}).get("names", detector.names)
    if names != detector.names:
        raise InputError(
            f"the checkpoint knows the classes {names}, but here they are {detector.names}: to"
            " train on these, start from its weights with --model.start.weights"
        )
    theirs = {name: tensor.shape for name, tensor in content["state_dict"].items()}
    ours = {name: tensor.shape for name, tensor in detector.state_dict().items()}
    if detector.ema is None and any(name.startswith("ema.") for name in theirs):
        ours |= {
            f"ema.{name}": tensor.shape for name, tensor in detector.network.state_dict().items()
        }
    wrong = {name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)}
    if wrong:
        raise InputError(
            f"the checkpoint does not fit this network ({len(wrong)} tensors, like {min(wrong)}):"
            " leave out the options that differ from its own, or start from its weights with"
            " --model.start.weights"
        )


def check_resume(detector: TrainedModule, content: dict[str, Any], max_epochs: int | None) -> None:
    """Compare what a training goes on with besides.

    Raises:
        InputError: the optimizer's state is of another one, or the training is past max_epochs.
    """
    if not any(content["optimizer_states"]):
        raise InputError(
            "the checkpoint holds no optimizer state: start from its weights with"
            " --model.start.weights"
        )
    misfit = optimizer_misfit(detector.configure_optimizers(), content["optimizer_states"])
    if misfit:
        raise InputError(
            "the checkpoint's optimizer state is not one of"
            f" {detector.hparams['optim']['optimizer']}"
            f" ({misfit}): leave out the options that differ from its own, or start from its"
            " weights with --model.start.weights"
        )
    loops = content["loops"]["fit_loop"]
    if loops.get("state_dict", {}).get("combined_loader"):
        raise InputError(
            "the checkpoint holds the state of data loaders that are not ours: start from its"
            " weights"
        )
    finished = loops["epoch_progress"]["current"]["processed"]
    if max_epochs is not None and 0 <= max_epochs < finished:
        raise InputError(
            f"trainer.max_epochs {max_epochs}: the checkpoint has {finished} epochs behind it; give"
            " more"
        )


def optimizer_misfit(optimizer: Optimizer, states: list[dict[str, Any]]) -> str:
    """In what the saved states differ from what this optimizer would save, in a few words; an empty
    string if in nothing."""
    if len(states) != 1 or not states[0].keys() >= {"state", "param_groups"}:
        return "it is not one state with its groups"
    own, groups = optimizer.state_dict()["param_groups"], states[0]["param_groups"]
    if [list(group["params"]) for group in groups] != [group["params"] for group in own]:
        return "other groups of parameters"
    for ours, theirs in zip(own, groups, strict=True):
        odd = next(
            (k for k, v in ours.items() if k != "params" and not _alike(v, theirs.get(k, v))), None
        )
        if odd:
            return f"its {odd} is of another kind"
        needed = {"lr", "weight_decay", "name", "betas" if "betas" in ours else "momentum"}
        if not theirs.keys() >= needed or theirs["name"] != ours["name"]:
            return f"a group lacks {min(needed - theirs.keys(), default='its name')}"
        if theirs.get("orthogonal") != ours.get("orthogonal"):
            return "a group is of another optimizer"
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    sgd = isinstance(optimizer, torch.optim.SGD)
    kept = [
        MOMENTUM if sgd or group.get("orthogonal") else ADAM
        for group in optimizer.param_groups
        for _ in group["params"]
    ]
    for number, values in states[0]["state"].items():
        if not 0 <= number < len(parameters):
            return f"it has no parameter {number}"
        wanted = kept[number]
        lacking = [name for name in wanted if values.get(name) is None]
        if lacking and not sgd:  # which starts anew where there is no momentum
            return f"parameter {number} has no {lacking[0]}"
        for name, value in values.items():
            shape = value.shape if isinstance(value, Tensor) else None
            if (
                name in wanted and name != "step" and shape not in (None, parameters[number].shape)
            ) or (name == "step" and shape not in (None, ())):
                return f"{name} of parameter {number} has another shape"
            if name in wanted and name != "step" and value is not None and shape is None:
                return f"{name} of parameter {number} is no tensor"
    return ""


def _alike(ours: Any, theirs: Any) -> bool:
    """Of one kind: a switch, a number, numbers, or a word."""
    if ours is None or isinstance(ours, bool):
        return theirs is None or isinstance(theirs, bool)
    if isinstance(ours, int | float):
        return isinstance(theirs, int | float) and not isinstance(theirs, bool)
    if isinstance(ours, tuple | list):
        return (
            isinstance(theirs, tuple | list)
            and len(theirs) == len(ours)
            and all(map(_alike, ours, theirs))
        )
    return isinstance(theirs, type(ours))
