"""The options of `evolve`."""

from dataclasses import dataclass
from typing import Literal

from detector.system.errors import InputError


@dataclass(frozen=True)
class Evolution:
    """How to search.

    Args:
        generations: Of the population; in all about generations x population trainings.
        population: Individuals of a generation.
        study: Folder of the study, joined or continued if it exists; default: the unfinished runs/evolve-N of this very
            command, else a new one.
        storage: Optuna storage URL in place of the journal in the study's folder.
        sampler: Who chooses values: YOLOv5's genetic algorithm, or Optuna's TPE, CMA-ES, NSGA-II. Only with yolov5 does what is
            trained not depend on the number of workers.
        literal: YOLOv5's algorithm to the letter: mutations of 0.1 in any unit, no survivors, mAP50 alone, new anchors.
        space: File that says what is searched for, with bounds; default: YOLOv5's 13 augmentation values.
        workers: Trainings at a time on this machine; default: one on each GPU, without GPUs one.
        hours: No new training after so many.
        trials: No new training after so many of the study.
        prune: End hopeless trainings early: only the better quarter goes on after a 16th of the epochs, and after each four
            times as many. Which, depends on who was there first.
        seeds: Trainings of each individual, whose mean fitness counts.
        deadline: Give a training up after so many seconds.
    """

    generations: int = 300
    population: int = 50
    study: str | None = None
    storage: str | None = None
    sampler: Literal["yolov5", "tpe", "cmaes", "nsgaii"] = "yolov5"
    literal: bool = False
    space: str | None = None
    workers: int | None = None
    hours: float | None = None
    trials: int | None = None
    prune: Literal["none", "halving"] = "none"
    seeds: int = 1
    deadline: float | None = None

    def check(self) -> None:
        """Raises:
        InputError: an option makes no sense, or two together.
        """
        least = {"generations": 1, "population": 2, "workers": 1, "trials": 1, "seeds": 1}
        for name, limit in least.items():
            value = getattr(self, name)
            if value is not None and value < limit:
                raise InputError(f"evolve.{name} is {value}; it must be at least {limit}")
        for name in ("hours", "deadline"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise InputError(f"evolve.{name} is {value:g}; it must be more than 0")
        if self.literal and self.sampler != "yolov5":
            raise InputError(f"evolve.literal true is about the sampler yolov5; leave it out with {self.sampler}")
        if self.storage and not self.study:
            raise InputError("evolve.storage needs --evolve.study DIR: trainings are left there, and it names the study")
