"""The hyper-parameters of a training checkpoint: their types, and the network that they make."""

from __future__ import annotations

import inspect
import json
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from functools import lru_cache
from typing import Any, Literal, get_args, get_origin

import torch

from boltbox.detector.checkpoint.validators import MOST, InvalidContent, check_map, kind_of
from boltbox.detector.model.assigner import Assigner
from boltbox.detector.model.box_coder import BoxCoder
from boltbox.detector.model.head import Head
from boltbox.detector.model.loss import Loss
from boltbox.detector.model.network import YOLOv5
from boltbox.detector.model.network_options import NetworkOptions
from boltbox.detector.model.parts import part_config

# chosen by class_path
PARTS: dict[str, type] = {
    "network.head": Head,
    "network.box_coder": BoxCoder,
    "loss.assigner": Assigner,
    "loss.function": Loss,
}
# options that are files, which a checkpoint does not name
FILES = ("weights", "backbone_weights", "ensemble")


def build_network(num_classes: int, options: dict[str, Any]) -> YOLOv5:
    """A network from hyper-parameters, with fresh weights.

    Args:
        options: of `NetworkOptions`, by name.

    Raises:
        InputError: they make no network.
    """
    return NetworkOptions(**options).build(num_classes)


def empty_network(num_classes: int, options: dict[str, Any]) -> YOLOv5:
    """The same without memory for its tensors (device `meta`), for names and shapes. It is shared:
    not to be changed.

    Raises:
        InputError: as above.
    """
    return _empty_network(num_classes, json.dumps(options, sort_keys=True))


@lru_cache(maxsize=16)
def _empty_network(num_classes: int, options: str) -> YOLOv5:
    with torch.device("meta"):
        return build_network(num_classes, json.loads(options))


def network_options(hyper_parameters: dict[str, Any]) -> dict[str, Any]:
    """Those of the network that are given."""
    given = hyper_parameters.get("network", {})
    return {name: value for name, value in given.items() if value is not None}


def check_network_options(value: Any, where: str) -> None:
    """Types and ranges of what makes a network, and of the class names and sizes that go with it.

    Raises:
        InvalidContent: something is missing, of another type, or out of its range.
    """
    check_map(value, where)
    _check_types(value, {"names": list[str], "network": NetworkOptions}, where)
    if not value.get("names"):
        raise InvalidContent(f"{where}.names is missing or empty")
    if any("\ud800" <= letter <= "\udfff" for name in value["names"] for letter in name):
        raise InvalidContent(f"{where}.names holds half characters, which cannot be written")
    for name in ("depth_multiple", "width_multiple"):
        given = value.get("network", {}).get(name)
        if given is not None and not 0 <= given <= 16:
            raise InvalidContent(
                f"{where}.network.{name} is {kind_of(given)}, which makes no detector"
            )


def check_parts(options: dict[str, Any]) -> None:
    """Whether the classes that a user has chosen are there, and what they should be; none is
    called.

    Raises:
        MissingPart: one is not found. InputError: one is no subclass of the part's base class.
    """
    for option, base in PARTS.items():
        group, name = option.split(".")
        part_config(options.get(group, {}).get(name), base, f"model.{option}")


def check_options(value: dict[str, Any], constructor: Callable[..., Any], where: str) -> None:
    """Types of all options of a module, by its constructor's arguments.

    Raises:
        InvalidContent: one is of another type.
    """
    _check_types(
        value,
        {name: hint for name, hint in argument_types(constructor).items() if name not in FILES},
        where,
    )


def argument_types(constructor: Callable[..., Any]) -> dict[str, Any]:
    """Argument -> type, of those that say one."""
    arguments = inspect.signature(constructor, eval_str=True).parameters.values()
    return {a.name: a.annotation for a in arguments if a.annotation is not a.empty}


def _check_types(value: dict[str, Any], hints: dict[str, Any], where: str) -> None:
    for name, hint in hints.items():
        if is_dataclass(hint) and name in value:
            group = f"{where}.{name}"
            check_map(value[name], group)
            known = argument_types(hint)
            for option in value[name].keys() - known.keys():
                raise InvalidContent(f"{group}.{option} is no option")
            _check_types(value[name], known, group)
        elif name in value and not fits(value[name], hint):
            raise InvalidContent(
                f"{where}.{name} is {kind_of(value[name])}, which the option cannot be"
            )


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of an option's type: a class, list[...], Sequence[...], Literal[...], a
    part, or one of several."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return any(fits(value, argument) for argument in arguments)
    if origin is Literal:
        return isinstance(value, str | int) and value in arguments
    if origin in (Callable, Mapping):  # a part: class_path and init_args
        return isinstance(value, dict) and all(isinstance(key, str) for key in value)
    if origin in (list, Sequence):
        return isinstance(value, list if origin is list else list | tuple) and all(
            fits(v, arguments[0]) for v in value
        )
    if hint is float:
        return not isinstance(value, bool) and isinstance(value, int | float) and abs(value) < MOST
    if hint is int:
        return not isinstance(value, bool) and isinstance(value, int) and abs(value) < MOST
    return isinstance(value, type(None) if hint is None else hint)
