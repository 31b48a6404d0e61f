"""Whether a checkpoint fits the training that continues from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from boltbox.detector.system.errors import InputError
from boltbox.detector.system.rank_zero import rank_zero_print
from boltbox.detector.system.torch_file import as_input_error, shapes
from boltbox.detector.training.optimizer import OptimOptions
from boltbox.detector.weights.trained import DETECTOR

ADVICE = (
    "leave out the options that differ from its own, or start from its weights with"
    " --model.start.weights"
)


def check_network(
    checkpoint: Mapping[str, Any],
    names: Sequence[str],
    tensors: dict[str, Tensor],
    activation: str,
) -> None:
    """Compare classes, tensors and activation with those of a checkpoint.

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
    if different:
        raise InputError(
            f"the checkpoint does not fit this network ({len(dict(different))} tensors, like"
            f" {min(different)[0]}): {ADVICE}"
        )
    if saved_activation != activation:
        raise InputError(
            f"the checkpoint's activation is {saved_activation}, not {activation}: {ADVICE}"
        )


def check_training(
    checkpoint: Mapping[str, Any], optim: OptimOptions, optimizer: Optimizer, epochs: int | None
) -> None:
    """Compare optimizer and epochs with those of a checkpoint, before a run touches its folder.

    Args:
        checkpoint: Its content.
        optim: Options of the Detector.
        optimizer: As these options build it.
        epochs: trainer.max_epochs.

    Raises:
        InputError: The optimizer's state is of another optimizer, or the training is past its last
            epoch.
    """
    with as_input_error("the checkpoint", "one that a training can continue from"):
        (saved,) = checkpoint["optimizer_states"]
        trained = checkpoint["loops"]["fit_loop"]["epoch_progress"]["current"]["processed"]
        saved_groups = [group["params"] for group in saved["param_groups"]]
        name = checkpoint["hyper_parameters"]["optim"]["optimizer"]
        is_past = epochs is not None and 0 <= epochs < trained
    groups = [group["params"] for group in optimizer.state_dict()["param_groups"]]
    if saved_groups != groups or name != optim.to_dict()["optimizer"]:
        raise InputError(f"the checkpoint's optimizer state is of another optimizer: {ADVICE}")
    if is_past:
        raise InputError(
            f"trainer.max_epochs {epochs}: the checkpoint has already trained {trained} epochs;"
            " give more"
        )
    if trained == epochs:
        rank_zero_print(f"finished: all {trained} epochs are trained")
