"""A process that fails, is killed or hangs: the others end soon, say what they know, and no process
is left."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import lightning as L
import pytest
from forked import forks
from made_runs import load, small_fit, until
from ranks import ROOT, run_all, together

import cli
from benchmarks import resume_fuzz
from benchmarks.resume_fuzz import difference
from boltbox.callbacks import Watchdog
from boltbox.detector.distributed.process_group import lost_contact


class Trouble(L.Callback):
    """BOLTBOX_TROUBLE is like `raise:1:2`: process 1 raises at its third training batch. Or kills
    itself, or hangs or is stopped; then the watchdog of the other one waits for a second only. Only
    at the first start, not after a restart."""

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        kind, rank, at = os.environ["BOLTBOX_TROUBLE"].split(":")
        batches = trainer.fit_loop.epoch_loop.batch_progress.total.processed
        if batches != int(at) or os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0":
            return
        if trainer.global_rank != int(rank):
            if kind in ("hang", "stop"):  # not before: the start of a process may take long
                for watchdog in trainer.callbacks:
                    if isinstance(watchdog, Watchdog):
                        watchdog.timeout /= 600
                        watchdog.setup(trainer, pl_module, "fit")
            return
        if kind == "raise":
            raise ZeroDivisionError("made trouble")
        if kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(600)


def command(data, run, *more):
    own = "--data.batch_size 4 --trainer.max_epochs 2 --trainer.limit_train_batches 4 --trainer.devices 2"
    own += " --trainer.callbacks test_ranks_die.Trouble --trainer.limit_val_batches 0"
    own += " --model.optim.nominal_batch_size 64 --checkpoints.every_minutes 1e-9"
    return small_fit(data, run, *own.split(), *more)


def start(line, log, **environment):
    """Exit code and output of a command. All its processes write to `log`."""
    (end,) = run_all((line, log.parent), folder=str(Path(__file__).parent), **environment)
    return end


def left(log):
    """Processes that have the file open."""
    numbers = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just ended, or is not ours
            if any(os.readlink(file) == str(log) for file in (process / "fd").iterdir()):
                numbers.append(int(process.name))
    return numbers


@pytest.fixture
def log(tmp_path):
    """Whatever happens in a test, no process that writes to it outlives it."""
    file = tmp_path / "log.txt"
    yield file
    for process in left(file):
        os.kill(process, signal.SIGKILL)


def await_end(log):
    """Of all processes: that of one which was killed takes a moment. Alone, gloo waits for 30
    minutes."""
    until(lambda: not left(log))


def launched(line):
    return [sys.executable, str(ROOT / "cli.py")] + line


def torchrun(restarts, line):
    own = f"-m torch.distributed.run --standalone --nproc-per-node 2 --max-restarts {restarts} --"
    return [sys.executable] + own.split() + [str(ROOT / "cli.py")] + line


def test_an_exception_ends_all(small_data, here, log):
    """Its traceback comes first; the other process prints one sentence.

    Lightning looks every five seconds whether a process has ended, and then kills the first one,
    perhaps before it has printed.
    """
    run = here / "run"
    code, output = start(launched(command(small_data, run)), log, BOLTBOX_TROUBLE="raise:1:2")
    await_end(log)
    assert code != 0
    assert output.count("Traceback") == 1
    before, error, _ = output.partition("ZeroDivisionError: made trouble")
    assert error
    assert "error: process 0 of 2" not in before
    if code != -signal.SIGKILL:
        assert (
            "error: process 0 of 2 lost contact with the others at epoch 0, train batch 2" in output
        )
    assert not list((run / "checkpoints").glob("incident*"))


def test_the_first_process_is_killed(small_data, here, log):
    """The one that had started the other, which has a loader process of its own."""
    line = launched(command(small_data, here / "run", "--data.workers", "1"))
    code, _ = start(line, log, BOLTBOX_TROUBLE="kill:0:3")
    assert code == -signal.SIGKILL
    await_end(log)


@pytest.mark.parametrize(
    ("environment", "code"),
    [
        ({"BOLTBOX_FIRST_RANK": "gone", "LOCAL_RANK": "1"}, -signal.SIGKILL),
        ({"BOLTBOX_FIRST_RANK": "parent", "LOCAL_RANK": "1"}, 0),
        ({"BOLTBOX_FIRST_RANK": "gone", "LOCAL_RANK": "0"}, 0),
        ({"BOLTBOX_FIRST_RANK": "gone", "LOCAL_RANK": "1", "TORCHELASTIC_RUN_ID": "a"}, 0),
        ({"BOLTBOX_PARENT": "gone"}, -signal.SIGKILL),
    ],
)
def test_a_process_whose_parent_is_gone_ends_before_its_imports(environment, code):
    """Ranks and trainings of `evolve`; none that only inherits the variable."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    processes = {"gone": str(gone.pid), "parent": str(os.getpid())}
    variables = {name: processes.get(value, value) for name, value in environment.items()}
    with forks():
        line = launched(["--version"])
        done = subprocess.run(line, env=os.environ | variables)
    assert done.returncode == code


