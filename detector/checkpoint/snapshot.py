"""A copy of a checkpoint's content, which training cannot change any more."""

from copy import copy
from typing import Any

from torch import Tensor


def snapshot(content: Any) -> Any:
    """The same nested dicts, lists and tuples, with copies of the tensors on the CPU; other objects
    are shared. A tensor that stands in several places is copied once."""
    return _copy(content, {})


def _copy(value: Any, copies: dict[int, Tensor]) -> Any:
    if isinstance(value, Tensor):
        if id(value) not in copies:
            copies[id(value)] = value.detach().to("cpu", copy=True)
        return copies[id(value)]
    if isinstance(value, dict):
        same = copy(value)
        same.update((k, _copy(v, copies)) for k, v in value.items())
        if hasattr(value, "__dict__"):
            vars(same).update(vars(value))  # the versions of the layers, which a state_dict carries
        return same
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_copy(v, copies) for v in value))
    if type(value) in (list, tuple):
        return type(value)(_copy(v, copies) for v in value)
    return value
