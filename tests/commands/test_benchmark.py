"""The command `benchmark`: its rows against what a plain count says, rows that fail, nothing left
running."""

import itertools
import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from shlex import split
from types import SimpleNamespace
from typing import Any

import pytest
from forked import forks

import cli
from benchmarks import gpu
from boltbox.detector.commands.benchmark import stopwatch
from boltbox.detector.commands.benchmark.command import (
    Row,
    Setting,
    attempt,
    search,
)

TINY = split(
    "--model.network.width_multiple 0.125 --model.network.depth_multiple 0.1 --model.network.levels [5] --data.image_size 64 --trainer.accelerator cpu --doctor.enabled false"
)
# leaves nothing to try in their place
FEW = split("--data.cache ram --model.multi_scale true --data.workers 0")
PLAIN = {"trainer.precision": "32-true", "data.workers": 2, "model.compile": "false"}


def trained(rate: float, waiting: float = 0.1) -> Row:
    """Of `rate` images/s; 0 is one that failed."""
    measured = {"images": int(rate * 10), "seconds": 10.0, "steps": 7, "gpu_memory": 0}
    if not rate:
        return Row(PLAIN, {}, "out of beads")
    return Row(PLAIN, measured | {"waiting": waiting})


def test_rows_of_the_command(
    small_data: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two precisions: table and JSON, and how to train that way."""
    options = ["--data.dataset", str(small_data), "--data.batch_size", "4", *TINY, *FEW]
    line = ["benchmark", *options, "--seconds", "1e-6", "--autoanchor.enabled", "false"]
    with forks():
        cli.main([*line, "--trainer.precision", "16-mixed"])
    printed = capsys.readouterr().out
    found = json.loads((here / "runs/benchmark-1/benchmark.json").read_text())
    rows = found["rows"]
    assert [r["trainer.precision"] for r in rows] == ["32-true", "bf16-mixed"]
    for r in rows:
        assert r["error"] == ""
        measured = r["measured"]
        # it stops within the epoch of 6 batches, the first three of which are not measured
        assert (measured["images"], measured["steps"]) == (4, 1)
        assert r["images_per_second"] == pytest.approx(measured["images"] / measured["seconds"])
        assert 0 < measured["waiting"] < 1
    command = next(x for x in printed.splitlines() if x.startswith("python cli.py fit"))
    assert command.startswith(f"python cli.py fit --data.dataset {small_data} --data.batch_size 4")
    assert "--data.workers 0" in command
    assert not {"--seconds", "16-mixed"} & set(command.split())
    assert not list((here / "runs").glob("fit-*"))


def test_stopwatch_counts_as_a_clock_that_ticks(
    small_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look at the clock is a second after the one before: one second of waiting and one of
    work for each step, whatever lies between epochs. 24 images in batches of 7: 7, 7, 7, 3."""
    ticks = itertools.count()
    clock = SimpleNamespace(perf_counter=lambda: float(next(ticks)))
    monkeypatch.setattr(stopwatch, "time", clock)
    watch = tmp_path / "watch.json"
    options = (
        f"--data.dataset {small_data} --data.batch_size 7 --data.workers 0 --run {tmp_path}/run"
    )
    options += (
        " --trainer.max_epochs 2 --trainer.enable_progress_bar false --trainer.limit_val_batches 0"
    )
    options += " --report.enabled false --pictures.enabled false --autoanchor.enabled false"
    options += " --trainer.callbacks+=boltbox.detector.commands.benchmark.stopwatch.Stopwatch"
    options += f" --trainer.callbacks.report={watch} --trainer.callbacks.skip=2"
    cli.main(["fit", *TINY, *options.split()])
    expected = {"images": 7 + 3 + 24, "steps": 6, "seconds": 12.0, "waiting": 0.5, "gpu_memory": 0}
    assert json.loads(watch.read_text()) == expected


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--seconds", "0"], "seconds"),
        (["--trainer.num_nodes", "2"], "trainer.num_nodes"),
        (["--data.dataset", "nowhere.yaml"], "nowhere.yaml"),
        (["--second", "3"], "did you mean 'seconds'"),
    ],
)
def test_errors_come_before_the_first_row(
    options: list[str], told: str, small_data: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as e:
        cli.main(["benchmark", "--data.dataset", str(small_data), *TINY, *options])
    printed = capsys.readouterr()
    assert e.value.code == 2
    assert told in printed.err
    assert "1/" not in printed.out


def test_no_row_in_time(small_data: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The row is given up, and that is what its table, and the error, say."""
    line = ["benchmark", "--data.dataset", str(small_data), *TINY, *FEW, "--deadline", "0.2"]
    with forks(), pytest.raises(SystemExit) as e:
        cli.main(line)
    assert e.value.code == 2
    printed = capsys.readouterr()
    assert "--trainer.precision 32-true" in printed.out
    assert "no row could be measured; row 1: not done within 0.2 s" in printed.err
    assert "not done within 0.2 s" in (here / "runs/benchmark-1/benchmark.json").read_text()


def test_a_terminated_benchmark_leaves_nothing_running(small_data: Path, tmp_path: Path) -> None:
    options = ["--data.dataset", str(small_data), *TINY, "--seconds", "600"]
    line = [sys.executable, str(Path(cli.__file__)), "benchmark", *options]
    with forks():
        process = subprocess.Popen(
            line, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT
        )
    try:
        trial = until(lambda: leaders(process.pid))[0]
        process.send_signal(signal.SIGTERM)
        assert process.wait(600) == 143
    finally:
        process.kill()
    until(lambda: not running("session", trial))


TRIAL = """
import os, time
from pathlib import Path
from boltbox.detector.system.parent import die_with_parent
Path("pid").write_text(str(os.getpid()))
die_with_parent()
time.sleep(600)
"""
PROGRAM = """
import subprocess, sys
from pathlib import Path
from boltbox.detector.commands.benchmark.command import attempt
start = subprocess.Popen.__init__

def ended(self, *args, **options):
    start(self, *args, **options)
    raise SystemExit(143)

subprocess.Popen.__init__ = ended
attempt([sys.executable, "trial/cli.py"], Path("none.json"), 30)
"""


def test_a_signal_while_a_trial_starts_leaves_nothing_running(tmp_path: Path) -> None:
    """SystemExit, as a signal raises it, comes when the process runs already and Popen is not back
    yet."""
    (tmp_path / "trial").mkdir()
    (tmp_path / "trial/cli.py").write_text(TRIAL)
    (tmp_path / "cli.py").write_text(PROGRAM)
    with forks():
        done = subprocess.run([sys.executable, "cli.py"], cwd=tmp_path, check=False)
    assert done.returncode == 143
    pid = int(until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text()))
    until(lambda: pid not in running())


def running(field: str = "", value: int = 0) -> list[int]:
    """Processes that have not ended: all, or those with this `ppid` or `session`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        seen = {"": 0, "ppid": int(words[1]), "session": int(words[3])}
        if words[0] not in "ZX" and seen[field] == value:
            found.append(int(path.parent.name))
    return found


def leaders(parent: int) -> list[int]:
    """The children of a process that have a session of their own, as trials have."""
    return [child for child in running("ppid", parent) if child in running("session", child)]


def until(true: Any, seconds: float = 600) -> Any:
    for _ in range(int(seconds * 50)):
        if found := true():
            return found
        time.sleep(0.02)
    raise AssertionError(f"not within {seconds} s")


@pytest.mark.parametrize(
    ("program", "error"),
    [
        (
            "import os; os.kill(os.getpid(), 9)",
            "killed by the system (SIGKILL), as it does when memory runs out",
        ),
        (
            "import sys; print('error: no beads', file=sys.stderr); print('done'); sys.exit(2)",
            "no beads",
        ),
        ("[][0]", "IndexError: list index out of range"),
        ("import os; os._exit(5)", "exit code 5"),
        ("pass", "the training ended before there was anything to measure"),
        ("import time; time.sleep(60)", "not done within 0.5 s"),
    ],
)
def test_a_trial_that_ends_badly_says_why(program: str, error: str, tmp_path: Path) -> None:
    deadline = 0.5 if "sleep" in program else 30
    result = attempt([sys.executable, "-c", program], tmp_path / "none.json", deadline)
    assert result == ({}, error)


def test_a_change_is_kept_where_it_gains() -> None:
    """By more than 5 %; the next change comes on top of it. A row that fails is never the best."""
    rates = {
        ("32-true", 2, "false"): 100,
        ("bf16-mixed", 2, "false"): 120,
        ("bf16-mixed", 0, "false"): 124,
        ("bf16-mixed", 4, "false"): 0,
        ("bf16-mixed", 2, "true"): 200,
    }
    changes: list[Setting] = [{"trainer.precision": "bf16-mixed"}, {"data.workers": 0}]
    changes += [{"data.workers": 4}, {"model.compile": "true"}]

    rows: list[Row] = []

    def by_rate(setting: Setting) -> Row:
        row = trained(rates[tuple(setting.values())])
        rows.append(replace(row, setting=setting))
        return rows[-1]

    best = search(PLAIN, changes, by_rate)
    assert [row.rate for row in rows] == [100, 120, 124, 0, 200]
    assert best is rows[-1]
    assert "out of beads" in str(rows[3])
    assert "--trainer.precision bf16-mixed" in str(best)


def test_precisions_over_whole_trainings(
    small_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The dry run of benchmarks/gpu.py: its figures are those of the runs, and what is finished is
    not done again."""
    line = f"--data {small_data} --epochs 1 --image-size 64 --seeds 0 --folder {tmp_path}/gpu --page {tmp_path}/gpu.md --data.batch_size 4 --data.workers 0 --autoanchor.enabled false".split()
    both = [
        *line,
        *TINY[:6],
        *TINY[8:],
        *split("--precisions 32-true bf16-mixed --report.enabled false --pictures.enabled false"),
    ]
    with forks():
        gpu.main(both)
    page = (tmp_path / "gpu.md").read_text()
    for precision in ("32-true", "bf16-mixed"):
        metrics = json.loads((tmp_path / f"gpu/{precision}-0-0/metrics.json").read_text())
        watch = json.loads((tmp_path / f"gpu/{precision}-0-0/stopwatch.json").read_text())
        assert watch["images"] == 12  # the first three of six batches do not count
        figures = f"| {precision}, 0 | {metrics['mAP50']:.4f} | {metrics['mAP50-95']:.4f} | 1 |"
        assert f"{figures} {watch['images'] / watch['seconds']:.4g} |" in page
    assert "- bf16-mixed less 32-true: mAP50 +" in page.replace(" -0", " +0")
    assert "seeds: 1" in page
    began = {p: p.stat().st_mtime_ns for p in (tmp_path / "gpu").rglob("*.ckpt")}
    with forks():
        gpu.main(both)
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "gpu").rglob("*.ckpt")} == began
    with pytest.raises(SystemExit):
        gpu.main([*both, "--model.optim.lr0", "true"])
    assert "holds runs with other options" in capsys.readouterr().err


def test_verdicts() -> None:
    def run(map50: float, rate: float) -> dict[str, float]:
        return {"mAP50": map50, "mAP50-95": 0.5, "rate": rate}

    results = {
        "32-true, 0": run(0.8, 100),
        "16-mixed, 0": run(0.81, 250),
        "16-mixed, 1": run(0.1, 1),
        "bf16-mixed, 0": run(0.7, 50),
    }
    assert gpu.verdicts(results) == [
        "- bf16-mixed less 32-true: mAP50 -0.1000, mAP50-95 +0.0000 (seeds: 1), not within 0.02; 0.50 times the images/s.",
        "- 16-mixed less 32-true: mAP50 +0.0100, mAP50-95 +0.0000 (seeds: 1), within 0.02; 2.50 times the images/s.",
    ]


def test_commands_of_the_committed_page_are_understood(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(cli.__file__).parent / "benchmarks/benchmark.md").read_text()
    commands = [
        line.partition("  #")[0].split()
        for line in page.splitlines()
        if line.startswith("    python cli.py fit")
    ]
    assert len(commands) == 8
    for line in commands[-1:]:
        with pytest.raises(SystemExit) as e:
            cli.main([*line[2:], "--print_config"])
        assert e.value.code == 0
        assert (
            f"precision: {line[line.index('--trainer.precision') + 1]}" in capsys.readouterr().out
        )
