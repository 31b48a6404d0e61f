"""What a training checkpoint must hold: the one place that looks at its shape, so that nobody after it has to.

A file can be whole, hold nothing but tensors and plain types, and still be none of ours: a word where a count belongs, another
network's tensors under our names. Everything that Lightning and we read on a resume is looked at here; what callbacks of others
keep is not.
"""

from __future__ import annotations

import collections.abc
import json
import random
import types
import typing
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, get_args, get_origin

import numpy as np
import torch
from lightning.pytorch.callbacks.early_stopping import EarlyStoppingReason
from packaging.version import InvalidVersion, Version
from torch import Tensor

from detector.checkpoint.validators import (
    MOST,
    Unlike,
    anything,
    check_map,
    check_tensor,
    each,
    fields,
    integer,
    items,
    join,
    kind_of,
    maybe,
    number,
    typed,
)
from detector.model.assigner import Assigner
from detector.model.box_coder import BoxCoder
from detector.model.head import Head
from detector.model.loss import Loss
from detector.model.loss_sums import OF_OLDER_RUNS
from detector.model.network import YOLOv5
from detector.model.parts import MissingPart, part_config
from detector.system.errors import InputError

# options that make a network
NETWORK = ("size", "depth_multiple", "width_multiple", "levels", "anchors", "activation", "head", "box_coder")
PARTS: dict[str, type] = {"head": Head, "assigner": Assigner, "loss": Loss, "box_coder": BoxCoder}  # chosen by class_path
OLDEST = Version("2.0")  # of Lightning; older ones kept their loops in another way


def check_checkpoint(content: dict[str, Any]) -> None:
    """Look at the whole content of a training checkpoint.

    Raises:
        Unlike: something is missing, of another type, out of its range, or does not go with the rest.
    """
    CHECKPOINT(content, "")
    check_detector(content)
    names = content["hyper_parameters"]["names"]
    for key in ("class_maps", "epoch_maps"):
        if key in content.get("DetectionData", {}) and len(content["DetectionData"][key]) != len(names):
            raise Unlike(f"DetectionData.{key} has another length than its {len(names)} class names")
    everyone = content.get("processes") or []
    if everyone and "accumulate_grad_batches" not in content:
        raise Unlike("accumulate_grad_batches is missing")
    for i, process in enumerate(everyone):
        if process["gradients"].keys() != everyone[0]["gradients"].keys():
            raise Unlike(f"processes.{i}.gradients has other names than that of the first process")
        for name, gradient in process["gradients"].items():
            parameter = content["state_dict"].get(f"network.{name}")
            if parameter is None or parameter.shape != gradient.shape:
                raise Unlike(f"processes.{i}.gradients.{name} belongs to no parameter of the network")


def check_detector(content: dict[str, Any]) -> None:
    """Look at `hyper_parameters` and `state_dict`: they must make a network and fill it.

    Raises:
        Unlike: as above.
    """
    DETECTOR(content, "")
    options, tensors = content["hyper_parameters"], content["state_dict"]
    try:
        for option, base in PARTS.items():
            part_config(options.get(option), base, f"model.{option}")
        wanted = network_shapes(len(options["names"]), network_options(options))
    except MissingPart:
        raise
    except InputError as e:
        raise Unlike(f"hyper_parameters make no network: {e}") from None
    present = [p for p in ("network.", "ema.") if p == "network." or any(name.startswith(p) for name in tensors)]
    for prefix in present:
        given = {name.removeprefix(prefix): tuple(t.shape) for name, t in tensors.items() if name.startswith(prefix)}
        wrong = {name for name in given.keys() | wanted.keys() if given.get(name) != wanted.get(name)}
        if wrong:
            raise Unlike(
                f"state_dict does not fill the network that hyper_parameters describe ({len(wrong)} tensors, like "
                f"{prefix}{min(wrong)})"
            )


def network_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a detector's options that make a network, as far as they are given."""
    return {key: options[key] for key in NETWORK if options.get(key) is not None}


