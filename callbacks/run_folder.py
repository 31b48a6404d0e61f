"""The folder of a run, made after data, network and checkpoint have been loaded."""

import contextlib
import os
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import lightning as L
import yaml
from lightning.pytorch.loggers import WandbLogger

from boltbox.callbacks.configuration import configuration
from boltbox.detector.checkpoint.runs import locked, new_run, write_machine
from boltbox.detector.distributed.process_group import gather
from boltbox.detector.system.atomic_file import write_atomically
from boltbox.detector.system.configuration import differences, flatten
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.host import versions
from boltbox.detector.system.rank_zero import rank_zero_print
from boltbox.detector.system.text_file import load_yaml
from boltbox.detector.training.module import Detector
from boltbox.detector.training.recipe import data_of

OF_A_MACHINE = (  # options that may differ: where the data lie, and what does not change results
    "data.dataset",
    "data.workers",
    "data.cache",
    "trainer.devices",
    "trainer.num_nodes",
    "trainer.logger",
)


class RunFolder(L.Callback):
    """Makes the Trainer's default_root_dir and writes there machine.json, config.yaml,
    changed.yaml, and dropped.txt if labels or images were left out, unless it continues a training
    that has ended; checkpoints have `run`: configuration, working folder, library versions, the id
    of W&B's run. In a script it locks the folder (`locked`), as a command does before, and what is
    not a fit gets a new folder. With trainer.fast_dev_run the folder is a temporary one. The
    processes of a command's fit must have the same options and continue the same checkpoint:
    machines may not share a file system.

    Args:
        config: text of config.yaml of a command; default: the options that module, data and Trainer
            of a script were made with.
        changed: by flat name, the options that differ from the defaults; default: changed.yaml is
            not written.
        checkpoint: that a command's fit continues; None: a new run, or this machine has no such
            file.

    Raises:
        InputError: a script's new fit, in a folder that holds a run already; a folder that is no
            run's; in all processes, if they differ.
    """

    def __init__(
        self,
        config: str | None = None,
        changed: dict[str, Any] | None = None,
        checkpoint: Path | None = None,
    ) -> None:
        self.config, self.changed, self.checkpoint = config, changed, checkpoint
        self._undo = contextlib.ExitStack()
        self._epochs = 0  # that the checkpoint has behind it

    def setup(self, trainer: L.Trainer, pl_module: Detector, stage: str) -> None:
        if self.config and self.changed and self.changed.get("data.batch_size") == "auto":
            found = self.changed["data.batch_size"] = trainer.datamodule.batch_size  # type: ignore[attr-defined]
            options = load_yaml(self.config)
            options["data"]["batch_size"] = found  # by now a number
            self.config = yaml.safe_dump(options, sort_keys=False, allow_unicode=True)
        if stage == "fit" and trainer.world_size > 1 and self.config:
            self._compare_processes(self.config)
        folder, command = Path(trainer.default_root_dir), str(stage.value)  # type: ignore[attr-defined]
        if trainer.is_global_zero and trainer.fast_dev_run:  # type: ignore[attr-defined]
            self._undo.callback(_move, trainer, str(folder))
            temporary = self._undo.enter_context(TemporaryDirectory(prefix="boltbox-"))
            _move(trainer, temporary)
            rank_zero_print(f"fast_dev_run: files go to {temporary} and are removed at the end")
        elif trainer.is_global_zero and self.config is None:
            if stage != "fit":
                self._undo.callback(_move, trainer, str(folder))
                folder = new_run(command)
                _move(trainer, str(folder))
            self._undo.enter_context(locked(folder, command))
        # processes that torchrun or Slurm has started do not know the number of the first one's run
        if trainer.world_size > 1:
            _move(trainer, trainer.strategy.broadcast(trainer.default_root_dir))

    def _compare_processes(self, config: str) -> None:
        """Of the checkpoint only the directory of the archive is read."""
        options = flatten(load_yaml(config))
        options = {name: v for name, v in options.items() if not name.startswith(OF_A_MACHINE)}
        if self.checkpoint:
            with zipfile.ZipFile(self.checkpoint) as archive:
                checksums = tuple(entry.CRC for entry in archive.infolist())
            options["the checkpoint"] = f"{hash(checksums):x}"
        for name, values in differences(gather(options)).items():
            raise InputError(
                f"{name} is not the same in all processes ({', '.join(map(str, values))}): give all"
                " machines the same options, and a run folder that they share or, for a resume, a"
                " copy of the first machine's"
            )

    def on_save_checkpoint(
        self, trainer: L.Trainer, pl_module: Detector, checkpoint: dict[str, Any]
    ) -> None:
        checkpoint["run"] = {
            "config": self.config or configuration(trainer, pl_module),
            "folder": os.getcwd(),  # of relative paths in it
            "versions": versions(),
            "wandb": next((x.version for x in trainer.loggers if isinstance(x, WandbLogger)), None),
        }

    def teardown(self, *_: Any, **__: Any) -> None:
        self._undo.close()

    on_exception = teardown

    def on_load_checkpoint(
        self, trainer: L.Trainer, pl_module: Detector, checkpoint: dict[str, Any]
    ) -> None:
        self._epochs = checkpoint["loops"]["fit_loop"]["epoch_progress"]["current"]["processed"]

    def on_fit_start(self, trainer: L.Trainer, pl_module: Detector) -> None:
        is_new = self.config is None and not trainer.ckpt_path  # Lightning sets it no earlier
        if is_new and trainer.is_global_zero:
            refuse_another(Path(trainer.default_root_dir))
        has_ended = 0 <= (trainer.max_epochs or 0) <= self._epochs
        if not (trainer.ckpt_path and has_ended):
            self._make(trainer, pl_module)

    def on_validation_start(self, trainer: L.Trainer, pl_module: Detector) -> None:
        """As for test."""
        if trainer.state.fn != "fit":
            self._make(trainer, pl_module)

    on_test_start = on_validation_start  # type: ignore[assignment]

    def _make(self, trainer: L.Trainer, pl_module: Detector) -> None:
        if not trainer.is_global_zero:
            return
        folder = Path(trainer.default_root_dir)
        if trainer.state.fn == "fit":
            write_machine(folder, "fit")
        write_atomically(folder / "config.yaml", self.config or configuration(trainer, pl_module))
        if self.changed is not None:
            write_atomically(
                folder / "changed.yaml",
                yaml.safe_dump(self.changed, sort_keys=False, allow_unicode=True),
            )
        data = data_of(trainer)
        datasets = data.datasets if data else {}
        dropped = [
            f"{split}: {fault}\n" for split, data in datasets.items() for fault in data.faults
        ]
        if dropped:
            write_atomically(folder / "dropped.txt", "".join(dropped))


def refuse_another(folder: Path) -> None:
    """Raises InputError if a run's folder holds results already; one that has ended before its
    first epoch may be started again."""
    results = ("checkpoints/*.ckpt", "*.csv", "metrics.json", "study.db")
    if any(any(folder.glob(name)) for name in results):
        raise InputError(
            f"{folder} already holds a run: continue it with --ckpt_path last (in a script:"
            f' trainer.fit(..., ckpt_path="{folder}/checkpoints/last.ckpt")), or name another'
            " folder"
        )


def _move(trainer: L.Trainer, folder: str) -> None:
    trainer._default_root_dir = folder  # type: ignore[attr-defined]  # Lightning's property has no setter
