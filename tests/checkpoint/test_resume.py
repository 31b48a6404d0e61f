"""A run that is interrupted and resumed is the run that never was. benchmarks/resume_fuzz.py is the
long version."""

import shlex
import shutil
import signal
from pathlib import Path

import lightning as L
import pytest
from made_networks import same
from made_runs import ROOT, column, load, rows, small_fit

import cli
from benchmarks.resume_fuzz import command, difference, start, trial

# tiles: windows of the larger images, of each one
THREE = "--data.batch_size 8 --data.tile_size 192 --model.optim.nominal_batch_size 48 --doctor.enabled false"
# of three batches
SHORT = f"--trainer.max_epochs 2 {THREE} --autoanchor.enabled false".split()
ONE_BATCH = ["--trainer.limit_train_batches", "1", "--trainer.max_epochs"]
RESUMED = ["--ckpt_path", "last"]
pytestmark = pytest.mark.usefixtures("quick_starts")


@pytest.fixture(scope="module")
def reference(small_data, tmp_path_factory):
    """A run that was never interrupted."""
    run = tmp_path_factory.mktemp("reference") / "run"
    assert start(command(small_data, run, 0, 1, within_epochs=False, more=SHORT)) == 0
    return run


def test_a_killed_run_ends_the_same(small_data, tmp_path, reference):
    """With SIGKILL: while validating, writing a checkpoint, training, moving one into place. Workers
    make no difference. (Two processes: test_ranks_die.py.)"""
    kills = ["validation:0", "writing:2", "batch:1", "moving:0"]
    run = tmp_path / "run"
    line = command(small_data, run, workers=1, ranks=1, more=SHORT)
    hits, unlike = trial(line, kills, run, reference)
    assert hits == len(kills)
    assert not unlike


def batches(run):
    """That its last checkpoint has been trained with."""
    loops = load(run / "checkpoints/last.ckpt")["loops"]
    return loops["fit_loop"]["epoch_loop.batch_progress"]["total"]["processed"]


def test_told_to_stop(small_data, tmp_path, reference, monkeypatch):
    """It saves after the batch, within an accumulation window, and leaves with the code that
    schedulers requeue on; during validation it leaves at once. The line is that of
    docs/distributed.md for a job of Slurm, which is started again. (Two processes:
    test_ranks_die.py.)"""
    guide = (ROOT / "docs/distributed.md").read_text()
    options = shlex.split(guide.partition("srun ")[2].partition("\n")[0].partition(" fit ")[2])
    for setting in ["NTASKS=1", "JOB_ID=7", "PROCID=0", "LOCALID=0", "NODEID=0"]:
        monkeypatch.setenv(f"SLURM_{setting[:-2]}", setting[-1])
    run = tmp_path / "run"
    small = command(small_data, run, workers=2, ranks=1, within_epochs=False, more=SHORT)
    line = small[:3] + options + small[3:]
    assert start(line, "batch:4:SIGUSR1") == 128 + signal.SIGUSR1
    assert batches(run) == 5
    saved = load(run / "checkpoints/last.ckpt")
    assert saved["processes"][0]["gradients"], "the window was open"
    assert start(line, "validation:0:SIGTERM") == 143
    assert start(line) == 0
    assert not difference(run, reference)
    evaluation = f"validate --ckpt_path {run} --trainer.callbacks benchmarks.resume_fuzz.Kill"
    assert start(small[:2] + evaluation.split(), "validation:0:SIGTERM") == 143


class Stop(L.Callback):
    """Asks to stop after the first batch, as Lightning's Timer does for trainer.max_time."""

    def on_train_batch_end(self, trainer, *_):
        trainer.should_stop = True


def test_an_epoch_is_trained_to_its_end(small_data, tmp_path):
    line = small_fit(small_data, tmp_path / "whole", "--trainer.max_epochs", "2")
    cli.main(line)
    line[line.index(str(tmp_path / "whole"))] = str(tmp_path / "part")
    cli.main(line + ["--trainer.callbacks", "test_resume.Stop"])
    assert column(rows(tmp_path / "part"), "epoch") == ["0"]
    cli.main(line + RESUMED + ["--trust_parts", "true"])
    whole = load(tmp_path / "whole/checkpoints/last.ckpt")["state_dict"]
    assert same(whole, load(tmp_path / "part/checkpoints/last.ckpt")["state_dict"])


def test_told_to_stop_before_a_validation(small_data, tmp_path):
    """A checkpoint there would be resumed without it; so it comes after the next batch, which is the
    last one here."""
    run = tmp_path / "run"
    more = SHORT + ["--trainer.val_check_interval", "2"]
    line = command(small_data, run, workers=0, ranks=1, more=more)
    assert start(line, "batch:1:SIGTERM") == 143
    assert batches(run) == 1
    assert start(line + RESUMED, "batch:0:SIGTERM") == 143


def test_told_to_stop_before_the_first_batch(small_data, tmp_path):
    """While Lightning's own handlers are installed, which would end it with exit code 0."""
    line = command(small_data, tmp_path / "run", workers=0, ranks=1)
    assert start(line, "start:0:SIGTERM") == 143
    assert not (tmp_path / "run/checkpoints/last.ckpt").exists()


def test_other_workers_and_processes_at_the_resume(small_data, tmp_path):
    """Training goes on. (With the images that were next: tests/data/test_batches.py.)"""
    run = tmp_path / "run"
    more = SHORT + ["--trainer.limit_val_batches", "0"]
    assert start(command(small_data, run, 0, 2, more=more), "batch:3") == -signal.SIGKILL
    assert start(command(small_data, run, 1, 1, more=more) + RESUMED) == 0
    assert batches(run) == 6


def test_a_restart_by_torchrun_goes_on(small_data, here, refused, monkeypatch):
    """What its workers see: the same command again, and how many restarts there were."""
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "2")
    line = small_fit(small_data, Path("run"), "--trainer.limit_val_batches", "0", *ONE_BATCH)
    refused([word for word in line + ["1"] if word not in ("--run", "run")])
    cli.main(line + ["1"])
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    cli.main(line + ["2"])
    assert column(rows(here / "run"), "epoch") == ["0", "1"]
    line[line.index("run")] = "other"  # which has no checkpoint yet
    cli.main(line + ["3", "--ckpt_path", "run"])
    assert column(rows(here / "other"), "epoch")[-1] == "2"


def test_commands_that_fail_early_leave_nothing(small_data, here, reference, refused):
    """Data, weights, checkpoint: all is known to be good before a folder is made."""
    shutil.copytree(reference, here / "run")
    before = sorted(here.rglob("*"))
    checkpoint = "--ckpt_path run/checkpoints/last.ckpt"
    fit = f"fit --trainer.enable_progress_bar false --data.dataset {small_data}"
    for wrong in (
        f"{fit} --model.start.weights nowhere.pt",
        f"{fit} {checkpoint} --model.network.width_multiple 0.25",
        f"validate {fit[3:]} {checkpoint} --model.network.levels [4]",
        f"predict {checkpoint} --source nowhere",
    ):
        refused(wrong)
        assert sorted(here.rglob("*")) == before, wrong
