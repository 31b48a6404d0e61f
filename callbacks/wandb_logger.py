"""Weights & Biases for a run that may be killed."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lightning.fabric.utilities import rank_zero_only
from lightning.pytorch import loggers

from detector.files import not_fatal

Row = tuple[int, frozenset[str]]  # Trainer's step, names of the figures: what a row is known by


class WandbLogger(loggers.WandbLogger):
    """Lightning's WandbLogger, with which a run that was killed and resumed holds every row once, in order.

    W&B keeps up to 32 KiB in memory before it writes to an offline file; a killed run loses them. So each row of figures goes
    to a journal first (`wandb/journal-ID.jsonl` in save_dir). A resumed run, which comes by the same rows again, tells W&B what
    it lacks from the journal, then only what is not in there. Tables and pictures are not in the journal.
    """

    _told: set[Row] | None = None  # None until the first row

    @rank_zero_only
    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        if self._told is None:
            self._told = self._catch_up()
        row = (step or 0, frozenset(metrics))
        if step is None or not all(isinstance(value, int | float) for value in metrics.values()):
            super().log_metrics(metrics, step)
        elif row not in self._told:
            self._told.add(row)
            with not_fatal(self._journal()), open(self._journal(), "a") as file:
                file.write("\n" + json.dumps([step, metrics]))
            super().log_metrics(metrics, step)

    def _journal(self) -> Path:
        folder = Path(self.save_dir or ".") / "wandb"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"journal-{self.experiment.id}.jsonl"

    def _catch_up(self) -> set[Row]:
        """Tell W&B the rows of the journal that it does not hold; all rows of the journal."""
        run, journal, next_step = self.experiment, self._journal(), 0
        held: set[Row] = set()
        told: set[Row] = set()
        if not journal.exists():
            return told
        if run.offline:
            for file in sorted(journal.parent.glob(f"offline-run-*-{run.id}/run-{run.id}.wandb")):
                for own_step, values in read_history(file):
                    held.add(self._row(values))
                    next_step = own_step + 1
            run.log({}, step=next_step, commit=False)  # a new offline file counts from 0
        reached = -1 if run.offline else run.summary.get("trainer/global_step", -1)
        for line in journal.read_text().splitlines():
            try:
                step, metrics = json.loads(line)
            except ValueError:  # empty, or cut short by a full disk
                continue
            row = (step, frozenset(metrics))
            if row not in held and row not in told and step > reached:
                super().log_metrics(metrics, step)
            told.add(row)
        return told

    def _row(self, values: dict[str, Any]) -> Row:
        own = {k for k in values if not k.startswith("_") and k != "trainer/global_step"}
        prefix = f"{self._prefix}{self.LOGGER_JOIN_CHAR}" if self._prefix else ""
        return int(values.get("trainer/global_step", -1)), frozenset(k.removeprefix(prefix) for k in own)


def read_history(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """W&B's own step and the values of each row that an offline file holds, as far as it was written.

    The file is a LevelDB log (blocks of 32 KiB; fragments with crc, length and kind) of W&B's protocol buffers.
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
            content = Record.FromString(record)
            record = b""
            if content.WhichOneof("record_type") == "history":
                history = content.history
                values = {i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in history.item}
                yield history.step.num, values
