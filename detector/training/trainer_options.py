"""Options of Lightning's Trainer: the recipe's, whether they work on this machine and together,
which is checked before any data is read, and the one that changes from batch to batch."""

import re
from collections.abc import Mapping
from typing import Any

import lightning as L
import torch

from boltbox.detector.model.timm_backbone import PREFIX
from boltbox.detector.system.errors import InputError, nearest
from boltbox.detector.system.rank_zero import print_fact, program, rank_zero_print

TRAINER_OPTIONS: dict[str, Any] = {  # of the recipe, where they differ from Lightning's defaults
    "max_epochs": 100,
    "precision": "16-mixed",
    "devices": 1,
    "gradient_clip_val": 10.0,
    "logger": False,
    "num_sanity_val_steps": 0,  # a validation before the training only takes time
    "use_distributed_sampler": False,  # DetectionData has a sampler for several processes
    "enable_model_summary": False,
}
TRAINING = ("fit", "evolve", "review")  # commands
# they compute nothing, or in processes that print it themselves
SILENT = ("anchors", "doctor", "benchmark", "evolve", "review")
STRATEGIES = (
    "auto",
    "ddp",
    "ddp_spawn",
    "ddp_fork",
    "ddp_notebook",
    "ddp_find_unused_parameters_true",
    "fsdp2",
    "single_device",
)
FSDP2_PRECISIONS = (None, 32, "32", "32-true", "bf16", "bf16-mixed")
FIXED: dict[str, tuple[Any, str]] = {  # of a fit: the value that works, and why
    "accumulate_grad_batches": (
        1,
        "the recipe sets it batch by batch; give model.optim.nominal_batch_size",
    ),
    "overfit_batches": (
        0.0,
        "each epoch draws new batches; give a data.yaml whose train has few images",
    ),
    "max_steps": (-1, "schedule and warm-up go by epochs; give trainer.max_epochs"),
    "enable_checkpointing": (True, "the recipe saves checkpoints; leave it out"),
    "barebones": (False, "the recipe is callbacks, which it forbids; leave it out"),
}
# `trainer.accumulate_grad_batches` of a batch that only adds its gradients. Lightning divides the
# loss by that number and Detector.training_step multiplies by it: exact for a power of two.
NO_STEP = 2**40


def as_list(value: Any) -> list[Any]:
    """The value of an option that takes None, one thing or a list of them, like callbacks and
    plugins."""
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def adapt_trainer(options: Any, command: str, exported: bool) -> None:
    """Set precision, strategy and devices to what this command can do on this machine.

    Args:
        options: Of the command, by group: trainer, model, ...
        command: Of the command line.
        exported: It evaluates an exported file, which has a precision of its own.

    Raises:
        InputError: Options that do not work together, or devices that are not there.
    """
    trainer = options.trainer
    strategy = strategy_name(trainer.strategy)
    if exported:
        trainer.precision = "32-true"
    trainer.precision = usable_precision(trainer.precision, trainer.accelerator, command, strategy)
    if command in TRAINING:
        check_combinations(options)
    if strategy == "fsdp2" and command != "fit":  # only a training has what it shards
        trainer.strategy = "auto"
    check_devices(trainer.devices, trainer.accelerator)


def usable_precision(precision: str, accelerator: str, command: str, strategy: str) -> str:
    """The value for `trainer.precision` on this machine; prints a line where it is another one.

    16-mixed means mixed precision of whichever kind the machine supports. Without a GPU that is
    bfloat16 for a fit where the processor computes in it, else float32. fsdp2 cannot scale losses,
    so it gets bfloat16 on a GPU that has it, else float32.

    Args:
        precision: `trainer.precision`.
        accelerator: `trainer.accelerator`.
        command: Of the command line.
        strategy: `trainer.strategy`, by its name.
    """
    trains = command in TRAINING
    if precision != "16-mixed":
        return precision
    if accelerator == "cpu" or not torch.cuda.is_available():
        has_bfloat16 = trains and getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)()
        reason = "16-mixed needs a GPU"
    elif trains and strategy == "fsdp2":
        has_bfloat16 = torch.cuda.is_bf16_supported()
        reason = "fsdp2 has no 16-mixed"
    else:
        return precision
    usable = "bf16-mixed" if has_bfloat16 else "32-true"
    if command not in SILENT:
        print_fact("precision", f"{usable} ({reason})")
    return usable


def check_devices(devices: Any, accelerator: str) -> None:
    """Raises InputError where a GPU is asked for and there is none, and where trainer.devices names
    GPUs, or none, for a training on the CPU."""
    has_gpu = any(kind.is_available() for kind in (torch.cuda, torch.backends.mps))
    if accelerator in ("gpu", "cuda") and not has_gpu:
        raise InputError(
            f"trainer.accelerator {accelerator}: torch finds no GPU (`{program()} env`); give cpu"
            " or auto"
        )
    on_gpu = torch.cuda.is_available() and accelerator != "cpu" and devices != "cpu"
    if not on_gpu and not re.fullmatch(r"auto|[1-9]\d*", str(devices)):
        number = max(len(re.findall(r"\d+", str(devices))), 1)
        raise InputError(
            f"trainer.devices {devices}: on a CPU this is a number of processes; give"
            f" --trainer.accelerator cpu --trainer.devices {number}"
        )


