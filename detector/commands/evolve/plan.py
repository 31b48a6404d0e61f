"""What a study is about; it stays the same from its first trial to its last."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from detector.commands.evolve.genetics import size
from detector.commands.evolve.space import Gene


@dataclass(frozen=True)
class Plan:
    """How a study goes.

    Attributes:
        genes: what is searched for.
        start: values of the first individuals; the others are drawn.
        sampler: yolov5, tpe, cmaes or nsgaii.
        literal: YOLOv5's genetic algorithm with its accidents.
        population, generations: of them.
        seed: of all that is drawn.
        prune: epochs before the first look at whether a training is hopeless; 0: none ever is.
        fixed: option -> value of what the search keeps to and the user's configuration may not have.
    """

    genes: tuple[Gene, ...]
    start: tuple[Mapping[str, float], ...]
    sampler: str = "yolov5"
    literal: bool = False
    population: int = 50
    generations: int = 300
    seed: int = 0
    prune: int = 0
    fixed: Mapping[str, float] = field(default_factory=dict)

    @property
    def in_generations(self) -> bool:
        """Whether a generation waits for the one before."""
        return self.sampler == "yolov5"

    @cached_property
    def sizes(self) -> list[int]:
        """Trainings of each generation."""
        if not self.in_generations:
            return [self.population] * self.generations
        return [size(g, self.generations, self.population, self.literal) for g in range(self.generations)]

    @property
    def trials(self) -> int:
        """Trainings in all; with several seeds each is several."""
        return sum(self.sizes)

    def place(self, slot: int) -> tuple[int, int]:
        """Number of an individual -> its generation, and place among those that are new in it."""
        for generation, count in enumerate(self.sizes):
            if slot < count:
                return generation, slot
            slot -= count
        raise IndexError(f"the study has {self.trials} individuals")

    def content(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"genes": [gene._asdict() for gene in self.genes], "start": [dict(s) for s in self.start]}

    @classmethod
    def of(cls, content: dict[str, Any]) -> "Plan":
        """The reverse."""
        genes, start = tuple(Gene(**gene) for gene in content["genes"]), tuple(content["start"])
        return cls(**{**content, "genes": genes, "start": start})
