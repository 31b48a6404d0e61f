"""Options of the Trainer that do not work together, or not on this machine: checked before any data is read."""

import importlib.util
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from detector.model.timm_backbone import PREFIX
from detector.system.errors import InputError, nearest
from detector.system.rank_zero import rank_zero_print
from detector.training.optimizer import chosen_optimizer

PLAIN = ("auto", "ddp", "ddp_spawn", "ddp_fork", "ddp_notebook", "ddp_find_unused_parameters_true", "single_device")
FULL_PRECISION = (None, 32, "32", "32-true")

EXPERIMENTAL = {"deepspeed_stage_2": "its authors have run it on CPUs, never on GPUs; fsdp2 is tested with every change"}


class Clash(NamedTuple):
    """A strategy and a feature that do not work together."""

    strategy: str
    feature: str
    is_on: Callable[[Any], bool]  # of the options of a command
    reason: str  # and what to do


CLASHES = (
    Clash(
        "fsdp2",
        "trainer.precision other than 32-true and bf16-mixed",
        lambda o: o.trainer.precision not in (*FULL_PRECISION, "bf16", "bf16-mixed"),
        "losses cannot be scaled where gradients are shared out, and averages do not move in half precision",
    ),
    Clash(
        "fsdp2",
        "trainer.sync_batchnorm",
        lambda o: bool(o.trainer.sync_batchnorm),
        "Lightning converts batch norms under ddp only",
    ),
    Clash(
        "deepspeed_stage_2",
        "this machine",
        lambda o: (
            (o.trainer.accelerator == "cpu" or not torch.cuda.is_available()) and os.environ.get("DS_ACCELERATOR") != "cpu"
        ),
        "it is for NVIDIA GPUs; use ddp or fsdp2",
    ),
    Clash(
        "deepspeed_stage_2",
        "this installation",
        lambda o: importlib.util.find_spec("deepspeed") is None,
        'the package is missing: pip install "boltbox[deepspeed]"',
    ),
    Clash(
        "deepspeed_stage_2",
        "trainer.precision other than 32-true",
        lambda o: o.trainer.precision not in FULL_PRECISION,
        "DeepSpeed would turn the labels into half precision with the images",
    ),
    Clash(
        "deepspeed_stage_2",
        "model.optimizer Muon",
        lambda o: chosen_optimizer(o.model.optimizer, o.model.weights) == "Muon",
        "DeepSpeed shares out rows of numbers, no matrices; use --model.optimizer AdamW",
    ),
    Clash(
        "deepspeed_stage_2",
        "ema",
        lambda o: o.ema.enabled,
        "its optimizer does not tell when it has made a step; use fsdp2, or --ema.enabled false",
    ),
    Clash(
        "deepspeed_stage_2",
        "flight_recorder",
        lambda o: o.flight_recorder.policy != "off",
        "gradients are out of sight; use fsdp2, or --flight_recorder.policy off",
    ),
    Clash(
        "deepspeed_stage_2",
        "ckpt_path",
        lambda o: bool(o.ckpt_path),
        "the optimizer's state is not in the checkpoints; use fsdp2, or start from the weights with --model.weights",
    ),
    Clash(
        "deepspeed_stage_2",
        "trainer.sync_batchnorm",
        lambda o: bool(o.trainer.sync_batchnorm),
        "Lightning converts batch norms under ddp only",
    ),
    Clash(
        "deepspeed_stage_2",
        "trainer.gradient_clip_algorithm value",
        lambda o: o.trainer.gradient_clip_algorithm == "value",
        "DeepSpeed clips by norm only",
    ),
)


def check_accelerator(accelerator: str) -> None:
    """Raises InputError for a GPU that is not there."""
    if accelerator in ("gpu", "cuda") and not torch.cuda.is_available():
        raise InputError(f"trainer.accelerator {accelerator}: torch finds no GPU here; use cpu or auto")


def check_sync_batchnorm(sync_batchnorm: bool, accelerator: str) -> None:
    """Raises InputError without GPUs."""
    if sync_batchnorm and (accelerator == "cpu" or not torch.cuda.is_available()):
        raise InputError("trainer.sync_batchnorm true needs GPUs: torch cannot do it on a CPU; leave it out")


def check_combinations(options: Any) -> None:
    """Refuse a training whose features do not work together.

    Args:
        options: of `fit`, by group: trainer, ema, flight_recorder, ..., and ckpt_path.

    Raises:
        InputError: it names every such feature, with the reason.
    """
    if options.trainer.sync_batchnorm and options.model.backbone.startswith(PREFIX):
        raise InputError(
            f"trainer.sync_batchnorm does not go together with model.backbone {options.model.backbone}: torch would replace "
            "timm's batch norms, which hold an activation, by some without; leave it out"
        )
    strategy = strategy_name(options.trainer.strategy)
    known = {*PLAIN, *(clash.strategy for clash in CLASHES)}
    if strategy not in known:
        raise InputError(
            f"trainer.strategy {strategy}: the recipe runs with {', '.join(sorted(known))}; {nearest(strategy, known)}"
        )
    if strategy in EXPERIMENTAL:
        rank_zero_print(f"warning: trainer.strategy {strategy} is experimental: {EXPERIMENTAL[strategy]}")
    clashes = [clash for clash in CLASHES if clash.strategy == strategy and clash.is_on(options)]
    if clashes:
        reasons = "; ".join(f"{clash.feature} ({clash.reason})" for clash in clashes)
        raise InputError(f"trainer.strategy {strategy} does not go together with {reasons}")


def strategy_name(strategy: Any) -> str:
    """The name of trainer.strategy; of a class with init_args the name under which it is registered."""
    if isinstance(strategy, str):
        return strategy
    name = str(strategy.class_path).rpartition(".")[2]
    classes = {"FSDP2": "fsdp2", "ZeRO2": "deepspeed_stage_2", "DDPStrategy": "ddp", "SingleDeviceStrategy": "single_device"}
    return classes.get(name, name)
