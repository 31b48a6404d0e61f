"""From the configuration of a command to what its study is about."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from detector.commands.evolve.evolution import Evolution
from detector.commands.evolve.plan import Plan
from detector.commands.evolve.space import EVOLVED, YOLOV5_GENES, read_space
from detector.commands.evolve.start import start_values
from detector.system.configuration import flatten
from detector.system.errors import InputError
from detector.training.optimizer import chosen_optimizer, default_rates

# What may differ from one call for a study to the next.
OF_A_CALL = ("run", "config", "trainer.logger", "trainer.default_root_dir", "trainer.enable_progress_bar")
OF_A_STUDY = ("evolve.generations", "evolve.population", "evolve.sampler", "evolve.literal", "evolve.prune", "evolve.seeds")


def planned(configuration: Mapping[str, Any]) -> tuple[Plan, dict[str, Any], dict[str, Any]]:
    """What a study is about.

    Args:
        configuration: the whole configuration of `evolve`, in groups.

    Returns:
        the plan · option -> value of all that must be the same in each call for the study · the configuration of its trainings

    Raises:
        InputError: the space makes no sense.
    """
    evolve = Evolution(**configuration["evolve"])
    options = flatten(configuration)
    optimizer = chosen_optimizer(options["model.optimizer"], options["model.weights"])
    for name, rate in default_rates(optimizer, options["model.backbone_weights"]).items():
        option = f"warmup.{name}" if name.startswith("warmup") else f"model.{name}"
        options[option] = rate if options[option] is None else options[option]
    genes = [YOLOV5_GENES[name] for name in EVOLVED]
    fixed: dict[str, float] = {}
    if evolve.space:
        genes, fixed = read_space(Path(evolve.space), options)
    if evolve.literal:
        fixed["trainer.check_val_every_n_epoch"] = options["trainer.max_epochs"] or 1
        if options["model.anchors"] is None and all(gene.name != "anchors" for gene in genes):
            fixed.setdefault("model.anchors", 3)
    options |= fixed
    seed = options["seed_everything"]
    plan = Plan(
        genes=tuple(genes),
        start=tuple(start_values(genes, options, evolve.literal)),
        sampler=evolve.sampler,
        literal=evolve.literal,
        population=evolve.population,
        generations=evolve.generations,
        seed=0 if isinstance(seed, bool) or seed is None else seed,
        prune=max((options["trainer.max_epochs"] or 1) // 16, 1) if evolve.prune == "halving" else 0,
        fixed={option: value for option, value in fixed.items() if not option.startswith("trainer.")},
    )
    kept = {k: v for k, v in options.items() if not k.startswith((*OF_A_CALL, "evolve.")) or k in OF_A_STUDY}
    kept |= {f"the gene {gene.name}": gene._asdict() for gene in genes}
    config = {group: value for group, value in configuration.items() if group not in ("evolve", "run", "config")}
    config = json.loads(json.dumps(config))
    for option, value in fixed.items():
        *groups, name = option.split(".")
        place = config
        for group in groups:
            place = place[group]
        place[name] = round(value) if isinstance(place[name], int) or option == "model.anchors" else value
    config["trainer"]["default_root_dir"], config["trainer"]["logger"] = None, False
    return plan, json.loads(json.dumps(kept)), config


def check_settings(here: Mapping[str, Any], there: Mapping[str, Any], folder: Path) -> None:
    """Raises:
    InputError: the study in `folder` was begun with other options, `there`; it names one.
    """
    for option in {**there, **here}:
        if here.get(option) != there.get(option):
            was, now = (json.dumps(side[option]) if option in side else "not there" for side in (there, here))
            raise InputError(f"{folder} was begun with other options: {option} is {was} in it and {now} here; "
                             "give the same, or another --evolve.study")  # fmt: skip
