"""A process that fails, is killed or hangs: the others end soon, say what they know, and nobody is
left."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from forked import forks
from ranks import together
from small_fit import small_fit

import cli
from benchmarks import resume_fuzz
from benchmarks.resume_fuzz import difference
from boltbox.detector.distributed.process_group import lost_contact

ROOT = Path(cli.__file__).parent
SOON = 30.0  # seconds within which all is over after the trouble


class Trouble(L.Callback):
    """BOLTBOX_TROUBLE is like `raise:1:2`: process 1 raises at its third training batch. Or kills
    itself, or hangs. Only at the first start, not after a restart."""

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        kind, rank, at = os.environ["BOLTBOX_TROUBLE"].split(":")
        here = (
            trainer.global_rank,
            trainer.fit_loop.epoch_loop.batch_progress.total.processed,
        ) == (int(rank), int(at))
        if not here or os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0":
            return
        (Path(trainer.default_root_dir) / "trouble").write_text(str(time.time()))
        if kind == "raise":
            raise ZeroDivisionError("made trouble")
        if kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "hang":
            time.sleep(600)


def command(data: Path, run: Path, *more: str) -> list[str]:
    own = "--data.batch_size 4 --trainer.max_epochs 2 --trainer.limit_train_batches 4 --trainer.devices 2"
    own += " --trainer.callbacks test_ranks_die.Trouble --trainer.limit_val_batches 0"
    own += " --model.optim.nominal_batch_size 64 --checkpoints.every_minutes 1e-9"
    return small_fit(data, run, *own.split(), *more)


def start(line: list[str], trouble: str, log: Path) -> tuple[int, str]:
    """Exit code and output of a command. All processes that come of it write to `log`."""
    environment = {**os.environ, "BOLTBOX_TROUBLE": trouble, "OMP_NUM_THREADS": "1"}
    folders = ROOT, ROOT / "tests/helpers", Path(__file__).parent
    environment["PYTHONPATH"] = os.pathsep.join(map(str, folders))
    for name in ("BOLTBOX_RUN", "PYTEST_XDIST_WORKER"):
        environment.pop(name, None)
    with log.open("w") as file:
        code = subprocess.run(
            line, env=environment, stdout=file, stderr=file, timeout=150, start_new_session=True
        ).returncode
    return code, log.read_text()


def left(log: Path) -> list[int]:
    """Processes that have the file open."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if any(os.readlink(file) == str(log) for file in (process / "fd").iterdir()):
                found.append(int(process.name))
        except OSError:  # it has just ended, or is not ours
            continue
    return found


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Path]:
    """Whatever happens in a test, no process that writes to it outlives it."""
    file = tmp_path / "log.txt"
    yield file
    for process in left(file):
        os.kill(process, signal.SIGKILL)


def over(run: Path, log: Path) -> float:
    """Seconds from the trouble until no process was left."""
    began = float((run / "trouble").read_text())
    while left(log) and time.time() < began + SOON:
        time.sleep(0.1)
    assert not left(log)
    return time.time() - began


def launched(line: list[str]) -> list[str]:
    return [sys.executable, str(ROOT / "cli.py"), *line]


def torchrun(restarts: int, line: list[str]) -> list[str]:
    own = ["--standalone", "--nproc-per-node", "2", "--max-restarts", str(restarts)]
    return [sys.executable, "-m", "torch.distributed.run", *own, "--", str(ROOT / "cli.py"), *line]


def test_an_exception_ends_all(small_data: Path, tmp_path: Path, log: Path) -> None:
    """Its traceback comes first; the other process says one sentence.

    Lightning looks every five seconds whether a process has ended, and then kills the first one,
    perhaps before it has spoken.
    """
    run = tmp_path / "run"
    with forks():
        code, told = start(launched(command(small_data, run)), "raise:1:2", log)
    assert over(run, log) < SOON
    assert code != 0
    assert "ZeroDivisionError: made trouble" in told
    assert told.count("Traceback") == 1
    if code != -signal.SIGKILL:
        before, sentence, after = told.partition(
            "error: process 0 of 2 lost contact with the others"
        )
        assert "ZeroDivisionError" in before
        assert sentence
        assert after.startswith(" at epoch 0, train batch 2")
    assert not list((run / "checkpoints").glob("incident*"))


