"""What a study is about; it stays the same from its first trial to its last."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from jsonargparse.typing import PositiveFloat, PositiveInt

from boltbox.detector.commands.evolve.space import (
    EVOLVED,
    YOLOV5_GENES,
    Gene,
    read_space,
    start_values,
)
from boltbox.detector.system.configuration import flatten
from boltbox.detector.system.errors import InputError
from boltbox.detector.training.optimizer import OptimOptions, StartingPoint

# What may differ from one command for a study to the next.
OF_A_COMMAND = (
    "run",
    "config",
    "trainer.logger",
    "trainer.default_root_dir",
    "trainer.enable_progress_bar",
    "evolve.space",
    "evolve.workers",
    "evolve.hours",
)


@dataclass(frozen=True)
class Evolution:
    """How to search.

    Args:
        generations: Generations; generations x population individuals are trained. The 300 x 50 of
            YOLOv5: --config configs/evolve_yolov5.yaml.
        population: Individuals per generation.
        sampler: Source of values: YOLOv5's genetic algorithm, or Optuna's TPE.
        space: File of the values to search for, with bounds; default: YOLOv5's 13 augmentation
            values.
        workers: Simultaneous training runs; default: one per GPU, or one.
        hours: No new training after this many hours; null: no limit. The same command continues.
    """

    generations: PositiveInt = 10
    population: PositiveInt = 12
    sampler: Literal["yolov5", "tpe"] = "yolov5"
    space: str | None = None
    workers: PositiveInt | None = None
    hours: PositiveFloat | None = 12.0

    @property
    def size(self) -> int:
        """Individuals in all."""
        return self.population * self.generations


class Plan(NamedTuple):
    """How a study searches.

    Attributes:
        genes: numbers to search for.
        evolve: the options.
        start: values of the first individuals; the sampler chooses those of the others.
        seed: of everything random.
        fixed: value by option, which replaces the configuration's in all training runs.
    """

    genes: tuple[Gene, ...]
    evolve: Evolution
    start: tuple[Mapping[str, float], ...] = ()
    seed: int = 0
    fixed: Mapping[str, float] = {}


def planned(configuration: Mapping[str, Any]) -> tuple[Plan, dict[str, Any], dict[str, Any]]:
    """Plan a study.

    Args:
        configuration: the complete configuration of `evolve`, in groups.

    Returns:
        The plan, value by option for all options that must stay the same in the study, and the
        configuration of its training runs.

    Raises:
        InputError: the space or the population makes no sense.
    """
    evolve = Evolution(**configuration["evolve"])
    if evolve.sampler == "yolov5" and evolve.population < 2:
        raise InputError("evolve.population is 1; a child has two parents, so give 2 or more")
    options = _with_default_rates(configuration)
    if evolve.space:
        genes, fixed = read_space(Path(evolve.space), options)
    else:
        genes = [YOLOV5_GENES[name] for name in EVOLVED]
        fixed = {}
    options |= fixed
    start = tuple(start_values(genes, options))
    plan = Plan(tuple(genes), evolve, start, int(options["seed_everything"] or 0), fixed)
    settings: dict[str, Any] = {}
    for option, value in options.items():
        if not option.startswith(OF_A_COMMAND):
            settings[option] = value
    for gene in genes:
        settings[f"the gene {gene.name}"] = gene
    config = dict(configuration)
    for name in ("evolve", "run", "config"):
        config.pop(name, None)
    config["trainer"] = config["trainer"] | {"default_root_dir": None, "logger": False}
    return plan, json.loads(json.dumps(settings)), config


def _with_default_rates(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """Value by option; what is null is the value that `fit` would choose for the optimizer."""
    options = flatten(configuration)
    start = StartingPoint.of(
        options["model.start.weights"], options["model.start.backbone_weights"]
    )
    optim = OptimOptions(**configuration["model"]["optim"]).resolve(start)
    rates = {f"model.optim.{name}": value for name, value in vars(optim).items()}
    for name, value in optim.defaults._asdict().items():
        rates[f"warmup.{name}"] = value
    for option, value in options.items():
        if value is None:
            options[option] = rates.get(option)
    return options
