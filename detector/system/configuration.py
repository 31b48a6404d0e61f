"""Nested configurations: their options by dotted names, and how two configurations differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from boltbox.detector.system.errors import InputError

T = TypeVar("T")


def plain(value: Any) -> Any:
    """Python's numbers, texts and lists for those of NumPy and torch, within maps, lists and tuples
    too: a script takes options from `np.logspace`, and a checkpoint may not hold them.

    >>> import numpy as np
    >>> plain({"lr0": np.float64(0.5), "anchors": np.ones((1, 2)), "names": (np.str_("cat"),)})
    {'lr0': 0.5, 'anchors': [[1.0, 1.0]], 'names': ('cat',)}
    """
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        items = [plain(item) for item in value]
        return tuple(items) if isinstance(value, tuple) else items
    return value.tolist() if hasattr(value, "tolist") else value


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested maps -> `group.name`: value; lists and empty maps are values.

    >>> flatten({"data": {"augment": {"mosaic": 1.0}}, "run": None})
    {'data.augment.mosaic': 1.0, 'run': None}
    """
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def differences(configs: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The options that are not the same in all configurations.

    Returns:
        By dotted name, the value in each configuration; None where it is missing.

    >>> differences([{"a": 1, "b": 2}, {"a": 1, "b": 3, "c": 4}])
    {'b': [2, 3], 'c': [None, 4]}
    """
    flat_configs = [flatten(config) for config in configs]
    names: dict[str, Any] = {}  # its keys keep the order
    for flat in flat_configs:
        names |= flat
    rows = {}
    for name in names:
        values = [flat.get(name) for flat in flat_configs]
        if any(value != values[0] for value in values):
            rows[name] = values
    return rows


def as_group(kind: Any, options: T | Mapping[str, Any]) -> T:
    """A group of options, which a checkpoint holds as a map, in plain types.

    Args:
        kind: dataclass of the group.
        options: the group, or its options by name.

    Raises:
        InputError: they are neither.
    """
    if isinstance(options, Mapping):
        return kind(**plain(options))
    if not isinstance(options, kind):
        raise InputError(f"{options!r:.80} is not {kind.__name__}. Give {kind.__name__}(...)")
    return replace(options, **plain(vars(options)))


def plain_groups(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options for a checkpoint: each group as a map, in plain types.

    Args:
        options: options and groups of options, by name.
    """
    result = {}
    for name, value in options.items():
        result[name] = value.to_dict() if hasattr(value, "to_dict") else value
    return result
