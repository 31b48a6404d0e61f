"""Checkpoints: after every epoch, every few minutes, and on a signal to stop."""

import time
from functools import lru_cache
from os.path import isfile
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import ModelCheckpoint

from boltbox.detector.checkpoint.reader import newest_valid, read_outline
from boltbox.detector.checkpoint.writer import AtomicCheckpointIO, wait_for_checkpoint
from boltbox.detector.system.atomic_file import not_fatal, write_atomically
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.ranges import NonNegativeFloat
from boltbox.detector.system.rank_zero import print_fact
from boltbox.detector.system.signals import StopSignal
from boltbox.detector.training.module import Detector


class Checkpoints(ModelCheckpoint):
    """In `checkpoints/` of the Trainer's default_root_dir: `last.ckpt` after every epoch and within
    epochs, `previous.ckpt` the one before it, `best.ckpt` by fitness.

    SIGTERM, SIGINT and SIGHUP (a closed terminal; not under nohup) let the batch finish, save, and
    end with exit code 143, 130 or 129. During validation they exit at once: a resumed run continues
    from the last checkpoint. Gradients of an open accumulation window are in the checkpoint
    (RunState).

    By AtomicCheckpointIO, which it puts in charge, a thread writes the files while training
    continues; where a run ends, for whatever reason but a kill, the last file is waited for. A disk
    that fails does not end the training. An epoch is the best once its best.ckpt is on the disk: if
    it could not be written, the next epoch is compared with the file that is there.

    By its base class Lightning finds `ckpt_path="best"` and "last", and `best_model_path`; all else
    is done otherwise: ModelCheckpoint writes its last checkpoint only when it writes a best one.

    Args:
        save_period: Keep `epoch<N>.ckpt` every N epochs; -1: off.
        every_minutes: Save within an epoch when so much time has passed; 0 is off.

    Raises:
        InputError: at the end of a training, if the newest content of a file could not be written.
    """

    def __init__(self, save_period: int = -1, every_minutes: NonNegativeFloat = 10.0) -> None:
        super().__init__()
        self.save_period, self.every_minutes = save_period, every_minutes
        self.signal, self._io = StopSignal(), AtomicCheckpointIO()

    def setup(self, trainer: L.Trainer, pl_module: Detector, stage: str) -> None:
        """Before a checkpoint is read."""
        trainer.strategy.checkpoint_io = self._io

    def on_fit_start(self, trainer: L.Trainer, pl_module: Detector) -> None:
        """A new run is not compared with the best.ckpt of another, which stays until it has its
        own."""
        best = _folder(trainer) / "best.ckpt"
        self.best_model_path = str(best) if trainer.ckpt_path and best.is_file() else ""

    def on_train_start(self, trainer: L.Trainer, pl_module: Detector) -> None:
        """Lightning's own handlers were in place until here: after a SIGTERM it would leave with
        exit code 0."""
        self._saved, self._interval = time.monotonic(), trainer.val_check_batch
        self.signal.install()
        if trainer.received_sigterm:
            raise SystemExit(143)
        if trainer.ckpt_path and trainer.is_global_zero:
            self._finish_first_save(trainer)

    def on_train_batch_start(self, trainer: L.Trainer, *_: Any) -> None:
        """An epoch is trained to its end, whatever asks to stop within it (max_time, early stopping
        of several validations an epoch): the checkpoint after it continues with the next one."""
        trainer.fit_loop.min_epochs = max(trainer.min_epochs or 0, trainer.current_epoch + 1)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, out: Any, batch: Any, batch_idx: int
    ) -> None:
        """Never where a validation follows: Lightning would skip it when it resumes there. One
        follows at the end of an epoch too where trainer.val_check_interval leaves a remainder: what
        is saved there is what was validated."""
        interval = trainer.val_check_batch
        if trainer.is_last_batch:
            self._interval = interval
            if trainer.check_val_every_n_epoch is not None:
                trainer.val_check_batch = batch_idx + 1
            return
        validates = trainer.fit_loop.epoch_loop._should_check_val_epoch()
        if validates and interval and (batch_idx + 1) % interval == 0:
            return
        late = self.every_minutes and time.monotonic() - self._saved > 60 * self.every_minutes
        if not _anyone(trainer, bool(late or self.signal.received)):
            return
        self._save(trainer, "last.ckpt")
        self._stop_if_told(trainer)

    def on_validation_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        if self.signal.received:
            wait_for_checkpoint(trainer)
            raise SystemExit(self.signal.exit_code)

    def on_validation_end(self, *_: Any) -> None:
        """Nothing: Lightning's would save here."""

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: Detector) -> None:
        """Lightning calls this after all other callbacks, so their state is that of the finished
        epoch."""
        trainer.val_check_batch = self._interval
        fitness = pl_module.fitness
        names = self._names(trainer.current_epoch)
        if fitness is not None and fitness > best_fitness(trainer):
            names.insert(0, "best.ckpt")
            self.best_model_path = str(_folder(trainer) / "best.ckpt")
        self._save(trainer, *names)
        self._stop_if_told(trainer)

    def _names(self, epoch: int) -> list[str]:
        """Of the files that are saved after an epoch, besides best.ckpt."""
        if self.save_period > 0 and (epoch + 1) % self.save_period == 0:
            return [f"epoch{epoch}.ckpt", "last.ckpt"]
        return ["last.ckpt"]

    def _finish_first_save(self, trainer: L.Trainer) -> None:
        """A kill may have cut off the first save of a run after best.ckpt: the other names get
        copies of it."""
        folder = _folder(trainer)
        resumed = Path(str(trainer.ckpt_path))
        if resumed.resolve().parent != folder.resolve() or (folder / "last.ckpt").exists():
            return
        for name in self._names(trainer.current_epoch - 1):
            if not (folder / name).exists():
                with not_fatal(folder / name):
                    write_atomically(folder / name, resumed.read_bytes())

    def on_train_end(self, trainer: L.Trainer, pl_module: Detector) -> None:
        """Lightning calls this after all other callbacks, and all on_fit_end after it. What follows
        in a script finds the files in every process."""
        wait_for_checkpoint(trainer)
        trainer.strategy.barrier("Checkpoints")
        paths = [self.best_model_path, str(_folder(trainer) / "last.ckpt")]
        for path in [path for path in paths if isfile(path)][:1]:
            print_fact("saved", path)

    def _find_last_checkpoints(self, trainer: L.Trainer) -> set[str]:
        """What Lightning takes for `ckpt_path="last"`, as the commands do."""
        wait_for_checkpoint(trainer)
        found = newest_valid(_folder(trainer))
        return {str(found[0])} if found else set()

    def state_dict(self) -> dict[str, Any]:
        return {}

    def _save(self, trainer: L.Trainer, *names: str) -> None:
        """The same content under each of these names, in this order."""
        self._io.copies = names[1:]
        trainer.save_checkpoint(_folder(trainer) / names[0], weights_only=False)
        self._saved = time.monotonic()

    def _stop_if_told(self, trainer: L.Trainer) -> None:
        """After a signal to any process, once the checkpoint is on the disk."""
        if _anyone(trainer, bool(self.signal.received)):
            wait_for_checkpoint(trainer)
            trainer.strategy.barrier("Checkpoints")
            raise SystemExit(self.signal.exit_code if self.signal.received else 143)

    def teardown(self, trainer: L.Trainer, pl_module: Detector, stage: str) -> None:
        """The last that a training comes by; not after an exception."""
        self.signal.restore()
        missing = self._io.failed
        if stage == "fit" and missing:
            files = ", ".join(f"{path} ({problem})" for path, problem in missing.items())
            raise InputError(
                "the training has ended, but checkpoints are missing or those of an earlier epoch:"
                f" {files}; see to the disk, then train again from the newest checkpoint that is"
                " there, with --ckpt_path last"
            )


def best_fitness(trainer: L.Trainer) -> float:
    """The fitness of the run's best.ckpt, -1 without one; it waits for the file that is being
    written."""
    wait_for_checkpoint(trainer)
    ours = (c for c in trainer.checkpoint_callbacks if isinstance(c, Checkpoints))
    path = Path(next((c.best_model_path for c in ours), ""))
    if not path.is_file():
        return -1.0
    state = path.stat()
    return _fitness(path.absolute(), state.st_ino, state.st_size, state.st_mtime_ns)


@lru_cache(maxsize=1)
def _fitness(path: Path, *state: int) -> float:
    """Of a checkpoint, which is read again once another file is in its place."""
    fitness = read_outline(path).get("fitness")
    return fitness if isinstance(fitness, float) else -1.0


def _folder(trainer: L.Trainer) -> Path:
    return Path(trainer.default_root_dir) / "checkpoints"


def _anyone(trainer: L.Trainer, flag: bool) -> bool:
    """Whether the flag is set in any process; all processes get the same answer."""
    return trainer.strategy.reduce_boolean_decision(flag, all=False)
