"""The folder of a run, made once data, network and checkpoint are loaded."""

import contextlib
import os
import zipfile
from os.path import exists
from pathlib import Path
from typing import Any

import lightning as L
import yaml
from lightning.pytorch.callbacks import BatchSizeFinder, LearningRateFinder
from lightning.pytorch.loggers import WandbLogger

from boltbox.callbacks.configuration import configuration
from boltbox.detector.checkpoint.runs import locked, new_run, write_machine
from boltbox.detector.system.atomic_file import write_atomically
from boltbox.detector.system.configuration import differences
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.gather import gather
from boltbox.detector.system.host import versions
from boltbox.detector.training.module import Detector
from boltbox.detector.training.trainer_data import data_of

# options that may differ between machines: where the data are, and what does not change results
OF_A_MACHINE = (
    "data.dataset",
    "data.workers",
    "data.cache",
    "trainer.devices",
    "trainer.num_nodes",
    "trainer.logger",
)


class RunFolder(L.Callback):
    """Makes the Trainer's default_root_dir and writes machine.json, config.yaml, changed.yaml, and
    dropped.txt if labels or images were left out, unless it continues a training that has ended.
    Checkpoints get a key `run`: configuration, working folder, library versions, the id of W&B's
    run.

    A command has chosen and locked the folder before. In a script, RunFolder locks it, and makes a
    new folder for what is not a fit.

    The processes of a fit must have the same data; those of a command's fit the same options, and
    continue the same checkpoint: machines may not share a file system.

    Args:
        config: Content of config.yaml of a command; default: the options that module, data and
            Trainer of a script were made with.
        changed: By flat name, the options of a command that differ from the defaults, for
            changed.yaml.
        checkpoint: That a command's fit continues; None: a new run, or this machine has no such
            file.

    Raises:
        InputError: a script's new fit, in a folder that holds a run already; a folder that is not a
            run's; in all processes, if they differ.
    """

    def __init__(
        self,
        config: dict[str, Any] | None = None,
        changed: dict[str, Any] | None = None,
        checkpoint: Path | None = None,
    ) -> None:
        self.config = config
        self.changed = changed or {}
        self.checkpoint = checkpoint
        self._undo = contextlib.ExitStack()
        self._trained_epochs = 0  # of the checkpoint that is continued

    def setup(self, trainer: L.Trainer, pl_module: Detector, stage: str) -> None:
        self._fill_in_chosen(trainer)
        if stage == "fit" and trainer.world_size > 1:
            self._check_same(trainer)
        if trainer.is_global_zero and self.config is None:
            self._enter_folder(trainer, str(stage.value))  # type: ignore[attr-defined]
        # processes that torchrun or Slurm has started do not know the number of the first one's run
        if trainer.world_size > 1:
            _set_folder(trainer, trainer.strategy.broadcast(trainer.default_root_dir))

    def _check_same(self, trainer: L.Trainer) -> None:
        """Raises InputError if options, classes, image names, labels or checkpoint differ between
        processes. Of the checkpoint only the directory of the archive is read."""
        options = dict(self.config) if self.config else {}
        if data := data_of(trainer):
            options["data.names"] = data.names
            options |= data.fingerprints()
        if self.checkpoint:
            with zipfile.ZipFile(self.checkpoint) as archive:
                checksums = tuple(entry.CRC for entry in archive.infolist())
            options["the checkpoint"] = f"{hash(checksums):x}"
        for name, values in differences(gather(options)).items():
            if not name.startswith(OF_A_MACHINE):
                raise InputError(
                    f"{name} is not the same in all processes ({', '.join(map(str, values))}): give"
                    " all machines the same data and options, and a run folder that they share or,"
                    " for a resume, a copy of the first machine's"
                )

    def _fill_in_chosen(self, trainer: L.Trainer) -> None:
        """The numbers that were left open, which are chosen by now."""
        data = data_of(trainer)
        if data is None or self.config is None:
            return
        options = self.config["data"]
        for name in ("batch_size", "tile_size"):
            if options.get(name, 0) in (None, "auto"):  # 0: data of another class
                options[name] = getattr(data, name)
                if f"data.{name}" in self.changed:
                    self.changed[f"data.{name}"] = options[name]

    def _enter_folder(self, trainer: L.Trainer, command: str) -> None:
        """Lock the folder of a script; a new one for what is not a fit."""
        folder = Path(trainer.default_root_dir)
        if command != "fit":
            self._undo.callback(_set_folder, trainer, str(folder))
            folder = new_run(command)
            _set_folder(trainer, str(folder))
        self._undo.enter_context(locked(folder, command))

    def teardown(self, *_: Any, **__: Any) -> None:
        self._undo.close()

    on_exception = teardown

    def on_save_checkpoint(
        self, trainer: L.Trainer, pl_module: Detector, checkpoint: dict[str, Any]
    ) -> None:
        wandb = [logger.version for logger in trainer.loggers if isinstance(logger, WandbLogger)]
        checkpoint["run"] = {
            "config": self._config_text(trainer, pl_module),
            "folder": os.getcwd(),  # of relative paths in it
            "versions": versions(),
            "wandb": wandb[0] if wandb else None,
        }

    def _config_text(self, trainer: L.Trainer, pl_module: Detector) -> str:
        config = configuration(trainer, pl_module) if self.config is None else self.config
        return _as_yaml(config)

    def on_load_checkpoint(
        self, trainer: L.Trainer, pl_module: Detector, checkpoint: dict[str, Any]
    ) -> None:
        finders = (BatchSizeFinder, LearningRateFinder)
        has_finder = any(isinstance(each, finders) for each in trainer.callbacks)  # type: ignore[attr-defined]
        if has_finder and checkpoint["global_step"] and trainer.state.fn == "fit":
            raise InputError(
                "BatchSizeFinder and LearningRateFinder start from the first epoch: leave them out"
                " of a resume"
            )
        progress = checkpoint["loops"]["fit_loop"]["epoch_progress"]
        self._trained_epochs = progress["current"]["processed"]

    def on_fit_start(self, trainer: L.Trainer, pl_module: Detector) -> None:
        # Lightning sets ckpt_path no earlier. BatchSizeFinder and LearningRateFinder restore and
        # remove one; then this is a new run
        if trainer.ckpt_path and not exists(trainer.ckpt_path):
            trainer.ckpt_path = None
        is_new = self.config is None and not trainer.ckpt_path  # a command has looked before
        if is_new and trainer.is_global_zero:
            refuse_earlier_run(Path(trainer.default_root_dir))
        has_ended = 0 <= (trainer.max_epochs or 0) <= self._trained_epochs
        if not (trainer.ckpt_path and has_ended):
            self._write_files(trainer, pl_module)

    def on_validation_start(self, trainer: L.Trainer, pl_module: Detector) -> None:
        """As for test."""
        if trainer.state.fn != "fit":
            self._write_files(trainer, pl_module)

    on_test_start = on_validation_start  # type: ignore[assignment]

    def _write_files(self, trainer: L.Trainer, pl_module: Detector) -> None:
        if not trainer.is_global_zero:
            return
        folder = Path(trainer.default_root_dir)
        if trainer.state.fn == "fit":
            write_machine(folder, "fit")
        write_atomically(folder / "config.yaml", self._config_text(trainer, pl_module))
        if self.config is not None:
            write_atomically(folder / "changed.yaml", _as_yaml(self.changed))
        data = data_of(trainer)
        if data is None:
            return
        dropped = ""
        for split, dataset in data.datasets.items():
            for fault in dataset.faults:
                dropped += f"{split}: {fault}\n"
        if dropped:
            write_atomically(folder / "dropped.txt", dropped)


def refuse_earlier_run(folder: Path) -> None:
    """Refuse a folder that holds results of a run already; one that has ended before its first
    epoch may be started again.

    Args:
        folder: The run folder.

    Raises:
        InputError: it holds results.
    """
    for pattern in ("checkpoints/*.ckpt", "*.csv", "metrics.json", "study.*"):
        if any(folder.glob(pattern)):
            raise InputError(
                f"{folder} already holds a run: continue it with --ckpt_path last (in a script:"
                f' trainer.fit(..., ckpt_path="{folder}/checkpoints/last.ckpt")), or name another'
                " folder"
            )


def _as_yaml(content: dict[str, Any]) -> str:
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True)


def _set_folder(trainer: L.Trainer, folder: str) -> None:
    trainer._default_root_dir = folder  # type: ignore[attr-defined]  # Lightning's property has no setter
