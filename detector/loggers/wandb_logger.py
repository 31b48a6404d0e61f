"""Weights & Biases for a run that may be killed."""

import contextlib
import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lightning.fabric.loggers.logger import _DummyExperiment, rank_zero_experiment
from lightning.fabric.utilities import rank_zero_only
from lightning.pytorch import loggers

from detector.system.atomic_file import not_fatal
from detector.system.rank_zero import rank_zero_print

Row = tuple[int, frozenset[str]]  # Trainer's step, names of the values: what identifies a row


class WandbLogger(loggers.WandbLogger):
    """Lightning's WandbLogger, with which a run that was killed and resumed holds every row once, in order, and which never
    ends a training: without a network it writes offline files, and a W&B that fails gets nothing more.

    W&B keeps up to 32 KiB in memory before it writes to an offline file; a killed run loses them. So each row of numbers goes
    to a journal first (`wandb/journal-ID.jsonl` in save_dir). A resumed run, which logs the same rows again, first sends W&B
    the rows of the journal that it lacks, then only rows that are not in there. Tables and pictures are not in the journal: W&B
    gets those that it lost when the resumed run logs them again.
    """

    failed = False  # W&B has
    _sent: set[Row] | None = None  # None until the first row
    _step_online = -1  # the Trainer's step that an online run already held

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        import wandb

        if self._experiment is None and not self.failed:
            os.environ.pop("WANDB_SERVICE", None)  # our parent's, which would take a killed run for one that is going on
            if self._wandb_init.get("anonymous") is None:
                self._wandb_init.pop("anonymous", None)  # W&B warns of the option, whatever its value
            with not_fatal(Path(self.save_dir or ".")):
                Path(self.save_dir or ".").mkdir(parents=True, exist_ok=True)  # W&B looks for git in it, and warns without
            try:
                return super().experiment
            except Exception as e:
                rank_zero_print(
                    f"warning: W&B does not start ({_reason(e)}); it writes offline files, which `wandb sync` uploads later"
                )
            self._wandb_init["mode"] = "offline"
            with self._not_fatal():
                self._experiment = wandb.init(**self._wandb_init)
                self._experiment.define_metric("*", step_metric="trainer/global_step", step_sync=True)  # as Lightning has it
        return _DummyExperiment() if self.failed else self._experiment

    @rank_zero_only
    def log_hyperparams(self, params: Any) -> None:
        with self._not_fatal():
            super().log_hyperparams(params)

    @rank_zero_only
    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        """When W&B has failed the journal goes on: a resumed run has a W&B again, and sends it the rows."""
        with self._not_fatal():
            self.experiment  # noqa: B018 (it starts W&B, which may fail)
            if not self.failed or self._sent is not None:
                self._log_once(metrics, step)

    def _log_once(self, metrics: Any, step: int | None) -> None:
        if self._sent is None:
            self._sent = self._replay_journal()
        row, numbers = (step or 0, frozenset(map(_key, metrics.items()))), all(map(_is_number, metrics.values()))
        if step is None:
            super().log_metrics(metrics, step)
        elif row not in self._sent and (numbers or step > self._step_online):
            self._sent.add(row)
            if numbers:
                with not_fatal(self._journal()), open(self._journal(), "a") as file:
                    file.write("\n" + json.dumps([step, metrics]))
            super().log_metrics(metrics, step)

    @contextlib.contextmanager
    def _not_fatal(self) -> Iterator[None]:
        try:
            yield
        except Exception as e:  # whatever a service, a network or a full disk comes up with
            if not self.failed:
                rank_zero_print(f"warning: W&B failed ({_reason(e)}); training goes on without it")
            self.failed = True

    def _journal(self) -> Path:
        folder = Path(self.save_dir or ".") / "wandb"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"journal-{self.version}.jsonl"

    def _replay_journal(self) -> set[Row]:
        """Send W&B the rows of the journal that it does not hold. Returns all rows of the journal, and those with tables and
        pictures that W&B holds."""
        run, journal, next_step = self.experiment, self._journal(), 0
        held: set[Row] = set()
        sent: set[Row] = set()
        if not journal.exists():
            return sent
        if run.offline:
            for file in sorted(journal.parent.glob(f"offline-run-*-{run.id}/run-{run.id}.wandb")):
                for own_step, values in read_history(file):
                    held.add(self._row(values))
                    if not all(map(_is_number, values.values())):
                        sent.add(self._row(values))
                    next_step = own_step + 1
            run.log({}, step=next_step, commit=False)  # a new offline file counts from 0
        else:
            self._step_online = run.summary.get("trainer/global_step", -1)
        for line in journal.read_text().splitlines():
            try:
                step, metrics = json.loads(line)
            except ValueError:  # empty, or cut short by a full disk
                continue
            row = (step, frozenset(metrics))
            if row not in held and row not in sent and step > self._step_online:
                super().log_metrics(metrics, step)
            sent.add(row)
        return sent

    def _row(self, values: dict[str, Any]) -> Row:
        own = {k for k in values if not k.startswith("_") and k != "trainer/global_step"}
        prefix = f"{self._prefix}{self.LOGGER_JOIN_CHAR}" if self._prefix else ""
        return int(values.get("trainer/global_step", -1)), frozenset(k.removeprefix(prefix) for k in own)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _key(item: tuple[str, Any]) -> str:
    """The name that W&B keeps a value under: of a chart it keeps the table."""
    from wandb.plot import CustomChart

    name, value = item
    return f"{name}_table" if isinstance(value, CustomChart) else name


def _reason(e: Exception) -> str:
    return f"{type(e).__name__}: {' '.join(str(e).split())}"


def read_history(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """W&B's own step and the values of each row that an offline file holds; of a table or a picture, a dictionary."""
    for record in read_records(path):
        if record.WhichOneof("record_type") == "history":
            values: dict[str, Any] = {}
            for item in record.history.item:
                name, *parts = item.nested_key or [item.key]
                if parts:
                    values.setdefault(name, {})["/".join(parts)] = json.loads(item.value_json)
                else:
                    values[name] = json.loads(item.value_json)
            yield record.history.step.num, values


def read_records(path: Path) -> Iterator[Any]:
    """W&B's protocol buffers of the kind `Record` that an offline file holds, as far as it was written.

    The file is a LevelDB log: blocks of 32 KiB; fragments with crc, length and kind.
    """
    from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]

    data, position, record = path.read_bytes(), 7, b""  # after W&B's own header
    while position + 7 <= len(data):
        left = 32768 - position % 32768
        if left < 7:
            position += left
            continue
        _, length, kind = struct.unpack("<IHB", data[position : position + 7])
        record += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4) and position <= len(data):  # whole, or the last fragment
            yield Record.FromString(record)
            record = b""
