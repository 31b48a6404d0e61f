"""Checkpoints: after every epoch, every few minutes, and on a signal to stop."""

import contextlib
import time
from collections.abc import Sequence
from os.path import isfile
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import ModelCheckpoint

from boltbox.detector.checkpoint.reader import newest_valid, read_outline
from boltbox.detector.checkpoint.writer import AtomicCheckpointIO
from boltbox.detector.system.atomic_file import not_fatal, write_atomically
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.ranges import NonNegativeFloat
from boltbox.detector.system.rank_zero import print_fact
from boltbox.detector.system.signals import StopSignal, caught
from boltbox.detector.training.module import Detector
from boltbox.detector.training.trainer_options import check_recipe


class Checkpoints(ModelCheckpoint):
    """In `checkpoints/` of the Trainer's default_root_dir: `last.ckpt` after every epoch and within
    epochs, `previous.ckpt` the one before it (kept by `io`), `best.ckpt` by fitness.

    SIGTERM, SIGINT, SIGHUP (a closed terminal; not under nohup) and SIGUSR1 let the batch finish,
    save, and end with exit code 143, 130, 129 or 138. A signal in a validation, or in the batch
    before it, ends the process in that validation, without saving, because a run resumed there
    would skip the validation; the run is resumed from the last checkpoint. After the last epoch the
    training is finished, and a signal may end the process before its report (callback Report) is
    written.
    Gradients of an open accumulation window are in the checkpoint (callback RunState).

    AtomicCheckpointIO, which replaces the Trainer's own, writes the files in a thread, while
    training continues. The process waits for the last file before it ends, also after an
    exception. A disk that fails does not end the training. If a best.ckpt could not be written,
    later epochs are compared with the one that is on the disk.

    The base class is there only so that Lightning finds `ckpt_path="best"` and "last", and
    `best_model_path`. All hooks that save are replaced: the base class writes the last checkpoint
    only with a best one.

    Args:
        save_period: Keep `epoch<E>.ckpt` (E from 0) every so many epochs; -1: off.
        every_minutes: Save within an epoch when so much time has passed; 0 is off.

    Attributes:
        io: Writes and reads the files.
        signal: Catches the signals to stop; `received` is the number of one, or 0.

    Raises:
        InputError: at the end of a training, if the last write of a file failed.
    """

    def __init__(self, save_period: int = -1, every_minutes: NonNegativeFloat = 10.0) -> None:
        super().__init__()
        self.save_period = save_period
        self.every_minutes = every_minutes
        self.io = AtomicCheckpointIO()
        self.signal = StopSignal()
        self._undo = contextlib.ExitStack()  # undoes what a training changes

    def setup(self, trainer: L.Trainer, pl_module: Detector, stage: str) -> None:
        """Replace the Trainer's own IO before a checkpoint is read.

        Raises:
            InputError: The Trainer validates by the clock, or by the batches of the run
                (check_val_every_n_epoch=None): best.ckpt needs the fitness of whole epochs.
        """
        trainer.strategy.checkpoint_io = self.io
        self.signal.received = 0  # an earlier fit may have ended by one
        if stage == "fit":
            # a Trainer that validates by the clock has no such attribute
            interval = getattr(trainer, "val_check_interval", "by the clock")
            every_n = trainer.check_val_every_n_epoch
            # refuses None and "by the clock", and nothing else
            check_recipe({"check_val_every_n_epoch": every_n, "val_check_interval": interval})

    def on_fit_start(self, trainer: L.Trainer, pl_module: Detector) -> None:
        """A resumed run continues with its best.ckpt. In a new run, or one that continues the
        checkpoint of another folder, the best.ckpt that is here does not count; the first own one
        replaces it."""
        self.io.failed.clear()  # files that an earlier fit could not write, with the reason
        self.best_model_path = ""
        # fitness of best.ckpt; None: not read from that file yet, or there is none
        self._known_fitness: float | None = None
        best = _folder(trainer) / "best.ckpt"
        if _continues_in_folder(trainer) and isfile(best):
            self.best_model_path = str(best)

    def on_train_start(self, trainer: L.Trainer, pl_module: Detector) -> None:
        """From here on signals are handled here: Lightning's own handlers, which were in place
        until now, would leave with exit code 0 after a SIGTERM."""
        self._saved_at = time.monotonic()
        self._given_val_check_batch = trainer.val_check_batch
        self._given_min_epochs = trainer.fit_loop.min_epochs
        self._undo.callback(setattr, trainer, "val_check_batch", self._given_val_check_batch)
        self._undo.callback(setattr, trainer.fit_loop, "min_epochs", self._given_min_epochs)
        # when undone, Lightning's are back; Lightning then restores those from before the fit
        self._undo.enter_context(caught(self.signal.handle))
        if trainer.received_sigterm:  # before this hook
            _forget_started_processes(trainer)
            raise SystemExit(143)
        if trainer.is_global_zero:
            self._make_missing_copies(trainer)

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Let max_time and early stopping end a run only at the end of an epoch, and let an epoch
        that is validated every n batches also be validated after its last one."""
        # Lightning does not stop within the first min_epochs epochs: this one becomes one of
        # them, so that it is trained to its end
        trainer.fit_loop.min_epochs = max(self._given_min_epochs or 0, trainer.current_epoch + 1)
        # Lightning validates after each multiple of val_check_batch; so that it also does after
        # the last batch, val_check_batch is the number of that one
        trainer.val_check_batch = self._given_val_check_batch
        if trainer.is_last_batch:
            trainer.val_check_batch = batch_idx + 1

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, out: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save within the epoch, if it is time or a signal came. Not after its last batch, where
        on_train_epoch_end saves, and not before a validation: a run that resumes there would skip
        it."""
        if trainer.is_last_batch or _validation_follows(trainer, batch_idx):
            return
        minutes = (time.monotonic() - self._saved_at) / 60
        is_time = 0 < self.every_minutes < minutes
        if _any_process(trainer, is_time or self.signal.received > 0):
            self._save(trainer, ["last.ckpt"])
            self._exit_on_signal(trainer)

    def on_validation_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        """End after a signal, without saving and without a collective: processes may differ in the
        number of their validation batches."""
        if self.signal.received:
            _forget_started_processes(trainer)
            self.io.wait()
            raise SystemExit(self.signal.exit_code)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: Detector) -> None:
        """Lightning calls this after all other callbacks, so their state is that of the finished
        epoch."""
        names = self._file_names(trainer.current_epoch)
        fitness = pl_module.evaluation.fitness  # None: the epoch was not validated
        if fitness is not None and fitness > self.best_fitness():
            names.insert(0, "best.ckpt")
            self.best_model_path = str(_folder(trainer) / "best.ckpt")
            self._known_fitness = fitness
        self._save(trainer, names)
        self._exit_on_signal(trainer)

    def on_train_end(self, trainer: L.Trainer, pl_module: Detector) -> None:
        """Wait for the files: every on_fit_end, and what follows in a script, finds them in every
        process. Lightning calls this after all other callbacks."""
        self.io.wait()
        trainer.strategy.barrier("Checkpoints")
        for path in (self.best_model_path, str(_folder(trainer) / "last.ckpt")):
            if isfile(path):  # the best, else the last
                print_fact("saved", path)
                break
        self._undo.close()

    def on_exception(self, *_: Any) -> None:
        """Restore the handlers now: else Python does it when it frees the generator of `caught`,
        perhaps in the middle of the next fit. No wait for `io`: the process does when it ends."""
        self._undo.close()

    def teardown(self, trainer: L.Trainer, pl_module: Detector, stage: str) -> None:
        """The last hook of a training without an exception."""
        if stage == "fit" and self.io.failed:
            files = ", ".join(f"{path} ({problem})" for path, problem in self.io.failed.items())
            raise InputError(
                "the training has ended, but checkpoints are missing, or are of an earlier epoch:"
                f" {files}; check the disk, then train again from the newest checkpoint that is"
                " there, with --ckpt_path last"
            )

    def best_fitness(self) -> float:
        """The fitness of the run's best.ckpt, -1 without one; it waits for the file that is being
        written."""
        self.io.wait()
        best = Path(self.best_model_path)
        if not isfile(best):
            return -1.0
        # its newest write may have failed; then the file is that of an earlier epoch
        if self._known_fitness is None or best in self.io.failed:
            fitness = read_outline(best).get("fitness")  # reads all but the tensors
            self._known_fitness = fitness if isinstance(fitness, float) else -1.0
        return self._known_fitness

    def _file_names(self, epoch: int) -> list[str]:
        """Names of the files that are saved after an epoch, besides best.ckpt."""
        if self.save_period > 0 and (epoch + 1) % self.save_period == 0:
            return [f"epoch{epoch}.ckpt", "last.ckpt"]
        return ["last.ckpt"]

    def _save(self, trainer: L.Trainer, names: Sequence[str]) -> None:
        """Save the same content under each of these names, in this order."""
        if trainer.fast_dev_run:  # type: ignore[attr-defined]  # as in the base class
            return
        # copies of the next save; a save that is still being written keeps those it was given
        self.io.copies = names[1:]
        trainer.save_checkpoint(_folder(trainer) / names[0], weights_only=False)
        self._saved_at = time.monotonic()

    def _make_missing_copies(self, trainer: L.Trainer) -> None:
        """For a run that was killed within its first save: best.ckpt was written, for example, and
        its copy last.ckpt was not. Such a run is resumed from best.ckpt; now last.ckpt is made."""
        folder = _folder(trainer)
        # a run that was killed within a later save still has the last.ckpt of the save before
        has_last = (folder / "last.ckpt").exists()
        # it was saved within epoch 0; such saves have no copies
        no_epoch_ended = trainer.current_epoch == 0
        if has_last or no_epoch_ended or not _continues_in_folder(trainer):
            return
        resumed_from = Path(str(trainer.ckpt_path))
        for name in self._file_names(trainer.current_epoch - 1):  # the epoch that was saved
            if not (folder / name).exists():
                with not_fatal(folder / name):
                    write_atomically(folder / name, resumed_from.read_bytes())

    def _exit_on_signal(self, trainer: L.Trainer) -> None:
        """Exit after a signal to any process, once the checkpoint is written; with 143, if only
        another one got it."""
        if _any_process(trainer, self.signal.received > 0):
            self.io.wait()
            trainer.strategy.barrier("Checkpoints")
            _forget_started_processes(trainer)
            raise SystemExit(self.signal.exit_code if self.signal.received else 143)

    # what Lightning expects of the base class

    def on_validation_end(self, *_: Any) -> None:
        """Nothing: Lightning's would save here."""

    def state_dict(self) -> dict[str, Any]:
        """Nothing: best.ckpt holds its own fitness."""
        return {}

    def _find_last_checkpoints(self, trainer: L.Trainer) -> set[str]:
        """The checkpoint that Lightning takes for `ckpt_path="last"`: the newest intact one."""
        self.io.wait()
        # its content too, so that the next load of this path does not read it again
        self.io.loaded = newest_valid(_folder(trainer))
        return {str(self.io.loaded.path)} if self.io.loaded else set()


