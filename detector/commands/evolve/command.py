"""The command `evolve`. It is imported by every command: what imports Optuna is imported where it
is used."""

from dataclasses import dataclass
from typing import Literal

from jsonargparse.typing import PositiveFloat, PositiveInt

from boltbox.detector.data.datamodule import DetectionData
from boltbox.detector.system.errors import InputError
from boltbox.detector.training.module import Detector
from boltbox.detector.training.trainer import Trainer


@dataclass(frozen=True)
class Evolution:
    """How to search.

    Args:
        generations: Of the population; in all generations x population individuals are trained.
        population: Individuals of a generation.
        sampler: What chooses values: YOLOv5's genetic algorithm, or Optuna's TPE.
        literal: YOLOv5's algorithm to the letter: mutations of 0.1 in any unit, no elite of earlier
            generations, mAP50 alone, new anchors.
        space: File of the values to search for, with bounds; default: YOLOv5's 13 augmentation
            values.
        workers: Trainings at a time; default: one on each GPU, without GPUs one.
        hours: No new training after so many.
    """

    generations: PositiveInt = 300
    population: PositiveInt = 50
    sampler: Literal["yolov5", "tpe"] = "yolov5"
    literal: bool = False
    space: str | None = None
    workers: PositiveInt | None = None
    hours: PositiveFloat | None = None

    @property
    def size(self) -> int:
        """Individuals in all."""
        return self.population * self.generations

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


DEFAULT = Evolution()


def run_evolution(
    trainer: Trainer, model: Detector, datamodule: DetectionData, evolve: Evolution = DEFAULT
) -> None:
    """Search for better hyper-parameters: a training for each set of them, generation by
    generation.

    The same command with the study's folder as --run continues it, and started a second time on the
    same machine takes part in it. Leaves the best in hyp_evolved.yaml,
    for `fit --config configs/yolo.yaml --config hyp_evolved.yaml --data.dataset FILE`.
    """
    from boltbox.detector.commands.evolve.search import search

    evolve.check()
    search(trainer, datamodule)
