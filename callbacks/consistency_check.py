"""Whether all machines have the same options and checkpoint: they may not share a file system."""

import socket
import zipfile
from pathlib import Path
from typing import Any

import lightning as L
import torch.distributed as dist

from boltbox.callbacks.training_guard import TrainingGuard
from boltbox.detector.system.configuration import flatten
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.yaml_text import load_yaml

OF_A_MACHINE = (  # options that may differ: where the data lie, and what does not change results
    "data.dataset",
    "data.workers",
    "data.cache",
    "trainer.devices",
    "trainer.num_nodes",
    "trainer.logger",
)


class ConsistencyCheck(L.Callback):
    """All processes have the same options and continue the same checkpoint, or all end with the
    same error before the training starts.

    Args:
        config: text of config.yaml.
        checkpoint: the file to continue from; None: a new run, or this machine has no such file.
    """

    def __init__(self, config: str, checkpoint: Path | None) -> None:
        self.config, self.checkpoint = config, checkpoint

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """There is a process group; nothing has been written yet."""
        if stage != "fit" or trainer.world_size == 1:
            return
        checkpoint = _checksums(self.checkpoint) if self.checkpoint else None
        options = {
            name: v
            for name, v in flatten(load_yaml(self.config)).items()
            if not _is_of_a_machine(name)
        }
        everyone = _gather(trainer, (str(self.checkpoint), checkpoint, options))
        first_path, first_checkpoint, first_options = everyone[0][1]
        for who, (_, checkpoint, options) in everyone:
            if checkpoint != first_checkpoint:
                lack = f"goes on from {first_path}" if first_checkpoint else "starts afresh"
                raise InputError(
                    f"the first process {lack}, but {who}"
                    f" {'has another checkpoint' if checkpoint else 'has none'}: copy the first"
                    " machine's run folder to the others, or give --run in a folder that all of"
                    " them share"
                )
            names = sorted(first_options.keys() | options.keys())
            other = next(
                (name for name in names if first_options.get(name) != options.get(name)), None
            )
            if other:
                raise InputError(
                    f"{other} is {first_options.get(other)} in the first process and"
                    f" {options.get(other)} in {who}: give all machines the same options, and on a"
                    " resume the same config.yaml in the run folder"
                )

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """The first process has made the run folder."""
        guard = next((c for c in trainer.callbacks if isinstance(c, TrainingGuard)), None)  # type: ignore[attr-defined]
        if guard is None or guard.policy != "roll_back" or trainer.world_size == 1:
            return
        folder = Path(trainer.default_root_dir)
        without = [
            who for who, exists in _gather(trainer, (folder / "config.yaml").exists()) if not exists
        ]
        if without:
            raise InputError(
                "flight_recorder.policy roll_back needs a run folder that all machines see, but"
                f" {without[0]} does not see {folder}: give --run in a folder that all of them"
                " share, or another policy"
            )


def _gather(trainer: L.Trainer, value: Any) -> list[tuple[str, Any]]:
    """(name of the process, its value) of all processes."""
    everyone: list[Any] = [None] * trainer.world_size
    dist.all_gather_object(
        everyone, (f"process {trainer.global_rank} on {socket.gethostname()}", value)
    )
    return everyone


def _checksums(path: Path) -> list[int]:
    """Of the records of a checkpoint; only the directory of the archive is read."""
    with zipfile.ZipFile(path) as archive:
        return [entry.CRC for entry in archive.infolist()]


def _is_of_a_machine(option: str) -> bool:
    return option in OF_A_MACHINE or option.startswith(tuple(f"{name}." for name in OF_A_MACHINE))
