"""What a training shows: on a terminal, in a log file, after Ctrl-C."""

import contextlib
import csv
import io
import os
import re
import shlex
import signal
from pathlib import Path
from typing import Any

import lightning as L
import pytest
from hypothesis import given
from hypothesis import strategies as st

import boltbox.callbacks.progress
import cli
from boltbox.detector.report.progress_line import Pace, bar_line, duration

QUICK = [
    "--data.image_size",
    "64",
    "--data.batch_size",
    "8",
    "--data.workers",
    "0",
    "--model.network.width_multiple",
    "0.125",
]
QUICK += [
    "--trainer.accelerator",
    "cpu",
    "--trainer.precision",
    "32-true",
    "--autoanchor.enabled",
    "false",
]
QUICK += ["--doctor.enabled", "false", "--report.enabled", "false", "--pictures.enabled", "false"]
HEADING = ["epoch", "box", "obj", "cls", "P", "R", "mAP50", "mAP50-95", "time", "left", "best"]
NAMES = [
    "train/box_loss",
    "train/obj_loss",
    "train/cls_loss",
    "val/P",
    "val/R",
    "val/mAP50",
    "val/mAP50-95",
]


class Terminal(io.StringIO):
    """Standard output that takes itself for a terminal."""

    def isatty(self) -> bool:
        return True

    def lines(self) -> list[str]:
        """What stands there in the end: after a carriage return text is written over what was
        there."""
        shown = []
        for written in self.getvalue().split("\n"):
            line = ""
            for part in written.split("\r"):
                line = part + line[len(part) :]
            shown.append(line.rstrip())
        return shown

    def bars(self) -> list[str]:
        """All that stood on the last line, one after the other."""
        return [
            part.rstrip()
            for part in re.split("[\r\n]", self.getvalue())
            if re.match(r"epoch .*\d%", part)
        ]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Of 80 columns, on which every batch is drawn."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("boltbox.detector.report.progress_line.LastLine.due", lambda self: True)
    return Terminal()


def run_on(screen: io.TextIOBase, *words: str) -> None:
    with contextlib.redirect_stdout(screen):
        cli.main(words)


def fit(data: Path, *options: str) -> list[str]:
    return ["fit", "--data.dataset", str(data), *QUICK, *options]


def rows(run: Path) -> list[dict[str, str]]:
    with open(run / "metrics.csv", newline="") as file:
        return list(csv.DictReader(file))


def table(lines: list[str]) -> list[list[str]]:
    """The cells of the lines of the epochs."""
    return [line.split() for line in lines if re.match(r" *\d+/\d+ +[\d.]+ ", line)]


def equal(cells: list[str], row: dict[str, str]) -> bool:
    """Whether a line shows what metrics.csv has, as far as its digits go."""
    for shown, name in zip(cells[1:8], NAMES, strict=True):
        if not row.get(name):
            if shown != "-":
                return False
        elif abs(float(shown) - float(row[name])) > 0.501 * 10.0 ** -len(shown.partition(".")[2]):
            return False
    return True


def test_a_terminal_of_80_columns(small_data: Path, here: Path, terminal: Terminal) -> None:
    """Epochs with and without a validation."""
    run_on(
        terminal,
        *fit(
            small_data,
            "--trainer.max_epochs",
            "3",
            "--trainer.check_val_every_n_epoch",
            "2",
            "--run",
            "run",
        ),
    )
    lines = terminal.lines()
    first = next(line for line in lines if line.startswith("fit on "))
    assert re.fullmatch(
        r"fit on cpu \(\d+ threads?\), 32-true; run folder run, new; 24 training and 8 validation images, 5 classes",
        first,
    )
    heading = next(line for line in lines if line.split() == HEADING)
    told, wanted = table(lines), rows(here / "run")
    assert [cells[0] for cells in told] == ["1/3", "2/3", "3/3"]
    assert all(equal(cells, row) for cells, row in zip(told, wanted, strict=True))
    assert told[0][4:8] == ["-"] * 4
    assert told[1][10] == f"{float(wanted[1]['val/mAP50-95']):.3f}@2" == told[2][10]
    assert told[0][10] == told[2][9] == "-"
    ends = [m.end() for m in re.finditer(r"\S+", heading)]
    for line in lines[lines.index(heading) + 1 :][:3]:
        assert [m.end() for m in re.finditer(r"\S+", line)] == ends
        assert len(line) <= 79
    assert not any("%" in line for line in lines), "no bar is left behind"

    bars = terminal.bars()
    assert max(map(len, bars)) <= 77
    training = [
        re.fullmatch(
            r"epoch (\d)/3 +(\d+)% .{8,40} (\d)/3( \S+ left  box \S+ obj \S+ cls \S+)?", bar
        )
        for bar in bars
    ]
    seen = [tuple(map(int, m.groups()[:3])) for m in training if m]
    assert seen == [(epoch, round(100 * k / 3), k) for epoch in (1, 2, 3) for k in range(4)]
    assert any(bar.startswith("epoch 2/3, validation 100%") for bar in bars)


