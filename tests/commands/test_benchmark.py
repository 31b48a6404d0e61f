"""The command `benchmark`: its rows against what a plain count says, rows that fail, nothing left
running."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from forked import forks

import cli
from benchmarks import gpu
from boltbox.detector.commands.benchmark import stopwatch
from boltbox.detector.commands.benchmark.report import (
    Row,
    content,
    recommendation,
    recommended,
    table,
)
from boltbox.detector.commands.benchmark.setting import Setting, settings
from boltbox.detector.commands.benchmark.trial import Trial, attempt

TINY = [
    "--model.width_multiple",
    "0.125",
    "--data.image_size",
    "64",
    "--trainer.accelerator",
    "cpu",
]
HOST = {"processor": "abacus"}


def row(precision: str, devices: int, rate: float, waiting: float = 0.1, workers: int = 2) -> Row:
    """A row of `rate` images/s; 0 is one that failed."""
    measured = {
        "images": int(rate * 10),
        "seconds": 10.0,
        "steps": 7,
        "waiting": waiting,
        "gpu_memory": 0,
    }
    trial = Trial(measured, "") if rate else Trial({}, "out of beads")
    return Row(
        Setting(precision, "ddp" if devices > 1 else "auto", devices, workers),
        ["--data.dataset", "my data"],
        trial,
    )


def test_rows_of_the_command(
    small_data: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One device, then two processes: table and JSON; each row says how to train that way."""
    options = [
        "--data.dataset",
        str(small_data),
        "--data.batch_size",
        "6",
        *TINY,
        "--data.workers",
        "0",
    ]
    with forks():
        cli.main(
            [
                "benchmark",
                *options,
                "--seconds",
                "0.2",
                "--rows",
                "2",
                "--trainer.precision",
                "16-mixed",
            ]
        )
    printed = capsys.readouterr().out
    found = json.loads((here / "runs/benchmark-1/benchmark.json").read_text())
    assert "2 of 7 combinations are measured" in printed
    one, two = found["rows"]
    assert [(r["precision"], r["devices"], r["strategy"], r["workers"]) for r in (one, two)] == [
        ("32-true", 1, "auto", 0),
        ("32-true", 2, "ddp", 0),
    ]
    for r in (one, two):
        assert r["error"] == ""
        assert r["images"] == 6 * r["steps"] > 0  # 24 images are 4 whole batches
        assert r["images_per_second"] == pytest.approx(r["images"] / r["seconds"])
        assert 0 < r["waiting"] < 1
        assert r["command"].startswith(
            f"python cli.py fit --data.dataset {small_data} --data.batch_size 6 --model.width"
        )
        rest = "--model.compile false --data.cache auto --data.workers 0"
        assert r["command"].endswith(f"--trainer.devices {r['devices']} {rest}")
        assert not {"--seconds", "--rows", "16-mixed"} & set(r["command"].split())
    assert one["command"] in printed
    assert two["command"] in printed
    assert found["recommendation"] in printed
    assert not list((here / "runs").glob("fit-*"))


