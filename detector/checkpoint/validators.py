"""Checks of values that somebody else wrote, put together to describe what a file must hold."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

MOST = 2**53  # of a count: exact as a float too
Check = Callable[[Any, str], None]  # value, where it is; raises InvalidContent


class InvalidContent(Exception):
    """Says where a checkpoint is unlike one, and what should be there."""


def check_tensor(value: Any, where: str) -> None:
    """A plain one: real numbers, on the CPU, no larger than what the file holds for it."""
    if not isinstance(value, Tensor):
        raise InvalidContent(f"{where} is {kind_of(value)}, not a tensor")
    odd = (
        type(value) not in (Tensor, nn.Parameter)
        or value.layout != torch.strided
        or value.is_quantized
        or value.is_complex()
    )
    if (
        odd
        or value.device.type != "cpu"
        or value.numel() * value.element_size() > value.untyped_storage().nbytes()
    ):
        raise InvalidContent(f"{where} is an unusual tensor, not one of plain numbers")


def fields(required: dict[str, Check], optional: dict[str, Check] | None = None) -> Check:
    """A dict with these keys, and any others."""

    def check(value: Any, where: str) -> None:
        check_map(value, where)
        for key, inner in required.items():
            if key not in value:
                raise InvalidContent(f"{join(where, key)} is missing")
            inner(value[key], join(where, key))
        for key, inner in (optional or {}).items():
            if key in value:
                inner(value[key], join(where, key))

    return check


def mapping_of(inner: Check, keys: type | types.UnionType = str) -> Check:
    """A dict with keys of one type, and values that are alike."""

    def check(value: Any, where: str) -> None:
        check_map(value, where)
        for key, entry in value.items():
            if not isinstance(key, keys):
                raise InvalidContent(f"{where or 'the checkpoint'} has {kind_of(key)} as a key")
            inner(entry, join(where, key))

    return check


def list_of(inner: Check, length: int | None = None) -> Check:
    """A list."""

    def check(value: Any, where: str) -> None:
        if not isinstance(value, list | tuple):
            raise InvalidContent(f"{where} is {kind_of(value)}, not a list")
        if length is not None and len(value) != length:
            raise InvalidContent(f"{where} has {len(value)} entries, not {length}")
        for i, entry in enumerate(value):
            inner(entry, join(where, i))

    return check


def number(value: Any, where: str) -> None:
    """nan too: a figure may be that."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or (isinstance(value, int) and abs(value) > MOST)
    ):
        raise InvalidContent(f"{where} is {kind_of(value)}, not a number")


def integer(low: int = 0, high: int = MOST) -> Check:
    def check(value: Any, where: str) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise InvalidContent(f"{where} is {kind_of(value)}, not a whole number from {low} on")

    return check


def instance_of(kind: type) -> Check:
    def check(value: Any, where: str) -> None:
        if not isinstance(value, kind):
            raise InvalidContent(f"{where} is {kind_of(value)}, not a {kind.__name__}")

    return check


def nullable(inner: Check) -> Check:
    return lambda value, where: None if value is None else inner(value, where)


def anything(value: Any, where: str) -> None:
    pass


def check_map(value: Any, where: str) -> None:
    if not isinstance(value, dict):
        raise InvalidContent(f"{where or 'the checkpoint'} is {kind_of(value)}, not a map")


def join(where: str, key: Any) -> str:
    """Names that somebody else chose are cut: a message is one line."""
    name = key if isinstance(key, str) else kind_of(key)
    name = " ".join(name.encode(errors="backslashreplace").decode().split())[:80]
    return f"{where}.{name}" if where else name


def kind_of(value: Any) -> str:
    if isinstance(value, bool | int | float):
        small = isinstance(value, float) or abs(value) < 10**15
        return str(value) if small else "a number of many digits"
    return "None" if value is None else f"a {type(value).__name__}"
