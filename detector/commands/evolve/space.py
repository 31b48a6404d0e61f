"""Genes: the numbers that evolution may change, their bounds, YOLOv5's names for them, and the
values that it starts from."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from boltbox.detector.commands.command_line import CONFIGS
from boltbox.detector.system.configuration import flatten
from boltbox.detector.system.errors import InputError, nearest
from boltbox.detector.system.text_file import parse_yaml, read_text


class Gene(NamedTuple):
    """A number of the configuration that is searched for.

    Attributes:
        name: YOLOv5's name, like hsv_h; that of any other option is the option itself.
        option: where the number stands in the configuration, like data.augment.hsv_h.
        low, high: bounds; both may be taken.
        log: drawn and mutated by its logarithm (low > 0).
        whole: a whole number.
    """

    name: str
    option: str
    low: float
    high: float
    log: bool = False
    whole: bool = False

    def used(self, value: float) -> float:
        """As the option's value: rounded if it is a whole number."""
        return round(value) if self.whole else float(value)

    def to_unit(self, value: float) -> float:
        """Its place within 0..1 of the range, by the logarithm of a log gene."""
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def from_unit(self, place: float) -> float:
        """The reverse; never out of the bounds."""
        span = self.high - self.low
        value = self.low * (self.high / self.low) ** place if self.log else self.low + place * span
        return self.used(min(max(value, self.low), self.high))


_BOUNDS = yaml.safe_load(Path(__file__).with_name("bounds.yaml").read_text(encoding="utf-8"))
YOLOV5_GENES = {
    name: Gene(name, f"{group}.{name}", low, high, whole=name == "anchors")
    for group, genes in _BOUNDS.items()
    for name, (low, high) in genes.items()
}
EVOLVED = list(_BOUNDS["data.augment"])  # by default
FOLDER = CONFIGS / "hyp"
# low.yaml has all values, the others what differs from it
FILES = ("low", "med", "high", "none", "voc", "objects365")
USUAL_ANCHORS = 3.0  # a level, where the configuration names none


def read_space(path: Path, configuration: Mapping[str, Any]) -> tuple[list[Gene], dict[str, float]]:
    """What a file says is to be searched for.

    Each of its lines names a number of the configuration, by YOLOv5's name or as option: `mosaic: `
    takes YOLOv5's bounds, `lr0: {low: 1e-4, high: 0.1, log: true}` others, `model.loss.obj: 0.7` a
    value that stays.

    Args:
        configuration: option -> value (`flatten`); options that are whole numbers there are so as
            genes.

    Returns:
        the genes, and option -> value of what is fixed.

    Raises:
        InputError: the file cannot be read, a name is unknown, no number, or bounds that make no
            sense.
    """
    genes: dict[str, Gene] = {}
    fixed: dict[str, float] = {}
    for name, given in read_map(path, "mosaic: {low: 0, high: 1}").items():
        try:
            gene = _known(name, configuration)
            if gene.option in (*fixed, *genes):
                raise InputError("it stands there twice, under two names")
            if given is None or isinstance(given, dict):
                genes[gene.option] = _bounded(gene, given or {})
            else:
                fixed[gene.option] = gene.used(as_number(given, "it"))
        except InputError as e:
            raise InputError(f"{path}: {name}: {e}") from None
    if not genes:
        raise InputError(f"{path}: all values are fixed; give bounds for at least one")
    return list(genes.values()), fixed


def read_map(path: Path, example: str) -> dict[str, Any]:
    """The keys and values of a YAML file.

    Raises:
        InputError: it cannot be read or has none.
    """
    content = parse_yaml(read_text(path), path)
    if not isinstance(content, dict) or not content:
        raise InputError(f"{path}: expected a line for each number, like {example}")
    return {str(key): value for key, value in content.items()}


def as_number(value: Any, what: str) -> float:
    """YAML takes 1e-4, without a point, for a word."""
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise InputError(f"{what} is {str(value)[:40]!r}; expected a finite number")
    return number


def _known(name: str, configuration: Mapping[str, Any]) -> Gene:
    """With YOLOv5's bounds, or without any."""
    for gene in YOLOV5_GENES.values():
        if name in (gene.name, gene.option) and gene.option in configuration:
            return gene
    value = configuration.get(name)
    if name not in configuration:
        raise InputError(f"no such option; {nearest(name, [*YOLOV5_GENES, *configuration])}")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"no number: the configuration says {value!r}")
    return Gene(name, name, math.nan, math.nan, whole=isinstance(value, int))


def _bounded(gene: Gene, given: Mapping[str, Any]) -> Gene:
    """With the bounds that a file gives."""
    for word in given:
        if word not in ("low", "high", "log"):
            raise InputError(f"unknown key '{word}'; {nearest(str(word), ['low', 'high', 'log'])}")
    low = as_number(given["low"], "low") if "low" in given else gene.low
    high = as_number(given["high"], "high") if "high" in given else gene.high
    log = bool(given.get("log"))
    if math.isnan(low + high):
        raise InputError("give low and high; only YOLOv5's names have bounds of their own")
    if low >= high or (log and low <= 0):
        raise InputError(f"low {low:g} and high {high:g}: low is below high, and with log above 0")
    return gene._replace(low=low, high=high, log=log)


def start_values(genes: Sequence[Gene], configuration: Mapping[str, Any]) -> list[dict[str, float]]:
    """Values of the genes, by name, within their bounds: the configuration's own, then those of
    configs/hyp/*.yaml, no set twice.

    Args:
        configuration: option -> value, for what the files do not name.
    """
    files = [flatten(yaml.safe_load((FOLDER / f"{name}.yaml").read_text())) for name in FILES]
    bases = [configuration, *({**configuration, **files[0], **file} for file in files)]
    found: list[dict[str, float]] = []
    for base in bases:
        values = {}
        for gene in genes:
            value = base.get(gene.option)
            number = USUAL_ANCHORS if value is None else float(value)
            values[gene.name] = gene.used(min(max(number, gene.low), gene.high))
        if values not in found:
            found.append(values)
    return found