def test_the_first_process_is_killed(small_data: Path, tmp_path: Path, log: Path) -> None:
    """The one that had started the other, which has a loader process of its own."""
    run = tmp_path / "run"
    with forks():
        code, _ = start(
            launched([*command(small_data, run), "--data.workers", "1"]), "kill:0:3", log
        )
    assert code == -signal.SIGKILL
    assert over(run, log) < SOON


KILLED = """
import os, signal, subprocess, sys
from boltbox.detector.commands.main import main
start = subprocess.Popen.__init__

def killed(self, *args, **options):
    start(self, *args, **options)
    if "LOCAL_RANK" in (options.get("env") or {}):
        open("trouble", "w").write(str(self.pid))
        os.kill(os.getpid(), signal.SIGKILL)

subprocess.Popen.__init__ = killed
main()
"""


def test_the_first_process_is_killed_as_it_starts_the_other(
    small_data: Path, here: Path, log: Path
) -> None:
    """The other one has not begun yet."""
    Path("killed.py").write_text(KILLED)
    code, told = start([sys.executable, "killed.py", *command(small_data, here / "run")], "", log)
    assert code == -signal.SIGKILL, told
    assert Path("trouble").exists()
    end = time.time() + 120
    while left(log) and time.time() < end:
        time.sleep(0.1)
    assert not left(log)


@pytest.mark.parametrize(
    ("environment", "code"),
    [
        ({"BOLTBOX_FIRST_RANK": "gone", "LOCAL_RANK": "1"}, -signal.SIGKILL),
        ({"BOLTBOX_FIRST_RANK": "parent", "LOCAL_RANK": "1"}, 0),
        ({"BOLTBOX_FIRST_RANK": "gone", "LOCAL_RANK": "0"}, 0),
        ({"BOLTBOX_FIRST_RANK": "gone"}, 0),
        ({"BOLTBOX_FIRST_RANK": "gone", "LOCAL_RANK": "1", "TORCHELASTIC_RUN_ID": "a"}, 0),
        ({"BOLTBOX_PARENT": "gone"}, -signal.SIGKILL),
        ({"BOLTBOX_PARENT": "parent"}, 0),
    ],
)
def test_a_process_whose_parent_is_gone_ends_before_its_imports(
    environment: dict[str, str], code: int
) -> None:
    """Ranks and trainings of `evolve`; none that only inherits the variable."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    processes = {"gone": str(gone.pid), "parent": str(os.getpid())}
    variables = {name: processes.get(value, value) for name, value in environment.items()}
    with forks():
        line = launched(["--version"])
        done = subprocess.run(line, env={**os.environ, **variables}, check=False)
    assert done.returncode == code


def test_a_process_hangs(
    small_data: Path, here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The other waits as long as it was told, and says where both are."""
    monkeypatch.setenv("BOLTBOX_TROUBLE", "hang:1:2")
    with pytest.raises(Exception, match="process 0 terminated with exit code 2"):
        together(cli.main, command(small_data, here / "run", "--watchdog.timeout", "5"))
    told = capfd.readouterr().err
    assert (
        "error: process 0 of 2 timed out waiting for the others at epoch 0, train batch 2" in told
    )
    assert "--watchdog.timeout" in told
    assert "Traceback" not in told


def fuzzed(data: Path, run: Path, workers: int) -> list[str]:
    """Two epochs of three batches each, no checkpoint within them."""
    short = "--trainer.max_epochs 2 --data.batch_size 8 --model.optim.nominal_batch_size 48"
    short += " --autoanchor.enabled false --doctor.enabled false --trainer.limit_val_batches 0"
    return resume_fuzz.command(data, run, workers, ranks=2, within_epochs=False, more=short.split())


