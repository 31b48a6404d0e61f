"""YAML that users give, with limits: nothing in it costs more time or memory than its length."""

from __future__ import annotations

from typing import Any, NoReturn

import yaml

DEEPEST = 30  # maps and lists within one another
MOST_REPEATED = 10_000  # values that aliases stand for, aliases within aliases counted out
LARGEST = 4 * 2**20  # bytes; a thousand class names have 30 kB

# What a loader raises for text that is no YAML, or that its own tags do not fit (`!!bool x`, a number of 5000 digits).
NO_YAML = (yaml.YAMLError, ValueError, KeyError, IndexError, AttributeError, TypeError, OverflowError)

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class BeyondLimits(yaml.YAMLError):
    """Says which limit, and in which line."""


def load_yaml(text: str) -> Any:
    """The value that YAML text stands for: plain types.

    Raises:
        NO_YAML: it is none, or BeyondLimits.
    """
    check_limits(text)
    return yaml.load(text, Loader=_Loader)  # a safe one


def check_limits(text: str) -> None:
    """Raises BeyondLimits if the text is too long, nested too deep, or if its aliases stand for too much (ten lists of ten
    aliases each stand for 10^10 values) or for what they are part of; another YAMLError if it is no YAML."""
    if len(text) > LARGEST:
        raise BeyondLimits(f"it has {len(text) / 2**20:.0f} MB, more than the {LARGEST / 2**20:.0f} MB that are read")
    values = repeated = 0
    open_: list[tuple[str | None, int]] = []  # anchor of each map and list that is not closed yet, values before it
    sizes: dict[str, int] = {}  # values that an anchor stands for
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.AliasEvent):
            size = sizes.get(str(event.anchor), 0)
            if any(anchor == event.anchor for anchor, _ in open_):
                _refuse(event, f"the alias *{event.anchor} stands within what it stands for")
            values, repeated = values + size, repeated + size
            if repeated > MOST_REPEATED:
                _refuse(event, f"its aliases stand for more than {MOST_REPEATED} values")
        elif isinstance(event, yaml.CollectionStartEvent):
            open_.append((event.anchor, values))
            values += 1
            if len(open_) > DEEPEST:
                _refuse(event, f"it is nested more than {DEEPEST} deep")
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_.pop()
            if anchor is not None:
                sizes[anchor] = values - before
        elif isinstance(event, yaml.ScalarEvent):
            values += 1
            if event.anchor is not None:
                sizes[event.anchor] = 1


def _refuse(event: yaml.Event, why: str) -> NoReturn:
    line = event.start_mark.line + 1 if event.start_mark else "?"
    raise BeyondLimits(f"line {line}: {why}")
