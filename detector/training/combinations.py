"""Options of the Trainer that do not work together, or not on this machine: checked before any data
is read."""

from typing import Any

import torch

from boltbox.detector.model.timm_backbone import PREFIX
from boltbox.detector.system.errors import InputError, nearest

PLAIN = (
    "auto",
    "ddp",
    "ddp_spawn",
    "ddp_fork",
    "ddp_notebook",
    "ddp_find_unused_parameters_true",
    "single_device",
)
FULL_PRECISION = (None, 32, "32", "32-true")


def check_accelerator(accelerator: str) -> None:
    """Raises InputError for a GPU that is not there."""
    if accelerator in ("gpu", "cuda") and not torch.cuda.is_available():
        raise InputError(
            f"trainer.accelerator {accelerator}: torch finds no GPU here; use cpu or auto"
        )


def check_sync_batchnorm(sync_batchnorm: bool, accelerator: str) -> None:
    """Raises InputError without GPUs."""
    if sync_batchnorm and (accelerator == "cpu" or not torch.cuda.is_available()):
        raise InputError(
            "trainer.sync_batchnorm true needs GPUs: torch cannot do it on a CPU; leave it out"
        )


def check_combinations(options: Any) -> None:
    """Refuse a training whose features do not work together.

    Args:
        options: of `fit`, by group: trainer, model, ...

    Raises:
        InputError: it names every such feature, with the reason.
    """
    if options.trainer.sync_batchnorm and options.model.network.backbone.startswith(PREFIX):
        raise InputError(
            "trainer.sync_batchnorm does not go together with model.network.backbone"
            f" {options.model.network.backbone}: torch would replace timm's batch norms, which"
            " hold an"
            " activation, by some without; leave it out"
        )
    strategy = strategy_name(options.trainer.strategy)
    known = {*PLAIN, "fsdp2"}
    if strategy not in known:
        raise InputError(
            f"trainer.strategy {strategy}: the recipe runs with {', '.join(sorted(known))};"
            f" {nearest(strategy, known)}"
        )
    clashes = []
    if options.trainer.precision not in (*FULL_PRECISION, "bf16", "bf16-mixed"):
        why = (
            "losses cannot be scaled where gradients are shared out, and averages do not move in"
            " half precision"
        )
        clashes.append(f"trainer.precision other than 32-true and bf16-mixed ({why})")
    if options.trainer.sync_batchnorm:
        clashes.append("trainer.sync_batchnorm (Lightning converts batch norms under ddp only)")
    if clashes and strategy == "fsdp2":
        raise InputError(f"trainer.strategy fsdp2 does not go together with {'; '.join(clashes)}")


def strategy_name(strategy: Any) -> str:
    """The name of trainer.strategy; of a class with init_args the name under which it is
    registered."""
    if isinstance(strategy, str):
        return strategy
    name = str(strategy.class_path).rpartition(".")[2]
    classes = {"FSDP2": "fsdp2", "DDPStrategy": "ddp", "SingleDeviceStrategy": "single_device"}
    return classes.get(name, name)
