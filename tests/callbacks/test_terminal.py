"""What a training shows: on a terminal, in a log file, after Ctrl-C."""

import contextlib
import io
import math
import re
import signal
from pathlib import Path
from shlex import split

import lightning as L
import pytest
from made_runs import column, rows, small_fit

import cli
from boltbox.callbacks import EarlyStop, epoch_table

HEADING = ["epoch", "box", "obj", "cls", "P", "R", "mAP50", "mAP50-95", "time", "ETA", "best"]
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

    def isatty(self):
        return True

    def lines(self):
        """What stands there in the end: after a carriage return text is written over what was
        there."""
        shown = []
        for written in self.getvalue().split("\n"):
            line = ""
            for part in written.split("\r"):
                line = part + line[len(part) :]
            shown.append(line.rstrip())
        return shown


@pytest.fixture
def terminal():
    """Of 80 columns."""
    return Terminal()


def run_on(screen, *words):
    with contextlib.redirect_stdout(screen):
        cli.main(words)


def fit(data, *options):
    return small_fit(data, Path("run"), "--trainer.enable_progress_bar", "true", *options)


def table(lines):
    """The cells of the lines of the epochs."""
    return [line.split() for line in lines if re.match(r" *\d+/\d+ +[\d.]+ ", line)]


def shown(row):
    """The figures of a row of metrics.csv."""
    cells = []
    for name in NAMES:
        if name.startswith("train/"):
            cells.append(f"{float(row[name]):.4f}"[:6])
        else:
            cells.append(f"{float(row[name]):.3f}" if row.get(name) else "-")
    return cells


def ends(line):
    """The columns in which its words end."""
    return [word.end() for word in re.finditer(r"\S+", line)]


def test_a_terminal_of_80_columns(small_data, here, terminal):
    """Epochs with and without a validation."""
    more = "--trainer.max_epochs 3 --trainer.check_val_every_n_epoch 2"
    run_on(terminal, *fit(small_data, *more.split()))
    lines = terminal.lines()
    text = "\n".join(lines)
    assert "\nrun:       run (new)\noptimizer: Muon (auto: from scratch)" in text
    steps, images = map(
        int, re.search(r" (\d+) steps of (\d+) images", " ".join(text.split())).groups()
    )
    assert steps == 3 * math.ceil(24 / images)
    assert "suits SGD" not in text
    heading = lines[list(map(str.split, lines)).index(HEADING)]
    assert text.index(heading) < text.index("\n   1/3 ")
    printed = table(lines)
    expected = rows(here / "run")
    assert column(printed, 0) == ["1/3", "2/3", "3/3"]
    assert column(printed, slice(1, 8)) == list(map(shown, expected))
    assert printed[0][4:8] == ["-"] * 4
    assert printed[1][10] == f"{float(expected[1]['val/mAP50-95']):.3f}@2" == printed[2][10]
    assert (printed[0][10], printed[2][9]) == ("-", "00:00")
    for line in lines:
        if table([line]):
            assert ends(line) == ends(heading)
            assert len(line) <= 79
    bar = r"epoch 2/3: 100%.* 3/3 .*box=\S+, obj=\S+, cls="
    assert re.search(bar, terminal.getvalue())
    assert "\x1b[A" not in terminal.getvalue(), "a notebook does not go up a line"


def test_facts_fit_a_narrow_terminal(small_data, here, terminal, monkeypatch):
    """One in each line, in one column, and what to do next at the end; how long it takes is told
    before the first epoch has ended, and on a CPU what is faster."""
    for name in ("ESTIMATE_AFTER", "SHORT", "LONG_ON_CPU"):
        monkeypatch.setattr(epoch_table, name, 0)
    monkeypatch.setenv("COLUMNS", "50")
    run_on(terminal, *fit(small_data, "--trainer.max_epochs", "2"))
    lines = terminal.lines()
    names = []
    for line in lines:
        if re.match(r"[a-z]+: +\S", line):
            names.append(line.partition(":")[0])
            assert len(line) <= 50
            assert line[11] != " "
    assert names[:3] == ["train", "val", "cache"]
    text = "\n".join(lines)
    assert 0 < text.index("\ntime:      about ") < text.index("\n   1/2 ")
    assert {"hint", "best"} <= set(names)
    assert names[-1] == "next"
    assert "predict --ckpt_path run --source" in " ".join(text.split()), "not the latest fit-N"
    assert re.search(r"^ {11}[^ ]", text, re.MULTILINE)


class Stop(L.Callback):
    """Ctrl-C in the second batch."""

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.current_epoch == 0 and batch_idx == 1:
            signal.raise_signal(signal.SIGINT)


class StopAtEnd(L.Callback):
    """Ctrl-C after the last batch of the first epoch, and after its validation."""

    def on_train_epoch_end(self, trainer, pl_module):
        if trainer.current_epoch == 0:
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize(("stop", "trained"), [(Stop, 0), (StopAtEnd, 1)])
def test_ctrl_c_prints_how_to_resume(small_data, here, terminal, stop, trained):
    """The command that it names continues where the run was: first line, bar, table."""
    options = "--trainer.max_epochs 2 --run 'a run' --trainer.callbacks"
    options += f" {__name__}.{stop.__name__}"
    with pytest.raises(SystemExit) as left:
        run_on(terminal, *fit(small_data, *split(options)))
    assert left.value.code == 130
    hint = re.search("^stopped after.*", "\n".join(terminal.lines()), re.MULTILINE)[0]
    printed, command = hint.split("; resume with: ")
    assert printed == f"stopped after {trained} of 2 epochs"
    assert command == "python cli.py fit --ckpt_path last --run 'a run' --trust_parts true"
    run_on(terminal, *split(command)[2:], "--trainer.callbacks", "null")
    assert f"run:       a run (continued in epoch {trained + 1})" in terminal.getvalue()
    assert column(rows(here / "a run"), "epoch") == ["0", "1"]


def test_ctrl_c_in_a_process_that_only_starts_others(capsys):
    """It knows neither their epochs nor whether they will save."""
    trainer = L.Trainer(strategy="ddp_fork", devices=2, accelerator="cpu")
    epoch_table.EpochTable("again.py")._print_stopped(trainer)
    assert "stopped; once there is a checkpoint, resume with: again.py" in capsys.readouterr().out


def test_without_a_terminal(small_data, here, capsys, monkeypatch):
    """A log file has lines and no bar. `>&-` in a shell: nothing is printed, and nothing fails."""
    line = fit(small_data, "--trainer.max_epochs", "1")
    cli.main(line)
    printed = capsys.readouterr().out
    assert "\r" not in printed
    assert len(table(printed.splitlines())) == 1
    monkeypatch.setattr("sys.stdout", None)
    cli.main(line + ["--ckpt_path", "last"])


def test_an_early_stop_is_printed(capsys):
    early = EarlyStop(patience=5)
    resumed = EarlyStop(patience=9)
    ends = (L.Trainer(logger=False, accelerator="cpu"), L.LightningModule())
    capsys.readouterr()
    early.on_train_end(*ends)
    early.wait_count = 5  # also in the first epoch
    early.on_train_end(*ends)
    resumed.load_state_dict(early.state_dict())
    resumed.on_train_end(*ends)
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith("early stop: no better one in 5 validations")