@pytest.fixture(scope="module")
def whole(small_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two processes to which nothing has happened."""
    run = tmp_path_factory.mktemp("whole") / "run"
    with forks():
        assert resume_fuzz.start(fuzzed(small_data, run, 0)) == 0
    return run


def test_torchrun_restarts_after_a_kill(
    small_data: Path, here: Path, whole: Path, log: Path
) -> None:
    """From the last checkpoint: it ends as if nothing had happened."""
    run = here / "run"
    line = [
        word.replace("benchmarks.resume_fuzz.Kill", "test_ranks_die.Trouble")
        for word in fuzzed(small_data, run, 0)[2:]
    ]
    line += ["--checkpoints.every_minutes", "1e-9"]  # one is complete when the trouble comes
    with forks():
        code, told = start(torchrun(2, line), "kill:1:4", log)
    assert code == 0, told
    assert over(run, log) < 120
    assert told.count("resume:    ") == 1
    assert not difference(run, whole)


def test_torchrun_tells_what_failed(small_data: Path, here: Path, log: Path) -> None:
    """In its summary: which process prints first is chance, and so is which one torchrun calls the
    root cause; it may end one before it speaks."""
    with forks():
        code, told = start(torchrun(0, command(small_data, here / "run")), "raise:1:2", log)
    assert code != 0
    assert over(here / "run", log) < SOON
    summary = told[told.rindex(" FAILED") :]
    assert "rank      : 1 " in summary
    assert "ZeroDivisionError: made trouble" in summary


@pytest.mark.parametrize(
    ("words", "gone"),
    [  # what gloo/transport/tcp says, by chance of the moment
        ("Connection closed by peer [127.0.0.1]:4242", True),
        ("Read error [127.0.0.1]:4242: Connection reset by peer", True),
        ("writev [127.0.0.1]:4242: Broken pipe", True),
        ("Socket unexpectedly closed [127.0.0.1]:4242", True),
        ("Pair is not connected ([127.0.0.1]:4242 <--> [127.0.0.1]:4243)", True),
        ("Application timeout caused pair closure", True),
        ("Timed out waiting 5000ms for recv operation to complete", True),
        (
            "Received data size doesn't match expected size. Is there a distributed collective mismatch in your code?",
            False,
        ),
    ],
)
def test_gloo_words_for_a_process_that_is_gone(words: str, gone: bool) -> None:
    assert (
        lost_contact(
            RuntimeError(
                f"[pair.cc:525] gloo: {words}. This is typically caused by a remote worker"
            )
        )
        is gone
    )
    assert not lost_contact(RuntimeError(words)), "not of gloo"


def test_a_group_and_torchrun_are_told_to_stop(
    small_data: Path, tmp_path: Path, whole: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`timeout`, systemd, scancel and a terminal send the signal to the loaders' workers too: nothing
    is lost. torchrun sends it to each process's group, and waits for them. What goes on after
    either ends as the run that nobody stopped."""
    run = tmp_path / "run"
    line = fuzzed(small_data, run, 1)
    resumed = [*line, "--ckpt_path", "last"]
    with forks():
        monkeypatch.setenv("BOLTBOX_KILL", "batch:1:SIGINT:group")
        code, told = start(line, "", log)
        assert code == 128 + signal.SIGINT, told
        assert "SIGINT: finishing the batch, then saving" in told
        assert "error" not in told.lower()
        assert_saved(run, log, batches=2)
        monkeypatch.setenv("BOLTBOX_KILL", "batch:2:SIGTERM:agent")
        code, told = start(torchrun(0, resumed[2:]), "", log)
        assert code == 1, "its own exit code"
        assert "SIGTERM: finishing the batch, then saving" in told
        assert "DataLoader worker" not in told
        assert_saved(run, log, batches=5)
        assert resume_fuzz.start(resumed) == 0
    assert not difference(run, whole)


def assert_saved(run: Path, log: Path, batches: int) -> None:
    """Of a run that was told to stop after so many batches nothing is left but its checkpoint."""
    assert not left(log)
    assert not list((run / "checkpoints").glob("incident*"))
    saved = torch.load(run / "checkpoints/last.ckpt", weights_only=True)
    progress = saved["loops"]["fit_loop"]["epoch_loop.batch_progress"]["total"]
    assert progress["processed"] == batches
    assert len(saved["processes"]) == 2
    assert all(process["gradients"] for process in saved["processes"]), "the window was open"
