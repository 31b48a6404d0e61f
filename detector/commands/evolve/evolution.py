"""The options of `evolve`."""

from dataclasses import dataclass
from typing import Literal

from boltbox.detector.system.errors import InputError


@dataclass(frozen=True)
class Evolution:
    """How to search.

    Args:
        generations: Of the population; in all generations x population individuals are trained.
        population: Individuals of a generation.
        study: Folder of the study, joined or continued if it exists; default: the unfinished
            runs/evolve-N of this very command, else a new one.
        storage: URL of a database (PostgreSQL, MySQL) that several machines reach, in place of the
            SQLite file in the study's folder.
        sampler: Who chooses values: YOLOv5's genetic algorithm, or Optuna's TPE or CMA-ES.
        literal: YOLOv5's algorithm to the letter: mutations of 0.1 in any unit, no elite of earlier
            generations, mAP50 alone, new anchors.
        space: File that says what is searched for, with bounds; default: YOLOv5's 13 augmentation
            values.
        workers: Trainings at a time on this machine; default: one on each GPU, without GPUs one.
        hours: No new training after so many.
        trials: No new training after so many of the study.
        prune: End hopeless trainings early: only the better quarter goes on after a 16th of the
            epochs, and after each four times as many. Which, depends on who was there first.
    """

    generations: int = 300
    population: int = 50
    study: str | None = None
    storage: str | None = None
    sampler: Literal["yolov5", "tpe", "cmaes"] = "yolov5"
    literal: bool = False
    space: str | None = None
    workers: int | None = None
    hours: float | None = None
    trials: int | None = None
    prune: Literal["none", "halving"] = "none"

    def check(self) -> None:
        """Raises:
        InputError: an option makes no sense, or two together.
        """
        least = {"generations": 1, "population": 2, "workers": 1, "trials": 1}
        for name, limit in least.items():
            value = getattr(self, name)
            if value is not None and value < limit:
                raise InputError(f"evolve.{name} is {value}; it must be at least {limit}")
        if self.hours is not None and self.hours <= 0:
            raise InputError(f"evolve.hours is {self.hours:g}; it must be more than 0")
        if self.literal and self.sampler != "yolov5":
            raise InputError(
                f"evolve.literal true is about the sampler yolov5; leave it out with {self.sampler}"
            )
        if self.storage and not self.study:
            raise InputError(
                "evolve.storage needs --evolve.study DIR: trainings are left there, and it names"
                " the study"
            )
