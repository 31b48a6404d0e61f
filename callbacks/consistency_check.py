"""Whether all machines have the same options and checkpoint: they may not share a file system."""

import socket
import zipfile
from pathlib import Path

import lightning as L

from boltbox.detector.distributed.process_group import gather
from boltbox.detector.system.configuration import differences, flatten
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
        options = flatten(load_yaml(self.config))
        options = {name: v for name, v in options.items() if not name.startswith(OF_A_MACHINE)}
        checksum = _checksum(self.checkpoint) if self.checkpoint else None
        who = f"process {trainer.global_rank} on {socket.gethostname()}"
        everyone = gather((who, {"the checkpoint": checksum, **options}))
        _, first = everyone[0]
        for other, theirs in everyone[1:]:
            for name, (ours, another) in differences([first, theirs]).items():
                raise InputError(
                    f"{name} is {ours} in the first process and {another} in {other}: give all"
                    " machines the same options, and a run folder that they share or, for a resume,"
                    " a copy of the first machine's"
                )


def _checksum(path: Path) -> str:
    """Of the records of a checkpoint; only the directory of the archive is read."""
    with zipfile.ZipFile(path) as archive:
        return f"{hash(tuple(entry.CRC for entry in archive.infolist())):x}"
