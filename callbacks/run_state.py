"""The state of every process, in checkpoints beside Lightning's own."""

import random
from typing import Any

import lightning as L
import numpy as np
import torch
from torch import Tensor

from boltbox.detector.distributed.process_group import gather
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.rank_zero import rank_zero_print
from boltbox.detector.training.gradient_window import gradients, restore_gradients
from boltbox.detector.training.module import ADVICE, Detector
from boltbox.detector.weights.torch_file import as_input_error


class RunState(L.Callback):
    """`processes`: for each one the gradients of an open accumulation window, the sums of the
    epoch's losses, the states of the random generators.

    Only tensors and plain types. Resumed with another number of processes, each one gets the mean
    of gradients and sums.
    """

    def __init__(self) -> None:
        self._gradients: dict[str, Tensor] = {}

    def on_save_checkpoint(
        self, trainer: L.Trainer, pl_module: Detector, checkpoint: dict[str, Any]
    ) -> None:
        own = {
            "gradients": gradients(pl_module.network),
            "epoch_losses": {n: total.cpu() for n, total in pl_module.epoch_losses().items()},
            "random": _random_states(),
        }
        checkpoint["processes"] = gather(own)

    def on_load_checkpoint(
        self, trainer: L.Trainer, pl_module: Detector, checkpoint: dict[str, Any]
    ) -> None:
        if trainer.state.fn == "fit":
            _check_resume(trainer.max_epochs, pl_module, checkpoint)
        everyone = checkpoint.get("processes")
        if not everyone:  # it was saved without this callback
            return
        is_alike = len(everyone) == trainer.world_size
        own = [everyone[trainer.global_rank]] if is_alike else everyone
        # DDP takes the mean over processes, so each gets the mean; FSDP2 has taken it already.
        sources = own if pl_module.device_mesh is None else everyone
        self._gradients = _means([each["gradients"] for each in sources])
        pl_module.restore_epoch_losses(_means([each["epoch_losses"] for each in own]))
        if is_alike:
            _restore_random_states(own[0]["random"])

    def on_train_start(self, trainer: L.Trainer, pl_module: Detector) -> None:
        restore_gradients(pl_module.network, self._gradients)
        self._gradients = {}


def _check_resume(epochs: int | None, detector: Detector, checkpoint: dict[str, Any]) -> None:
    """Before a run touches its folder: raises InputError if the optimizer's state is of another
    one, or the training is past its last epoch."""
    own = detector.options.optim.build(detector.network, detector.batch_size).state_dict()
    with as_input_error("the checkpoint", "one that a training can continue from"):
        (saved,) = checkpoint["optimizer_states"]
        finished = checkpoint["loops"]["fit_loop"]["epoch_progress"]["current"]["processed"]
        groups, ours = (
            [group["params"] for group in state["param_groups"]] for state in (saved, own)
        )
        kind = checkpoint["hyper_parameters"]["optim"]["optimizer"]
        is_past = epochs is not None and 0 <= epochs < finished
    if groups != ours or kind != detector.options.optim.to_dict()["optimizer"]:
        raise InputError(f"the checkpoint's optimizer state is of another optimizer: {ADVICE}")
    if is_past:
        raise InputError(
            f"trainer.max_epochs {epochs}: the checkpoint has {finished} epochs behind it;"
            " give more"
        )
    if finished == epochs:
        rank_zero_print(f"finished: all {finished} epochs are trained")


def _means(processes: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """By name; to the last bit the first process's, where all are alike."""
    found = {}
    for name, first in processes[0].items():
        tensors = [own[name] for own in processes]
        alike = all(torch.equal(tensor, first) for tensor in tensors)
        found[name] = first if alike else torch.stack(tensors).mean(0)
    return found


def _random_states() -> dict[str, Any]:
    kind, keys, *rest = np.random.get_state()  # noqa: NPY002 (the global one, which libraries use)
    states: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": (kind, np.asarray(keys).tolist(), *rest),
    }
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def _restore_random_states(states: dict[str, Any]) -> None:
    torch.set_rng_state(states["torch"])
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])  # noqa: NPY002
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
