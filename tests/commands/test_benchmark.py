"""The command `benchmark`: its rows, rows that fail, nothing left running."""

import itertools
import sys
from types import SimpleNamespace

import pytest
from forked import forks
from made_runs import SMALL, read, type_line

from boltbox.detector.commands.benchmark import stopwatch
from boltbox.detector.commands.benchmark.command import STOPWATCH, attempt, search


def test_rows_of_the_command(small_data, here, capsys):
    """Two precisions, and the line that trains in the faster one."""
    options = f"--data.dataset {small_data} --data.batch_size 4 {SMALL}"
    with forks():
        type_line(f"benchmark {options} --seconds 1e-6 --trainer.precision 16-mixed")
    lines = capsys.readouterr().out.splitlines()
    rows = [line.partition(": ") for line in lines if "images/s" in line]
    for row, precision in zip(rows, ("32-true", "bf16-mixed"), strict=True):
        assert row[0] == f"--trainer.precision {precision} --data.workers 0"
        assert float(row[2].split()[0]) > 0
    command = lines[-1].split()[1:]
    assert command[:5] == ["python", "cli.py", "fit", "--data.dataset", str(small_data)]
    assert "--data.workers" in command
    assert not {"--seconds", "16-mixed"} & set(command)
    assert not list((here / "runs").glob("*"))


def test_stopwatch_counts_as_a_clock_that_ticks(small_data, tmp_path, monkeypatch):
    """Each look at the clock is a second after the one before: one second of waiting and one of
    work for each step, whatever lies between epochs. 24 images in batches of 7: 7, 7, 7, 3. It
    stops after the step in which 11 seconds are over, though max_epochs ends before."""
    ticks = itertools.count()
    clock = SimpleNamespace(perf_counter=lambda: float(next(ticks)))
    monkeypatch.setattr(stopwatch, "time", clock)
    watch = tmp_path / "watch.json"
    options = f"--data.dataset {small_data} --data.batch_size 7 --run {tmp_path}/run"
    options += " --trainer.max_epochs 1 --trainer.min_epochs 9 --trainer.limit_val_batches 0"
    options += f" --trainer.callbacks+={STOPWATCH} --trainer.callbacks.report={watch}"
    options += " --trainer.callbacks.skip=2 --trainer.callbacks.seconds=11"
    type_line(f"fit {SMALL} {options}")
    expected = {"images": 7 + 3 + 24, "steps": 6, "seconds": 12.0, "waiting": 0.5}
    assert read(watch) == expected


@pytest.mark.parametrize(
    ("program", "error"),
    [
        ("import os; os.kill(os.getpid(), 9)", "SIGKILL"),
        ("print('error: no beads'); print('done'); raise SystemExit(2)", "no beads"),
        ("[][0]", "IndexError: list index out of range"),
        ("import os; os._exit(5)", "exit code 5"),
        ("pass", "ended before there was anything to measure"),
        ("import time; time.sleep(60)", "not done within 0.5 s"),
    ],
)
def test_a_trial_that_ends_badly_says_why(program, error, tmp_path):
    deadline = 0.5 if "sleep" in program else 240
    line = [sys.executable, "-c", program]
    measured, reason = attempt(line, tmp_path / "none.json", deadline)
    assert measured == {}
    assert error in reason


def test_a_change_is_kept_where_it_gains():
    """By more than 5 %; the next change comes on top of it."""
    rates = {"32 2": 100, "bf16 2": 120, "bf16 0": 126, "bf16 4": 0, "bf16 8": 127}
    changes = [{"precision": "bf16"}, {"workers": 0}, {"workers": 4}, {"workers": 8}]
    seen = []

    def measure(setting):
        seen.append(f"{setting['precision']} {setting['workers']}")
        return rates[seen[-1]]

    best = search({"precision": "32", "workers": 2}, changes, measure)
    assert best == {"precision": "bf16", "workers": 8}
    assert seen == list(rates)
