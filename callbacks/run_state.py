"""The state of every process, in checkpoints beside Lightning's own."""

import random
from dataclasses import replace
from typing import Any

import lightning as L
import numpy as np
import torch
from torch import Tensor, nn

from boltbox.detector.model.sharding import distribute_like, whole
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.gather import gather_on_first
from boltbox.detector.system.rank_zero import rank_zero_print
from boltbox.detector.system.torch_file import as_input_error
from boltbox.detector.training.module import Detector
from boltbox.detector.weights.trained import ADVICE


class RunState(L.Callback):
    """Adds `processes` to a checkpoint: of each process the gradients of an open accumulation
    window, the sums of the epoch's losses, the states of the random generators.

    Resumed with another number of processes, each one gets the mean of gradients and sums.
    """

    def __init__(self) -> None:
        self._gradients: dict[str, Tensor] = {}

    def on_save_checkpoint(
        self, trainer: L.Trainer, pl_module: Detector, checkpoint: dict[str, Any]
    ) -> None:
        state = {
            "gradients": gradients(pl_module.network),
            "epoch_losses": {name: total.cpu() for name, total in pl_module.loss_sums().items()},
            "random": _random_states(),
        }
        checkpoint["processes"] = gather_on_first(state)  # which writes the file

    def on_load_checkpoint(
        self, trainer: L.Trainer, pl_module: Detector, checkpoint: dict[str, Any]
    ) -> None:
        if trainer.state.fn != "fit":
            return
        _check_training(checkpoint, pl_module, trainer.max_epochs)
        saved = checkpoint.get("processes")
        if not saved:  # by a Trainer without this callback
            return
        states = saved
        if len(saved) == trainer.world_size:
            states = [saved[trainer.global_rank]]
            _restore_random_states(states[0]["random"])
        pl_module.restore_loss_sums(_means([state["epoch_losses"] for state in states]))
        # DDP takes the mean over processes, so each one gets the mean; FSDP2 has done so already
        sources = states if pl_module.device_mesh is None else saved
        self._gradients = _means([state["gradients"] for state in sources])

    def on_train_start(self, trainer: L.Trainer, pl_module: Detector) -> None:
        restore_gradients(pl_module.network, self._gradients)
        self._gradients = {}


def gradients(network: nn.Module) -> dict[str, Tensor]:
    """The gradients of an open window by name of the parameter, whole and on the CPU. They are
    cleared after a step (Detector.optimizer_step), so a checkpoint within a window holds them."""
    return {
        name: whole(parameter.grad).cpu()
        for name, parameter in network.named_parameters()
        if parameter.grad is not None
    }


def restore_gradients(network: nn.Module, gradients: dict[str, Tensor]) -> None:
    """Continue an open window with what `gradients` returned."""
    for name, gradient in gradients.items():
        parameter = network.get_parameter(name)
        parameter.grad = distribute_like(parameter, gradient.clone())


def _check_training(checkpoint: dict[str, Any], detector: Detector, epochs: int | None) -> None:
    """Compare optimizer and number of epochs with those of a checkpoint, before a run touches its
    folder. Raises InputError if the optimizer's state is of another optimizer, or the training is
    past its last epoch."""
    with as_input_error("the checkpoint", "one that a training can continue from"):
        (saved,) = checkpoint["optimizer_states"]
        trained = checkpoint["loops"]["fit_loop"]["epoch_progress"]["current"]["processed"]
        saved_groups = [group["params"] for group in saved["param_groups"]]
        name = checkpoint["hyper_parameters"]["optim"]["optimizer"]
        is_past = epochs is not None and 0 <= epochs < trained
    optim = detector.options.optim
    is_another = replace(optim, optimizer=name).optimizer_in_full() != optim.optimizer_in_full()
    if not is_another:  # else it may lack options of this one, like momentum
        optimizer = optim.build(detector.network, detector.batch_size)
        groups = [group["params"] for group in optimizer.state_dict()["param_groups"]]
        is_another = saved_groups != groups
    if is_another:
        raise InputError(f"the checkpoint's optimizer state is of another optimizer: {ADVICE}")
    if is_past:
        raise InputError(
            f"trainer.max_epochs {epochs}: the checkpoint has already trained {trained} epochs;"
            " give more"
        )
    if trained == epochs:
        rank_zero_print(f"finished: all {trained} epochs are trained")


def _means(processes: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """By name; to the last bit the first process's, where all are alike."""
    means: dict[str, Tensor] = {}
    for name, first in processes[0].items():
        tensors = [process[name] for process in processes]
        means[name] = first
        if not all(torch.equal(tensor, first) for tensor in tensors):
            means[name] = torch.stack(tensors).mean(0)
    return means


def _random_states() -> dict[str, Any]:
    """Of the global generators, in plain types."""
    kind, keys, *rest = np.random.get_state()  # noqa: NPY002
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