def checkpoints_of(trainer: L.Trainer) -> Checkpoints | None:
    """The callback of a Trainer, if it has one."""
    for callback in trainer.checkpoint_callbacks:
        if isinstance(callback, Checkpoints):
            return callback
    return None


def _folder(trainer: L.Trainer) -> Path:
    return Path(trainer.default_root_dir) / "checkpoints"


def _continues_in_folder(trainer: L.Trainer) -> bool:
    """Whether a training continues a checkpoint of its own folder."""
    path = trainer.ckpt_path
    if path is None:
        return False
    return Path(path).resolve().parent == _folder(trainer).resolve()


def _validation_follows(trainer: L.Trainer, batch_idx: int) -> bool:
    """Whether Lightning validates after this batch."""
    interval = trainer.val_check_batch
    if not interval or not trainer.fit_loop.epoch_loop._should_check_val_epoch():
        return False
    return (batch_idx + 1) % interval == 0


def _forget_started_processes(trainer: L.Trainer) -> None:
    """Take the started processes off Lightning's list. It looks at them every few seconds, and
    kills this process once one has ended with an exit code other than 0, as after a signal."""
    getattr(trainer.strategy.launcher, "procs", []).clear()


def _any_process(trainer: L.Trainer, flag: bool) -> bool:
    """Whether the flag is set in any process; all processes get the same answer."""
    return trainer.strategy.reduce_boolean_decision(flag, all=False)