def check_combinations(options: Any) -> None:
    """Refuse a training whose options do not work together.

    Args:
        options: Of `fit`, by group: trainer, model, ...

    Raises:
        InputError: It names the option, with the reason.
    """
    trainer = options.trainer
    strategy = strategy_name(trainer.strategy)
    if strategy not in STRATEGIES:
        raise InputError(
            f"trainer.strategy {strategy}: the recipe runs with {', '.join(sorted(STRATEGIES))};"
            f" {nearest(strategy, STRATEGIES)}"
        )
    # Lightning converts batch norms under ddp only, torch computes it on GPUs only, and would take
    # the activations of timm's batch norms away
    on_gpu = trainer.accelerator != "cpu" and torch.cuda.is_available()
    is_timm = options.model.network.backbone.startswith(PREFIX)
    if trainer.sync_batchnorm and (is_timm or strategy == "fsdp2" or not on_gpu):
        raise InputError(
            "trainer.sync_batchnorm needs GPUs, trainer.strategy ddp and a backbone that is not"
            " timm's; leave it out"
        )
    check_recipe(trainer)
    if strategy == "fsdp2" and trainer.precision not in FSDP2_PRECISIONS:
        raise InputError(
            "trainer.strategy fsdp2 goes together with trainer.precision 32-true and bf16-mixed"
            " only: losses cannot be scaled where gradients are sharded, and averages do not move"
            " in half precision"
        )


def check_recipe(trainer: Mapping[str, Any]) -> None:
    """Raises InputError where one of these options of the Trainer does not go together with the
    recipe."""
    precision = str(trainer.get("precision"))
    if precision in ("16-true", "bf16-true"):
        raise InputError(
            f"trainer.precision {precision}: most steps of a training are smaller than the digits"
            " of such weights; give 16-mixed or bf16-mixed"
        )
    if precision in ("64", "64-true"):
        raise InputError(f"trainer.precision {precision}: images are float32; give 32-true")
    for name, (works, reason) in FIXED.items():
        if trainer.get(name) not in (None, works):
            raise InputError(f"trainer.{name} {trainer[name]}: {reason}")
    if trainer.get("limit_train_batches") == 0:
        raise InputError(
            "trainer.limit_train_batches 0: nothing would be trained; give a number of batches, or"
            " a share like 0.5, or evaluate with validate"
        )
    epochs = trainer.get("check_val_every_n_epoch", 1)
    interval = trainer.get("val_check_interval")
    if epochs is None or not isinstance(interval, int | float | None):
        raise InputError(
            f"trainer.val_check_interval {interval}, trainer.check_val_every_n_epoch {epochs}: each"
            " epoch that is validated is so at its end too; give a share of an epoch, like 0.5, or"
            " a number of its batches, and a number of epochs"
        )


def strategy_name(strategy: Any) -> str:
    """The name of trainer.strategy; of a class with init_args the name under which it is
    registered."""
    if isinstance(strategy, str):
        return strategy
    name = strategy.class_path.rpartition(".")[2]
    classes = {"FSDP2": "fsdp2", "DDPStrategy": "ddp", "SingleDeviceStrategy": "single_device"}
    return classes.get(name, name)


def check_trainer(trainer: L.Trainer) -> list[str]:
    """Refuse a Trainer that cannot train a Detector; print and return the names of callbacks that
    it lacks and that change what is trained. One that is switched off is not missing."""
    check_recipe(
        {"precision": trainer.precision, "limit_train_batches": trainer.limit_train_batches}
    )
    profiler: Any = trainer.profiler  # type: ignore[attr-defined]
    if getattr(profiler, "_record_module_names", False):
        raise InputError(
            "trainer.profiler: names of modules are hooks, which no validation can copy with the"
            " network; give PyTorchProfiler with record_module_names false"
        )
    detector: Any = trainer.lightning_module
    if hasattr(detector.network, "_orig_mod"):  # what torch.compile returns has it
        raise InputError(
            "detector.network is a compiled module, which no validation can copy; give"
            " torch.compile(detector) or Detector(..., compile=True)"
        )
    callbacks: list[L.Callback] = trainer.callbacks  # type: ignore[attr-defined]
    names = set[str]()
    for callback in callbacks:
        names.update(kind.__name__ for kind in type(callback).__mro__)
    missing = [name for name in ("Warmup", "EMA", "AutoAnchor") if name not in names]
    if missing:
        rank_zero_print(
            f"not the whole recipe: {', '.join(missing)} of boltbox.callbacks are missing;"
            " L.Trainer(**boltbox.callbacks.recipe(...)) has all of it: docs/python.md"
        )
    return missing


def ends_in_step(trainer: L.Trainer, batch_idx: int) -> bool:
    """Whether this training batch ends in an optimizer step. True of the last batch of an epoch
    too where the Trainer accumulates without a warm-up (Trainer(accumulate_grad_batches=4))."""
    length = trainer.accumulate_grad_batches
    return length != NO_STEP and ((batch_idx + 1) % length == 0 or trainer.is_last_batch)
