"""What machines that may not share a file system must have in common before a training."""

import socket
import zipfile
from pathlib import Path
from typing import Any

import lightning as L
import torch.distributed as dist
import yaml

from callbacks.training_guard import TrainingGuard
from detector.system.errors import InputError
from detector.system.options import flatten

OWN = {
    "data.dataset",
    "data.workers",
    "data.cache",
    "data.cache_budget",
    "trainer.devices",
    "trainer.num_nodes",
    "trainer.logger",
}


class ConsistencyCheck(L.Callback):
    """All processes go on from the same checkpoint with the same options, or none starts: all end with the same sentence.

    Args:
        config: text of config.yaml. Where the data lie, and what does not change results, may differ between machines.
        checkpoint: the file to go on from; None: a fresh start, or this machine has no such file.
    """

    def __init__(self, config: str, checkpoint: Path | None) -> None:
        self.config, self.checkpoint = config, checkpoint

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """The processes have met; nothing has been written yet."""
        if stage != "fit" or trainer.world_size == 1:
            return
        checkpoint = _checksums(self.checkpoint) if self.checkpoint else None
        options = {name: value for name, value in flatten(yaml.safe_load(self.config)).items() if name not in OWN}
        everyone = _everyone(trainer, (str(self.checkpoint), checkpoint, options))
        first_path, first_checkpoint, first_options = everyone[0][1]
        for who, (_, checkpoint, options) in everyone:
            if checkpoint != first_checkpoint:
                lack = f"goes on from {first_path}" if first_checkpoint else "starts afresh"
                raise InputError(
                    f"the first process {lack}, but {who} {'has another checkpoint' if checkpoint else 'has none'}: copy the "
                    "first machine's run folder to the others, or give --run in a folder that all of them share"
                )
            names = sorted(first_options.keys() | options.keys())
            other = next((name for name in names if first_options.get(name) != options.get(name)), None)
            if other:
                raise InputError(
                    f"{other} is {first_options.get(other)} in the first process and {options.get(other)} in {who}: give all "
                    "machines the same options, and on a resume the same config.yaml in the run folder"
                )

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """The first process has made the run folder."""
        recorder = next((c for c in trainer.callbacks if isinstance(c, TrainingGuard)), None)  # type: ignore[attr-defined]
        if recorder is None or recorder.policy != "roll_back" or trainer.world_size == 1:
            return
        folder = Path(trainer.default_root_dir)
        blind = [who for who, sees in _everyone(trainer, (folder / "config.yaml").exists()) if not sees]
        if blind:
            raise InputError(
                f"flight_recorder.policy roll_back needs a run folder that all machines see, but {blind[0]} does not see "
                f"{folder}: give --run in a folder that all of them share, or another policy"
            )


def _everyone(trainer: L.Trainer, fact: Any) -> list[tuple[str, Any]]:
    """(who it is, its fact) of each process."""
    everyone: list[Any] = [None] * trainer.world_size
    dist.all_gather_object(everyone, (f"process {trainer.global_rank} on {socket.gethostname()}", fact))
    return everyone


def _checksums(path: Path) -> list[int]:
    """Of a checkpoint's records; its directory is all that is read."""
    with zipfile.ZipFile(path) as archive:
        return [entry.CRC for entry in archive.infolist()]
