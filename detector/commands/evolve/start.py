"""The individuals that an evolution starts from."""

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from boltbox.detector.commands.command_line import CONFIGS
from boltbox.detector.commands.evolve.space import Gene
from boltbox.detector.system.configuration import flatten

FOLDER = CONFIGS / "hyp"
# low.yaml has all values, the others what differs from it
FILES = ("low", "med", "high", "none", "voc", "objects365")
USUAL_ANCHORS = 3.0  # a level, where the configuration names none


def start_values(
    genes: Sequence[Gene], configuration: Mapping[str, Any], literal: bool
) -> list[dict[str, float]]:
    """Values of the genes, by name, within their bounds: the configuration's own, then those of
    configs/hyp/*.yaml, no set twice. YOLOv5: the files' alone.

    Args:
        configuration: option -> value, for what the files do not name.
    """
    files = [flatten(yaml.safe_load((FOLDER / f"{name}.yaml").read_text())) for name in FILES]
    bases = [dict(configuration), *({**configuration, **files[0], **file} for file in files)]
    found: list[dict[str, float]] = []
    for base in bases[literal:]:
        values = {
            gene.name: gene.used(min(max(_value(gene, base), gene.low), gene.high))
            for gene in genes
        }
        if values not in found:
            found.append(values)
    return found


def _value(gene: Gene, base: Mapping[str, Any]) -> float:
    value = base.get(gene.option)
    return USUAL_ANCHORS if value is None else float(value)
