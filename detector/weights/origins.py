"""The origins of a network's weights in a checkpoint: written, read, and passed on to what is
trained from it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from boltbox.detector.model.origin import UNRECORDED, Origin


def to_plain(origins: Sequence[Origin]) -> list[dict[str, str]]:
    return [origin._asdict() for origin in origins]


def origins_of(content: dict[str, Any]) -> list[Origin]:
    """Of a checkpoint's network; UNRECORDED if the checkpoint does not state them."""
    return [Origin(**entry) for entry in content.get("origins", [UNRECORDED._asdict()])]


def passed_on(content: dict[str, Any], path: str | Path) -> list[Origin]:
    """Of a network that starts from a checkpoint: those of the checkpoint, which name it too."""
    name = Path(path).name
    before = origins_of(content)
    return [Origin(f"{source} by way of {name}", licence) for source, licence in before] or [
        Origin(f"{name}, trained from scratch")
    ]
