"""The options of `evolve`."""

from dataclasses import dataclass
from typing import Literal

from jsonargparse.typing import PositiveFloat, PositiveInt

from boltbox.detector.system.errors import InputError


@dataclass(frozen=True)
class Evolution:
    """How to search.

    Args:
        generations: Of the population; in all generations x population individuals are trained.
        population: Individuals of a generation.
        study: Folder of the study, continued if it exists; default: the unfinished runs/evolve-N of
            this very command, else a new one.
        sampler: What chooses values: YOLOv5's genetic algorithm, or Optuna's TPE.
        literal: YOLOv5's algorithm to the letter: mutations of 0.1 in any unit, no elite of earlier
            generations, mAP50 alone, new anchors.
        space: File of the values to search for, with bounds; default: YOLOv5's 13 augmentation
            values.
        workers: Trainings at a time; default: one on each GPU, without GPUs one.
        hours: No new training after so many.
        trials: No new training after so many of the study.
        prune: End hopeless trainings early: only the better quarter continues after a 16th of the
            epochs, and after each four times as many. Which depends on the order of
            their ends.
    """

    generations: PositiveInt = 300
    population: PositiveInt = 50
    study: str | None = None
    sampler: Literal["yolov5", "tpe"] = "yolov5"
    literal: bool = False
    space: str | None = None
    workers: PositiveInt | None = None
    hours: PositiveFloat | None = None
    trials: PositiveInt | None = None
    prune: Literal["none", "halving"] = "none"

    def check(self) -> None:
        """Raises:
        InputError: options do not go together.
        """
        if self.sampler == "yolov5" and self.population < 2:
            raise InputError("evolve.population is 1; a child has two parents, so give 2 or more")
        if self.literal and self.sampler != "yolov5":
            raise InputError(
                "evolve.literal true is about the sampler yolov5; leave it out with tpe"
            )