@pytest.mark.parametrize(("trouble", "other"), [("hang:1:2", 0), ("stop:0:2", 1)])
def test_a_process_hangs(trouble, other, small_data, here, monkeypatch, capfd):
    """The other waits as long as it was told, and says where both are; also if the one that hangs
    holds the processes' store, which then does not answer."""
    monkeypatch.setenv("BOLTBOX_TROUBLE", trouble)
    monkeypatch.setattr("boltbox.detector.system.rank_zero.PATIENCE", 0.1)
    with pytest.raises(Exception, match=f"process {other} terminated with exit code 2"):
        together(cli.main, command(small_data, here / "run", "--watchdog.timeout", "600"))
    message = capfd.readouterr().err
    assert f"error: process {other} of 2 timed out" in message
    assert "at epoch 0, train batch 2" in message
    assert "--watchdog.timeout" in message
    assert "Traceback" not in message


@pytest.mark.parametrize(
    ("words", "is_gone"),
    [
        ("gloo: Connection closed by peer [127.0.0.1]:4242", True),
        ("gloo: Timed out waiting 5000ms for recv operation to complete", True),
        ("gloo: Received data size doesn't match expected size", False),
        ("Connection closed by peer", False),
    ],
)
def test_words_for_a_process_that_is_gone(words, is_gone):
    assert lost_contact(RuntimeError(f"[pair.cc:525] {words}.")) is is_gone


def fuzzed(data, run, workers):
    """Two epochs of three batches each, no checkpoint within them."""
    short = "--trainer.max_epochs 2 --data.batch_size 8 --model.optim.nominal_batch_size 48"
    short += " --autoanchor.enabled false --doctor.enabled false --trainer.limit_val_batches 0"
    return resume_fuzz.command(data, run, workers, ranks=2, within_epochs=False, more=short.split())


@pytest.fixture(scope="module")
def whole(small_data, tmp_path_factory):
    """A run of two processes to which nothing has happened."""
    run = tmp_path_factory.mktemp("whole") / "run"
    with forks():
        assert resume_fuzz.start(fuzzed(small_data, run, 0)) == 0
    return run


def test_torchrun_restarts_after_a_kill(small_data, here, whole, log):
    """From the last checkpoint: it ends as if nothing had happened."""
    run = here / "run"
    line = fuzzed(small_data, run, 0)[2:]
    line[line.index("benchmarks.resume_fuzz.Kill")] = "test_ranks_die.Trouble"
    line += ["--checkpoints.every_minutes", "1e-9"]  # one is complete when the trouble comes
    code, output = start(torchrun(2, line), log, BOLTBOX_TROUBLE="kill:1:4")
    assert code == 0, output
    await_end(log)
    assert "resume:    " in output  # twice if another program took the port of the first restart
    assert not difference(run, whole)


def test_a_group_and_torchrun_are_told_to_stop(small_data, here, whole, log):
    """`timeout`, systemd, scancel and a terminal send the signal to the loaders' workers too: nothing
    is lost. torchrun sends it to each process's group, and waits for them. The resumed run ends as
    the one that nobody stopped."""
    run = here / "run"
    line = fuzzed(small_data, run, 1)
    resumed = line + ["--ckpt_path", "last"]
    code, output = start(line, log, BOLTBOX_KILL="batch:1:SIGINT:group")
    assert code == 128 + signal.SIGINT, output
    assert "error" not in output.lower()
    assert_saved(run, log, batches=2)
    code, output = start(torchrun(0, resumed[2:]), log, BOLTBOX_KILL="batch:2:SIGTERM:agent")
    assert code == 1, "its own exit code"
    assert "DataLoader worker" not in output
    assert_saved(run, log, batches=5)
    code, output = start(resumed, log, BOLTBOX_KILL="")
    assert code == 0, output
    assert not difference(run, whole)


def assert_saved(run, log, batches):
    """Of a run that was told to stop after so many batches nothing is left but its checkpoint."""
    await_end(log)
    assert not list((run / "checkpoints").glob("incident*"))
    saved = load(run / "checkpoints/last.ckpt")
    progress = saved["loops"]["fit_loop"]["epoch_loop.batch_progress"]["total"]
    assert progress["processed"] == batches
    assert len(saved["processes"]) == 2
    for process in saved["processes"]:
        assert process["gradients"], "the window was open"