def network_shapes(num_classes: int, options: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every tensor of such a network; no memory is taken for them.

    Raises:
        InputError: the options make no network.
    """
    return _network_shapes(num_classes, json.dumps(options))


@cache
def _network_shapes(num_classes: int, options: str) -> dict[str, tuple[int, ...]]:
    with torch.device("meta"):
        network = YOLOv5(num_classes, **json.loads(options))
    return {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}


# ---- options


def option_hints() -> dict[str, Any]:
    """Option of a detector -> type. The module is imported late: it reads checkpoints by this one."""
    from detector.training.module import Detector

    hints = typing.get_type_hints(Detector.__init__)
    return {name: hint for name, hint in hints.items() if name not in ("weights", "ensemble", "return")}


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of an option's type: a class, list[...], Literal[...], or one of several."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return any(fits(value, argument) for argument in arguments)
    if origin is Literal:
        return isinstance(value, str | int) and value in arguments
    if origin is collections.abc.Callable:  # a part: class_path and init_args
        return isinstance(value, dict) and all(isinstance(key, str) for key in value)
    if origin is list:
        return isinstance(value, list) and all(fits(entry, arguments[0]) for entry in value)
    if hint is float:
        return not isinstance(value, bool) and isinstance(value, int | float) and abs(value) < MOST
    if hint is int:
        return not isinstance(value, bool) and isinstance(value, int) and abs(value) < MOST
    return isinstance(value, type(None) if hint is None else hint)


def _options(value: Any, where: str) -> None:
    check_map(value, where)
    for name, hint in option_hints().items():
        if name in value and not fits(value[name], hint):
            raise Unlike(f"{where}.{name} is {kind_of(value[name])}, which the option cannot be")
    if not value.get("names"):
        raise Unlike(f"{where}.names is missing or empty")
    if any("\ud800" <= letter <= "\udfff" for name in value["names"] for letter in name):
        raise Unlike(f"{where}.names holds half characters, which cannot be written")
    for name, least in (("image_size", 1), ("batch_size", 1), ("depth_multiple", 0), ("width_multiple", 0)):
        given = value.get(name)
        if given is not None and not least <= given <= (16 if "multiple" in name else 2**24):
            raise Unlike(f"{where}.{name} is {kind_of(given)}, which makes no detector")


# ---- what Lightning keeps


def _version(value: Any, where: str) -> None:
    try:
        good = isinstance(value, str) and Version(value[:100]) >= OLDEST
    except InvalidVersion:
        good = False
    if not good:
        raise Unlike(f"{where} is not that of a Lightning since {OLDEST}")


COUNT = integer()
COUNTS = each(COUNT)
READY = fields({"ready": COUNT, "completed": COUNT}, {"started": COUNT, "processed": COUNT})
PROGRESS = fields({"total": READY, "current": READY}, {"is_last_batch": typed(bool)})
OPTIMIZER_PROGRESS = fields({"optimizer": fields({"step": PROGRESS, "zero_grad": PROGRESS})})
LOOP_STATE = fields({}, {"_batches_that_stepped": COUNT, "combined_loader": items(anything)})


def _loop(value: Any, where: str) -> None:
    """Lightning names the parts by their paths: `epoch_loop.batch_progress`."""
    check_map(value, where)
    if where.endswith("fit_loop"):
        FIT(value, where)
    for key, part in value.items():
        name = key.rpartition(".")[2] if isinstance(key, str) else ""
        inner = (
            OPTIMIZER_PROGRESS
            if name == "optim_progress"
            else BATCHES
            if name == "batch_progress" and "predict" not in where
            else PROGRESS
            if name.endswith("progress")
            else LOOP_STATE
        )
        inner(part, join(where, key))


BATCHES = fields({"total": READY, "current": READY, "is_last_batch": typed(bool)})
FIT = fields({"epoch_progress": PROGRESS, "epoch_loop.batch_progress": BATCHES})
LOOPS = fields(dict.fromkeys(("fit_loop", "validate_loop", "test_loop", "predict_loop"), _loop))
SCALER = fields(
    {"scale": number, "growth_factor": number, "backoff_factor": number, "growth_interval": COUNT, "_growth_tracker": COUNT}
)


def _reason(value: Any, where: str) -> None:
    if not isinstance(value, int) or value not in [reason.value for reason in EarlyStoppingReason]:
        raise Unlike(f"{where} is {kind_of(value)}, which is no reason to stop")


# ---- what we keep


def _scalar(value: Any, where: str) -> None:
    check_tensor(value, where)
    if value.numel() != 1:
        raise Unlike(f"{where} holds {value.numel()} numbers, not one")


def _losses(value: Any, where: str) -> None:
    """A LossSums; of older runs its tensor alone."""
    if isinstance(value, Tensor):
        value = {"names": OF_OLDER_RUNS, "sums": value}
    fields({"names": items(typed(str)), "sums": check_tensor})(value, where)
    if value["sums"].shape != (len(value["names"]) + 1,):
        raise Unlike(f"{where} does not hold {len(value['names']) + 1} numbers")


def _iterations(value: Any, where: str) -> None:
    fields({"sum": maybe(items(typed(float)))}, {"names": items(typed(str))})(value, where)
    if value["sum"] is not None:
        items(typed(float), len(value.get("names", OF_OLDER_RUNS)) + 1)(value["sum"], join(where, "sum"))


RANDOM = fields({"torch": check_tensor, "python": items(anything, 3), "numpy": items(anything, 5)}, {"cuda": check_tensor})


def _random(value: Any, where: str) -> None:
    """Tried on generators that nobody uses; NumPy's does not look at the position, so we do."""
    RANDOM(value, where)
    try:
        torch.Generator().set_state(value["torch"])
        if "cuda" in value and torch.cuda.is_available():
            torch.Generator("cuda").set_state(value["cuda"])
        random.Random().setstate(value["python"])
        maybe(number)(value["python"][2], f"{where}.python.2")
        kind, keys, position, has_gauss, cached = value["numpy"]
        items(integer(0, 2**32 - 1), 624)(keys, f"{where}.numpy.1")
        integer(0, 624)(position, f"{where}.numpy.2")
        integer(0, 1)(has_gauss, f"{where}.numpy.3")
        number(cached, f"{where}.numpy.4")
        np.random.RandomState().set_state((kind, np.array(keys, np.uint32), position, has_gauss, cached))
    except (TypeError, ValueError, OverflowError, RuntimeError, LookupError) as e:
        raise Unlike(f"{where} is no state of a random generator ({type(e).__name__})") from None


def _best(value: Any, where: str) -> None:
    """Of EpochLines: nothing yet, or all of it."""
    if value != {}:
        fields({"epoch": COUNT, "fitness": number, "mAP50-95": number})(value, where)


CALLBACKS = {  # by class name; the states of others' callbacks are their own matter
    "Warmup": fields({"last_step": integer(-1)}),
    "EMA": fields({"updates": COUNT}),
    "EarlyStop": fields(
        {"wait_count": COUNT, "stopped_epoch": COUNT, "best_score": _scalar, "patience": COUNT},
        {"stopping_reason": _reason, "stopping_reason_message": maybe(typed(str))},
    ),
    "FlightRecorder": fields({"roll_backs": COUNT, "lr0": number}),
    "Dashboard": fields({"best": each(number), "spent": COUNTS}),
    "EpochLines": fields({"best": _best}),
    "Iterations": _iterations,
    "MetricsFiles": fields({"best": number}),
    "Checkpoints": fields({"best_fitness": number}),
}


def _callbacks(value: Any, where: str) -> None:
    each(each(anything, object))(value, where)
    for key, state in value.items():
        inner = CALLBACKS.get(key.partition("{")[0])
        if inner and state:
            inner(state, join(where, key))


OPTIMIZER = fields(
    {},
    {
        "state": each(each(lambda v, where: check_tensor(v, where) if isinstance(v, Tensor) else maybe(number)(v, where)), int),
        "param_groups": items(fields({"params": items(COUNT)})),
    },
)
DETECTOR = fields({"state_dict": each(check_tensor), "hyper_parameters": _options})
CHECKPOINT = fields(
    {
        "state_dict": each(check_tensor),
        "hyper_parameters": _options,
        "optimizer_states": items(OPTIMIZER),
        "loops": LOOPS,
        "callbacks": _callbacks,
        "lr_schedulers": items(anything),
        "epoch": COUNT,
        "global_step": COUNT,
        "pytorch-lightning_version": _version,
    },
    {
        "DetectionData": fields({"class_maps": items(number)}, {"epoch_maps": items(number)}),
        "MixedPrecision": SCALER,
        "native_amp_scaling_state": SCALER,
        "processes": maybe(items(fields({"gradients": each(check_tensor), "epoch_losses": _losses, "random": _random}))),
        "accumulate_grad_batches": integer(1),
        "run": fields(
            {},
            {"config": typed(str), "names": items(typed(str)), "loggers": each(maybe(typed(str))), "versions": each(anything)},
        ),
    },
)
