"""Configurations in groups: their options by flat names, and how two configurations differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested maps -> `group.name`: value; lists are values. An empty map is a value too.

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
    """By flat name the values that are not the same in all configurations, None where there is
    none.

    >>> differences([{"a": 1, "b": 2}, {"a": 1, "b": 3, "c": 4}])
    {'b': [2, 3], 'c': [None, 4]}
    """
    flat = [flatten(config) for config in configs]
    names = dict.fromkeys(name for f in flat for name in f)
    rows = {name: [f.get(name) for f in flat] for name in names}
    return {
        name: values for name, values in rows.items() if any(value != values[0] for value in values)
    }
