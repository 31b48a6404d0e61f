"""What a network's weights started from, and under which licence, as far as a file or its authors
say."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

UNKNOWN = "unknown"
AGPL = "AGPL-3.0"  # of YOLOv5's weights, https://www.ultralytics.com/license
AGPL_IN_PRODUCTS = (
    "Ultralytics holds that AGPL-3.0 extends to models trained from its weights: a product or"
    " service with such a model has to publish its whole source under that licence, or needs"
    " Ultralytics' enterprise licence (this is no legal advice)"
)


class Origin(NamedTuple):
    """What weights started from.

    Attributes:
        source: A file's name, or that of published weights.
        licence: As their authors name it, or UNKNOWN.
    """

    source: str
    licence: str = UNKNOWN


UNRECORDED = Origin("an unrecorded source")  # of files that do not say


def describe_origins(origins: Sequence[Origin]) -> str:
    """One line on the weights of a trained network.

    >>> describe_origins([])
    'trained from scratch'
    >>> describe_origins([Origin("best.ckpt"), Origin("timm/resnet18.a1_in1k", "apache-2.0")])
    'started from best.ckpt (licence: unknown) and timm/resnet18.a1_in1k (licence: apache-2.0)'
    >>> describe_origins([Origin("yolov5n.pt", AGPL)])[:47]
    'started from yolov5n.pt (licence: AGPL-3.0). Ul'
    """
    if not origins:
        return "trained from scratch"
    parts = [f"{source} (licence: {licence})" for source, licence in origins]
    line = f"started from {' and '.join(parts)}"
    licences = [licence for _, licence in origins]
    return f"{line}. {AGPL_IN_PRODUCTS}" if AGPL in licences else line


def to_plain(origins: Sequence[Origin]) -> list[dict[str, str]]:
    """As a checkpoint holds them."""
    return [origin._asdict() for origin in origins]


def origins_of(content: dict[str, Any]) -> list[Origin]:
    """Of a checkpoint's network; UNRECORDED if the checkpoint does not state them."""
    if "origins" not in content:
        return [UNRECORDED]
    return [Origin(**entry) for entry in content["origins"]]


def passed_on(origins: Sequence[Origin], path: str | Path) -> list[Origin]:
    """Of a network that starts from a checkpoint: those of the checkpoint, which name it too."""
    name = Path(path).name
    if not origins:
        return [Origin(f"{name}, trained from scratch")]
    return [Origin(f"{source} by way of {name}", licence) for source, licence in origins]
