"""Overlays: YAML files of some options, which `fit` takes with a further --config."""

from collections.abc import Mapping, Sequence
from typing import Any

import yaml


def overlay_text(options: Mapping[str, float | str], comments: Sequence[str]) -> str:
    """An overlay as text.

    Args:
        options: value by option, like data.augment.hsv_h; groups come in the order in which they
            are first named.
        comments: lines that stand before the options.
    """
    content: dict[str, Any] = {}
    for option, value in options.items():
        *groups, name = option.split(".")
        place = content
        for group in groups:
            place = place.setdefault(group, {})
        place[name] = value
    head = "".join(f"# {' '.join(line.splitlines())}\n" for line in comments)
    return head + yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
