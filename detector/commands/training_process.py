"""Trainings that `benchmark`, `evolve` and `review` run, each in a process of its own."""

import contextlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import lightning as L

from boltbox.detector.data.datamodule import DetectionData
from boltbox.detector.distributed.process_group import child_environment, processes_and_machines
from boltbox.detector.system.atomic_file import make_folder
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.operating_system import SIGKILL, kill_group


class FitCommand(NamedTuple):
    """How `benchmark`, `evolve` and `review` start their trainings.

    Attributes:
        typed: The user's options, as typed after the command.
        options: Their values by flat name, and those in files of options.
        configuration: All options, in groups, as plain values.
    """

    typed: list[str]
    options: dict[str, Any]
    configuration: dict[str, Any]

    @property
    def words(self) -> list[str]:
        """The command line up to the command `fit`; options follow."""
        # -P: nothing is imported from the working folder
        return [sys.executable, "-P", "-m", "boltbox", "fit"]

    def named_gpus(self, trainer: L.Trainer) -> list[int]:
        """The GPUs that `--trainer.devices 2,3` names; empty where it is a number of GPUs."""
        devices = self.configuration["trainer"]["devices"]
        is_named = isinstance(devices, list) or "," in str(devices)
        return trainer.device_ids if is_named else []


def prepare(trainer: L.Trainer, datamodule: DetectionData, command: str) -> None:
    """Raises InputError for what is wrong with the dataset once, before the first training, and
    where this process is one of several itself."""
    refuse_several(trainer, command)
    datamodule.prepare_data()
    datamodule.setup("fit")


def refuse_several(trainer: L.Trainer, command: str) -> None:
    """Raises InputError where this process is one of several."""
    if trainer.num_nodes > 1 or processes_and_machines():
        raise InputError(
            f"{command} starts its processes itself, on one machine: no torchrun, no srun of"
            " several tasks, no trainer.num_nodes"
        )


class TrainingProcess(subprocess.Popen[bytes]):
    """A process with all that it starts. It has a session of its own, so that Ctrl-C reaches this
    program alone, and dies with this program, which a signal may end before Popen is back.

    Args:
        line: a command of ours.
        log: file for what it prints.
        variables: of its environment.
    """

    def __init__(self, line: Sequence[str], log: Path, **variables: str) -> None:
        self.log = log
        make_folder(log.parent)
        with open(log, "wb") as file:
            super().__init__(
                line,
                env=child_environment(**variables),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def finish(self, seconds: float = 0.0) -> int | None:
        """Its exit code, None if it is not done within this many seconds. Nothing of it is left
        running, whatever happens."""
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.wait(seconds)
            return self.poll()
        finally:
            kill_group(self.pid)
            self.wait()

    def reason(self, code: int) -> str:
        """Why it failed with this exit code, in a sentence."""
        if code == -SIGKILL:
            return "killed by the system (SIGKILL), as it does when memory runs out"
        if code == 0:
            return "the training ended before there was anything to measure"
        reason = f"exit code {code}"
        for line in self.log.read_text(errors="replace").splitlines():
            if line.startswith("error: "):
                return line.removeprefix("error: ")
            if line.strip():
                reason = line.strip()
        return reason