def test_stopwatch_counts_as_a_clock_that_ticks(
    small_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look at the clock is a second after the one before: one second of waiting and one of
    work for each step, whatever lies between epochs. 24 images in batches of 7: 7, 7, 7, 3."""
    ticks = itertools.count()
    clock = SimpleNamespace(perf_counter=lambda: float(next(ticks)), monotonic=time.monotonic)
    monkeypatch.setattr(stopwatch, "time", clock)
    watch = tmp_path / "watch.json"
    cli.main(
        ["fit", "--data.dataset", str(small_data), "--data.batch_size", "7", *TINY, "--data.workers", "0", "--run",
         str(tmp_path / "run"), "--trainer.max_epochs", "2", "--trainer.enable_progress_bar", "false",
         "--report.enabled", "false", "--pictures.enabled", "false",
         "--autoanchor.enabled", "false", "--trainer.callbacks+=boltbox.detector.commands.benchmark.stopwatch.Stopwatch",
         f"--trainer.callbacks.report={watch}", "--trainer.callbacks.skip=2"]
    )  # fmt: skip
    expected = {"images": 7 + 3 + 24, "steps": 6, "seconds": 12.0, "waiting": 0.5, "gpu_memory": 0}
    assert json.loads(watch.read_text()) == expected


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--seconds", "0"], "seconds is 0; it must be more than 0"),
        (["--rows", "-1"], "rows is -1"),
        (["--trainer.num_nodes", "2"], "measures one machine"),
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
    with forks(), pytest.raises(SystemExit) as e:
        cli.main(
            [
                "benchmark",
                "--data.dataset",
                str(small_data),
                *TINY,
                "--rows",
                "1",
                "--deadline",
                "0.2",
            ]
        )
    assert e.value.code == 2
    printed = capsys.readouterr()
    assert "1/1 32-true, 1 device" in printed.out
    assert "no row could be measured; row 1: not done within 0.2 s" in printed.err
    assert "not done within 0.2 s" in (here / "runs/benchmark-1/benchmark.json").read_text()


def test_a_terminated_benchmark_leaves_nothing_running(small_data: Path, tmp_path: Path) -> None:
    line = [
        sys.executable,
        str(Path(cli.__file__)),
        "benchmark",
        "--data.dataset",
        str(small_data),
        *TINY,
        "--seconds",
        "600",
    ]
    process = subprocess.Popen(
        [*line, "--rows", "1"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        until(lambda: [pid for pid in running(str(small_data)) if pid != process.pid])
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 143
    finally:
        process.kill()
    until(lambda: not running(str(small_data)))


def test_a_signal_while_a_trial_starts_leaves_nothing_running(tmp_path: Path) -> None:
    """SystemExit, as a signal raises it, comes when the process runs already and Popen is not back
    yet."""
    root = Path(cli.__file__).parent
    child = "import os, time; from pathlib import Path; from boltbox.detector.system.parent import die_with_parent\n"
    child += "Path('pid').write_text(str(os.getpid())); die_with_parent(); time.sleep(600)"
    program = f"""
import subprocess, sys
from pathlib import Path
from boltbox.detector.commands.benchmark.trial import attempt
start = subprocess.Popen.__init__

def ended(self, *args, **options):
    start(self, *args, **options)
    raise SystemExit(143)

subprocess.Popen.__init__ = ended
attempt([sys.executable, "-c", {child!r}], Path("none.json"), 30)
"""
    environment = {**os.environ, "PYTHONPATH": str(root)}
    assert (
        subprocess.run(
            [sys.executable, "-c", program], cwd=tmp_path, env=environment, check=False
        ).returncode
        == 143
    )
    until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    # empty when it has ended and nobody has asked
    command_line = Path("/proc") / (tmp_path / "pid").read_text() / "cmdline"
    until(lambda: not command_line.exists() or not command_line.read_bytes())


def running(word: str) -> list[int]:
    """Processes with a word in their command line, this one and its like left out."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_text().split("\0")
        except OSError:
            continue
        if word in words and any(w.endswith("cli.py") or w == "boltbox" for w in words):
            found.append(int(folder.name))
    return found


def until(true: Any, seconds: float = 120) -> None:
    for _ in range(int(seconds * 10)):
        if true():
            return
        time.sleep(0.1)
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
    trial = attempt(
        [sys.executable, "-c", program], tmp_path / "none.json", 0.5 if "sleep" in program else 30
    )
    assert (trial.measured, trial.error, trial.rate) == ({}, error, 0.0)


def test_settings_that_tell_most_come_first() -> None:
    found = settings(("32-true", "bf16-mixed"), "ddp", (1, 4), cores=8, workers=8, cache="ram")
    assert found[0] == Setting("32-true", "auto", 1, 8, cache="ram")
    single = {
        ("bf16-mixed", 1, 8),
        ("32-true", 4, 2),
        ("32-true", 1, 0),
        ("32-true", 1, 2),
        ("32-true", 1, 4),
    }
    assert {(s.precision, s.devices, s.workers) for s in found[1:6]} == single
    assert len(found) == len(set(found)) == 2 * (4 + 2)
    assert {s.workers for s in found if s.devices == 4} == {2, 0}, "four devices share eight cores"
    assert {(s.compiled, s.cache) for s in found} == {(False, "ram")}

    more = settings(("32-true", "bf16-mixed"), "ddp", (1,), cores=2, workers=0, compilable=True)
    assert more == [
        Setting("32-true", "auto", 1, 0),
        Setting("bf16-mixed", "auto", 1, 0),
        Setting("32-true", "auto", 1, 0, cache="none"),
        Setting("32-true", "auto", 1, 0, compiled=True),
        Setting("bf16-mixed", "auto", 1, 0, compiled=True),
    ]
    assert more[3].options()[-6:] == [
        "--model.compile",
        "true",
        "--data.cache",
        "auto",
        "--data.workers",
        "0",
    ]
    assert str(more[3]) == "32-true, 1 device, 0 workers, compiled"


def test_what_costs_more_must_gain_more() -> None:
    """Compilation, of what is as fast; not of what is slower."""

    def compiled(rate: float) -> Row:
        plain = row("32-true", 1, rate)
        return plain._replace(setting=replace(plain.setting, compiled=True))

    for rate in (104, 120):
        chosen = recommended([row("32-true", 1, 100), compiled(rate)])
        assert chosen is not None
        assert chosen.setting.compiled == (rate == 120)


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([("32-true", 1, 100), ("bf16-mixed", 1, 104)], "32-true, 1 device, 2 workers, with 100 images/s, as no other"),
        ([("32-true", 1, 100), ("bf16-mixed", 1, 150)], "bf16-mixed, 1 device, 2 workers, with 150 images/s, 1.50 times"),
        ([("32-true", 1, 50), ("32-true", 2, 100), ("bf16-mixed", 1, 97)], "bf16-mixed, 1 device, 2 workers, with 97 images/s"),
        ([("32-true", 1, 0), ("32-true", 2, 9)], "32-true, 2 devices (ddp), 2 workers, with 9 images/s"),
        ([("32-true", 1, 0)], "no row could be measured"),
    ],
)  # fmt: skip
def test_recommendation(rows: list[tuple[str, int, float]], told: str) -> None:
    assert told in recommendation([row(*r) for r in rows])


