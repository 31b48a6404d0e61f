"""Types of options, such as numbers within bounds. The command line checks them, and in Python
`check_arguments`. Values stay int and float, as checkpoints hold them."""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from jsonargparse.typing import (
    ClosedUnitInterval,
    NonNegativeFloat,
    NonNegativeInt,
    OpenUnitInterval,
    PositiveFloat,
    PositiveInt,
    register_type,
    restricted_number_type,
)

from boltbox.detector.system.errors import InputError

AboveZero = restricted_number_type("AboveZero", float, [(">", 0), ("<=", 1)])
BelowOne = restricted_number_type("BelowOne", float, [(">=", 0), ("<", 1)])
Seed = restricted_number_type("Seed", int, [(">=", 0), ("<", 2**32)])  # that NumPy takes


def _plain(kind: Any, value: Any) -> int | float:
    try:
        return kind._type(kind(value))
    except (TypeError, ValueError):
        raise ValueError(f"Got value: {value}") from None


for _kind in (
    AboveZero,
    BelowOne,
    ClosedUnitInterval,
    NonNegativeFloat,
    NonNegativeInt,
    OpenUnitInterval,
    PositiveFloat,
    PositiveInt,
    Seed,
):
    register_type(_kind, _kind._type, partial(_plain, _kind))


def allowed(kind: Any, in_python: bool = False) -> str:
    """The values of a type, in words.

    Args:
        kind: The type.
        in_python: As Python has them, not the command line.

    >>> allowed(Literal["best", "last"]), allowed(int | None), allowed(list[int | str] | None)
    ('best or last', 'int or null', 'a list like "[a,b]" or null')
    >>> allowed(NonNegativeInt | None)
    'int >=0 or null'
    """
    parts = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    words: list[str] = []
    named = {"NoneType": "null", "bool": "true or false"}
    if in_python:
        named = {"NoneType": "None"}
    for part in parts:
        if get_origin(part) is Literal:
            words += map(str, get_args(part))
        elif get_origin(part) is Callable:
            words.append("a class")
        else:
            name = str(part) if get_args(part) else getattr(part, "__name__", str(part))
            name = re.sub(r"[\w.]+\.(\w+)", r"\1", name)
            if bounds := getattr(part, "_expression", None):
                name = f"{part._type.__name__} {bounds.replace('v', '')}"
            if get_origin(part) in (list, tuple) and not in_python:
                name = 'a list like "[a,b]"'
            words.append(named.get(name, name))
    *most, last = dict.fromkeys(words)
    return f"{', '.join(most)} or {last}" if most else last


_signature = cache(partial(inspect.signature, eval_str=True))  # slow: 0.2 ms


def check_arguments(function: Callable[..., Any], values: Mapping[str, Any]) -> None:
    """Compare arguments with their annotations.

    Args:
        function: That takes them, or a class.
        values: Arguments by name, such as `locals()` at the start of the function. Other names in
            it are ignored.

    Raises:
        InputError: One does not fit.
    """
    for name, parameter in _signature(function).parameters.items():
        kind = parameter.annotation
        if name in values and not _fits(values[name], kind):
            raise InputError(
                f"{function.__qualname__}.{name} is {values[name]!r:.80}; it must be"
                f" {allowed(kind, in_python=True)}"
            )


@dataclass(frozen=True)
class CheckedOptions:
    """Base of dataclasses whose fields are compared with their annotations.

    Raises:
        InputError: One does not fit.
    """

    def __post_init__(self) -> None:
        # fields of a user's subclass may have annotations of any kind
        own = next(kind for kind in type(self).__mro__ if kind.__module__.startswith("boltbox."))
        check_arguments(own, vars(self))


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value is of a type, or NumPy's or torch's of that. A list may be any collection,
    a bool 0 or 1. Of a callable or a map no more is compared.

    >>> _fits(1, NonNegativeFloat), _fits("1", NonNegativeFloat), _fits([1, "a"], list[int])
    (True, False, False)
    """
    if hasattr(value, "tolist"):
        value = value.tolist()
    origin = get_origin(kind)
    parts = get_args(kind)
    if origin in (Union, UnionType):
        return any(_fits(value, part) for part in parts)
    if origin is Literal:
        return value in parts
    if origin in (list, tuple, Sequence):
        if isinstance(value, str | Mapping) or not hasattr(value, "__len__"):
            return False
        return all(_fits(item, parts[0]) for item in value)
    if origin:  # a map or, as a map in a checkpoint, a callable
        return isinstance(value, (origin, Mapping))
    if kind is Any:
        return True
    if kind is bool:
        return value in (0, 1)
    if not issubclass(kind, int | float):
        # by name: callbacks and loggers may be those of the package pytorch_lightning
        return any(base.__name__ == kind.__name__ for base in type(value).__mro__)
    number = getattr(kind, "_type", kind)  # int or float
    if number is float and type(value) is int:
        value = float(value)
    if type(value) is not number:
        return False
    try:
        kind(value)
    except ValueError:
        return False
    return True