class Stop(L.Callback):
    """Ctrl-C in the second batch."""

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.current_epoch == 0 and batch_idx == 1:
            os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_tells_how_to_go_on(small_data: Path, here: Path, terminal: Terminal) -> None:
    """The command that it names goes on where it was: in the first line, on the bar, in the
    table."""
    options = [
        "--trainer.max_epochs",
        "2",
        "--run",
        "a run",
        "--trainer.callbacks",
        f"{__name__}.Stop",
    ]
    with pytest.raises(SystemExit) as left:
        run_on(terminal, *fit(small_data, *options))
    assert left.value.code == 130
    hint = next(line for line in terminal.lines() if line.startswith("stopped in epoch"))
    told, command = hint.split("; go on with: ")
    assert told == "stopped in epoch 1/2"
    assert command == "python cli.py fit --ckpt_path last --run 'a run' --trust_parts true", (
        "its callback is not boltbox's"
    )
    terminal.seek(0)
    terminal.truncate()
    run_on(terminal, *shlex.split(command)[2:], "--trainer.callbacks", "null")
    assert (
        "; run folder a run, continued in epoch 1 after batch 2; 24 training" in terminal.getvalue()
    )
    assert re.match(r"epoch 1/2 +67% .*2/3$", terminal.bars()[0])
    told_rows, wanted = table(terminal.lines()), rows(here / "a run")
    assert len(wanted) == 2
    assert all(equal(cells, row) for cells, row in zip(told_rows, wanted, strict=True))


def test_a_log_file_has_signs_of_life_and_no_bar(
    small_data: Path, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(boltbox.callbacks.progress, "QUIET", 0.0)  # seconds
    cli.main(fit(small_data, "--trainer.max_epochs", "1", "--run", "run"))
    told = capsys.readouterr().out
    assert "\r" not in told
    signs = [line for line in told.splitlines() if line.startswith("epoch 1/1")]
    begun, *within, validation = signs[:4]
    assert begun == "epoch 1/1: 0/3 batches" or "1/3" in begun
    pattern = r"epoch 1/1: \d/3 batches, \S+ left, box \S+ obj \S+ cls \S+, wait \d+%, mem \S+G, \d+ instances, size 64"
    assert all(re.fullmatch(pattern, line) for line in within)
    assert len(table(told.splitlines())) == 1
    assert validation


def test_an_early_stop_is_told(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    early, lines = (
        boltbox.callbacks.EarlyStop(patience=5),
        boltbox.callbacks.EpochLines("the command"),
    )
    trainer = L.Trainer(
        callbacks=[early, lines],
        logger=False,
        max_epochs=9,
        default_root_dir=tmp_path,
        accelerator="cpu",
    )
    capsys.readouterr()
    lines.on_train_end(trainer, L.LightningModule())
    early.stopped_epoch = 3
    lines.on_train_end(trainer, L.LightningModule())
    assert capsys.readouterr().out.splitlines() == [
        "stopped after 0 of 9 epochs; there is no checkpoint yet to go on from: start again",
        "early stop: no better epoch in the last 5 (early_stop.patience)",
    ]


@given(
    st.integers(1, 10**5),
    st.integers(1, 10**6),
    st.floats(0, 1),
    st.floats(0, 10**4),
    st.integers(30, 250),
    st.booleans(),
)
def test_bars_fit(
    epochs: int, batches: int, share: float, seconds: float, columns: int, blocks: bool
) -> None:
    pace = Pace(f"epoch {epochs}/{epochs}", batches)
    pace.done, pace.seen, pace.seconds = int(share * batches), 1, seconds
    losses = "box .1234 obj .1234 cls .1234"
    line = bar_line(
        pace, [losses, "wait 12%", "mem 12.3G", "12 instances", "size 640"], columns, blocks
    )
    assert len(line) <= columns - 3
    if columns >= 80 and epochs < 1000 and batches < 10**4:
        assert pace.count in line
        assert pace.left in line
    if columns >= 80 and epochs < 100 and batches < 1000:
        assert losses in line


def test_durations() -> None:
    seconds = [
        0,
        8.24,
        9.94,
        9.96,
        99.4,
        99.6,
        3599.4,
        3599.6,
        36000,
        99 * 3600,
        100 * 3600,
        400 * 3600,
    ]
    told = [
        "0.0s",
        "8.2s",
        "9.9s",
        "10s",
        "99s",
        "1m40s",
        "59m59s",
        "1h00m",
        "10h00m",
        "99h00m",
        "4d04h",
        "16d16h",
    ]
    assert [duration(s) for s in seconds] == told


def test_a_pace_counts_from_where_it_began() -> None:
    """Resumed after 60 of 100 batches, of which each takes two seconds from then on."""
    pace = Pace("epoch 1/1", 100, done=60)
    for _ in range(10):
        pace.add(2.0)
    assert (pace.count, pace.left) == ("70/100", "60s left")
    assert bar_line(pace, [], 60).startswith("epoch 1/1  70% ██████████████████▏ ")
    assert bar_line(pace, [], 60, blocks=False).startswith(
        "epoch 1/1  70% [################        ]"
    )
