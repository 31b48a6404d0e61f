"""Genes: the numbers that evolution may change, their bounds, and YOLOv5's names for them."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from detector.system.errors import InputError, nearest
from detector.system.text_file import read_text
from detector.system.yaml_text import NO_YAML, load_yaml


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


# Every key of a hyp*.yaml that is read here, with YOLOv5's bounds. iou_t is none: nothing reads it there either.
YOLOV5_GENES = {
    gene.name: gene
    for gene in (
        Gene("lr0", "model.lr0", 1e-5, 0.1),
        Gene("lrf", "model.lrf", 0.01, 1.0),
        Gene("momentum", "model.momentum", 0.6, 0.98),
        Gene("weight_decay", "model.weight_decay", 0.0, 0.001),
        Gene("warmup_epochs", "warmup.warmup_epochs", 0.0, 5.0),
        Gene("warmup_momentum", "warmup.warmup_momentum", 0.0, 0.95),
        Gene("warmup_bias_lr", "warmup.warmup_bias_lr", 0.0, 0.2),
        Gene("box", "model.box", 0.02, 0.2),
        Gene("cls", "model.cls", 0.2, 4.0),
        Gene("cls_pw", "model.cls_pw", 0.5, 2.0),
        Gene("obj", "model.obj", 0.2, 4.0),
        Gene("obj_pw", "model.obj_pw", 0.5, 2.0),
        Gene("anchor_t", "model.anchor_t", 2.0, 8.0),
        Gene("anchors", "model.anchors", 2.0, 10.0, whole=True),
        Gene("fl_gamma", "model.fl_gamma", 0.0, 2.0),
        Gene("hsv_h", "data.augment.hsv_h", 0.0, 0.1),
        Gene("hsv_s", "data.augment.hsv_s", 0.0, 0.9),
        Gene("hsv_v", "data.augment.hsv_v", 0.0, 0.9),
        Gene("degrees", "data.augment.degrees", 0.0, 45.0),
        Gene("translate", "data.augment.translate", 0.0, 0.9),
        Gene("scale", "data.augment.scale", 0.0, 0.9),
        Gene("shear", "data.augment.shear", 0.0, 10.0),
        Gene("perspective", "data.augment.perspective", 0.0, 0.001),
        Gene("flipud", "data.augment.flipud", 0.0, 1.0),
        Gene("fliplr", "data.augment.fliplr", 0.0, 1.0),
        Gene("mosaic", "data.augment.mosaic", 0.0, 1.0),
        Gene("mixup", "data.augment.mixup", 0.0, 1.0),
        Gene("copy_paste", "data.augment.copy_paste", 0.0, 1.0),
    )
}
EVOLVED = list(YOLOV5_GENES)[15:]  # by default: the augmentation


def read_space(path: Path, configuration: Mapping[str, Any]) -> tuple[list[Gene], dict[str, float]]:
    """What a file says is to be searched for.

    Each of its lines names a number of the configuration, by YOLOv5's name or as option: `mosaic: ` takes YOLOv5's bounds,
    `lr0: {low: 1e-4, high: 0.1, log: true}` others, `model.obj: 0.7` a value that stays.

    Args:
        configuration: option -> value (`flatten`); options that are whole numbers there are so as genes.

    Returns:
        the genes, and option -> value of what is fixed.

    Raises:
        InputError: the file cannot be read, a name is unknown, no number, or bounds that make no sense.
    """
    try:
        content = load_yaml(read_text(path))
    except (OSError, *NO_YAML) as e:
        raise InputError(f"evolve.space {path}: cannot be read: {' '.join(str(e).split())}") from None
    if not isinstance(content, dict) or not content:
        raise InputError(f"evolve.space {path}: give a line for each gene, like `mosaic: {{low: 0, high: 1}}`")
    genes: dict[str, Gene] = {}
    fixed: dict[str, float] = {}
    for name, given in content.items():
        try:
            searched = given is None or isinstance(given, dict)
            gene = _gene(str(name), given or {} if searched else None, configuration)
            if gene.option in fixed or gene.option in genes:
                raise InputError("it stands there twice, under two names")
            if searched:
                genes[gene.option] = gene
            else:
                fixed[gene.option] = _number(given, "it")
        except InputError as e:
            raise InputError(f"evolve.space {path}: {name}: {e}") from None
    if not genes:
        raise InputError(f"evolve.space {path}: all values are fixed; give bounds for at least one")
    return list(genes.values()), fixed


def _gene(name: str, given: Mapping[str, Any] | None, configuration: Mapping[str, Any]) -> Gene:
    """With the bounds given, or YOLOv5's; None: without, as its value stays."""
    known = YOLOV5_GENES.get(name) or next((g for g in YOLOV5_GENES.values() if g.option == name), None)
    option = known.option if known else name
    if option not in configuration:
        numbers = [k for k, v in configuration.items() if _is_number(v)]
        raise InputError(f"no such option; {nearest(name, [*YOLOV5_GENES, *numbers])}")
    if not known and not _is_number(configuration[option]):
        raise InputError(f"no number: the configuration says {configuration[option]!r}")
    if given is None:
        return known or Gene(name, option, math.nan, math.nan)
    unknown = set(given) - {"low", "high", "log", "whole"}
    if unknown:
        word = sorted(map(str, unknown))[0]
        raise InputError(f"'{word}' means nothing; {nearest(word, ['low', 'high', 'log', 'whole'])}")
    for word in ("log", "whole"):
        if not isinstance(given.get(word, False), bool):
            raise InputError(f"{word} is {given[word]!r}; it is true or false")
    whole = given.get("whole", known.whole if known else isinstance(configuration[option], int))
    gene = known or Gene(name, option, math.nan, math.nan)
    low, high = (_number(given[word], word) if word in given else getattr(gene, word) for word in ("low", "high"))
    gene = gene._replace(low=low, high=high, log=given.get("log", False), whole=whole)
    if math.isnan(gene.low) or math.isnan(gene.high):
        raise InputError("give low and high; only YOLOv5's names have bounds of their own")
    if gene.low >= gene.high:
        raise InputError(f"low {gene.low:g} is not below high {gene.high:g}")
    if gene.log and gene.low <= 0:
        raise InputError(f"low {gene.low:g} has no logarithm; with log: true it is above 0")
    if gene.whole and (gene.low % 1 or gene.high % 1):
        raise InputError(f"its bounds {gene.low:g} and {gene.high:g} are whole numbers, as it is one")
    return gene


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(value: Any, what: str) -> float:
    """YAML takes 1e-4, without a point, for a word."""
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise InputError(f"{what} is {value!r}; it must be a number")
    return number