def test_recommendation_speaks_of_a_slow_loader() -> None:
    assert "waits for data 40% of the time" in recommendation([row("32-true", 1, 10, waiting=0.4)])
    assert "waits" not in recommendation([row("32-true", 1, 10, waiting=0.1)])


def test_table_of_rows_that_failed() -> None:
    rows = [row("32-true", 1, 10), row("16-mixed", 2, 0)]
    assert "row 2: out of beads" in table(rows)
    assert "python cli.py fit --data.dataset 'my data'" in table(rows)
    assert content(HOST, rows)["rows"][1]["error"] == "out of beads"


def test_precisions_over_whole_trainings(
    small_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The dry run of benchmarks/gpu.py: its figures are those of the runs, and what is finished is
    not done again."""
    line = ["--data", str(small_data), "--epochs", "1", "--image-size", "64", "--seeds", "0", "--folder", str(tmp_path / "gpu"),
            "--page", str(tmp_path / "gpu.md"), "--data.batch_size", "4", "--trainer.accelerator", "cpu",
            "--model.width_multiple", "0.125", "--autoanchor.enabled", "false"]  # fmt: skip
    both = [*line, "--precisions", "32-true", "bf16-mixed", "--data.workers", "0"]
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
        gpu.main([*both, "--model.lr0", "0.5"])
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
    for words in (commands[0], commands[-1]):
        with pytest.raises(SystemExit) as e:
            cli.main([*words[2:], "--print_config"])
        assert e.value.code == 0
        assert (
            f"precision: {words[words.index('--trainer.precision') + 1]}" in capsys.readouterr().out
        )
