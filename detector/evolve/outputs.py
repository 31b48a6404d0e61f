"""To be replaced by the files of a study that people read: evolve.csv, hyp_evolved.yaml, pictures."""

from collections.abc import Sequence
from pathlib import Path

from detector.evolve.individual import Individual
from detector.evolve.space import Gene


def write_outputs(folder: Path, genes: Sequence[Gene], individuals: Sequence[Individual], generations: int) -> None:
    """Nothing yet; this file is taken from the branch that writes the outputs."""
