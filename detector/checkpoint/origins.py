"""The origins of a network's weights in a checkpoint: written, read, and passed on to what is trained from it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from detector.checkpoint.validators import fields, instance_of, list_of
from detector.model.origin import AGPL, UNRECORDED, Origin
from detector.system.yaml_text import NO_YAML, load_yaml

ORIGINS = list_of(fields({"source": instance_of(str), "licence": instance_of(str)}))


def to_plain(origins: Sequence[Origin]) -> list[dict[str, str]]:
    return [origin._asdict() for origin in origins]


def origins_of(content: dict[str, Any]) -> list[Origin]:
    """Of a checkpoint's network. One that is older than this record may at least say its options, and so its model.weights."""
    if "origins" in content:
        return [Origin(entry["source"], entry["licence"]) for entry in content["origins"]]
    run = content.get("run")
    config = run.get("config") if isinstance(run, dict) else None
    try:
        options = load_yaml(config) if isinstance(config, str) else None
    except NO_YAML:
        options = None
    model = options.get("model") if isinstance(options, dict) else None
    if not isinstance(model, dict):
        return [UNRECORDED]
    weights = model.get("weights")
    if not isinstance(weights, str):
        return []
    return [Origin(Path(weights).name, AGPL) if Path(weights).suffix == ".pt" else Origin(Path(weights).name)]


def passed_on(content: dict[str, Any], path: str | Path) -> list[Origin]:
    """Of a network that starts from a checkpoint: those of the checkpoint, which name it too."""
    name = Path(path).name
    before = origins_of(content)
    return [Origin(f"{source} by way of {name}", licence) for source, licence in before] or [
        Origin(f"{name}, trained from scratch")
    ]
