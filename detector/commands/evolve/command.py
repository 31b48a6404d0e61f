"""The command `evolve`. It is imported by every command: what imports Optuna is imported where it
is used."""

from boltbox.detector.commands.evolve.plan import Evolution
from boltbox.detector.data.datamodule import DetectionData
from boltbox.detector.training.module import Detector
from boltbox.detector.training.trainer import Trainer

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
