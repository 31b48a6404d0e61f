"""Genes: the numbers that evolution may change, with bounds, YOLOv5's names and start values."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from optuna.distributions import FloatDistribution, IntDistribution

from boltbox.detector.commands.command_line import CONFIGS
from boltbox.detector.data.formats.format import number
from boltbox.detector.system.configuration import flatten
from boltbox.detector.system.errors import InputError, nearest
from boltbox.detector.system.text_file import parse_yaml, read_text


class Gene(NamedTuple):
    """A number of the configuration that evolution searches for.

    Attributes:
        name: YOLOv5's name, like hsv_h; for any other option, the option.
        option: place in the configuration, like data.augment.hsv_h.
        low: smallest value, inclusive.
        high: largest value, inclusive.
        log: draw and mutate the logarithm of the value (low > 0).
        is_integer: values are rounded to integers.
    """

    name: str
    option: str
    low: float
    high: float
    log: bool = False
    is_integer: bool = False

    @property
    def distribution(self) -> IntDistribution | FloatDistribution:
        """What Optuna calls the values."""
        if self.is_integer:
            return IntDistribution(round(self.low), round(self.high), log=self.log)
        return FloatDistribution(self.low, self.high, log=self.log)

    def cast(self, value: float) -> float:
        """The value as the option takes it.

        Args:
            value: any number.

        Returns:
            An integer for an integer gene, else a float.
        """
        return round(value) if self.is_integer else float(value)

    def clip(self, value: float) -> float:
        """The nearest value within the bounds.

        Args:
            value: any number.
        """
        return self.cast(min(max(value, self.low), self.high))

    def to_unit(self, value: float) -> float:
        """Position within the bounds, from 0 to 1; of the logarithm for a log gene.

        Args:
            value: within the bounds.
        """
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def from_unit(self, position: float) -> float:
        """Inverse of `to_unit`, clipped to the bounds.

        Args:
            position: 0 is low, 1 is high.
        """
        if self.log:
            return self.clip(self.low * (self.high / self.low) ** position)
        return self.clip(self.low + position * (self.high - self.low))


def _yolov5_genes() -> dict[str, Gene]:
    genes = {}
    for group, bounds in _BOUNDS.items():
        for name, (low, high) in bounds.items():
            genes[name] = Gene(name, f"{group}.{name}", low, high, is_integer=name == "anchors")
    return genes


_BOUNDS = yaml.safe_load(Path(__file__).with_name("bounds.yaml").read_text(encoding="utf-8"))
YOLOV5_GENES = _yolov5_genes()
EVOLVED = list(_BOUNDS["data.augment"])  # by default
FOLDER = CONFIGS / "hyp"
# low.yaml has all values, the others only what differs from it
FILES = ("low", "med", "high", "none", "voc", "objects365")


def read_space(path: Path, configuration: Mapping[str, Any]) -> list[Gene]:
    """Read the genes to search for from a YAML file.

    Each line names a number of the configuration, by YOLOv5's name or as option: `mosaic: ` takes
    YOLOv5's bounds, `lr0: {low: 1e-4, high: 0.1, log: true}` sets bounds.

    Args:
        path: the file.
        configuration: value by option (`flatten`); an integer there makes an integer gene.

    Raises:
        InputError: the file cannot be read, a name is unknown or not a number, or bounds are wrong.
    """
    genes: dict[str, Gene] = {}
    for name, bounds in read_map(path, "mosaic: {low: 0, high: 1}").items():
        try:
            gene = _gene_named(name, configuration)
            if gene.option in genes:
                raise InputError("named twice; remove one line")
            genes[gene.option] = _with_bounds(gene, {} if bounds is None else bounds)
        except InputError as e:
            raise InputError(f"{path}: {name}: {e}") from None
    return list(genes.values())


def read_map(path: Path, example: str) -> dict[str, Any]:
    """The keys and values of a YAML file.

    Args:
        path: the file.
        example: of a line, for the error.

    Raises:
        InputError: the file cannot be read, or is empty or no mapping.
    """
    content = parse_yaml(read_text(path), path)
    if not isinstance(content, dict) or not content:
        raise InputError(f"{path}: expected one line per number, like {example}")
    return {str(key): value for key, value in content.items()}


def _gene_named(name: str, configuration: Mapping[str, Any]) -> Gene:
    """With YOLOv5's bounds, or with nan for bounds."""
    for gene in YOLOV5_GENES.values():
        if name in (gene.name, gene.option) and gene.option in configuration:
            return gene
    if name not in configuration:
        raise InputError(
            f"no such option; {nearest(name, list(YOLOV5_GENES) + list(configuration))}"
        )
    value = configuration[name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"not a number: the configuration has {value!r}")
    return Gene(name, name, math.nan, math.nan, is_integer=isinstance(value, int))


def _with_bounds(gene: Gene, bounds: Any) -> Gene:
    if not isinstance(bounds, dict) or bounds.keys() - {"low", "high", "log"}:
        raise InputError("expected bounds, like {low: 1e-4, high: 0.1, log: true}")
    low = number(bounds.get("low", gene.low))
    high = number(bounds.get("high", gene.high))
    log = bool(bounds.get("log"))
    if not (0 if log else -math.inf) < low < high < math.inf:
        raise InputError(
            f"low is {low:g}, high is {high:g}; give finite numbers, low below high, and above 0"
            " with log"
        )
    return gene._replace(low=low, high=high, log=log)


def start_values(genes: Sequence[Gene], configuration: Mapping[str, Any]) -> list[dict[str, float]]:
    """Values of the first individuals: the configuration's, then those of configs/hyp/*.yaml.

    Args:
        genes: to take from each.
        configuration: value by option. What is null there comes from low.yaml, what is in no file
            either is the gene's lowest value.

    Returns:
        Value by gene name within the bounds.
    """
    files = []
    for name in FILES:
        files.append(flatten(yaml.safe_load((FOLDER / f"{name}.yaml").read_text())))
    start = []
    for own in (configuration, *files):
        values = {}
        for gene in genes:
            values[gene.name] = gene.cast(gene.low)
            for options in (configuration, files[0], own):  # later ones count
                value = options.get(gene.option)
                if value is not None:
                    values[gene.name] = gene.clip(value)
        start.append(values)
    return start
