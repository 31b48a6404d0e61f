"""A run that is interrupted and resumed is the run that never was. benchmarks/resume_fuzz.py is the
long version."""

import csv
import shlex
import shutil
import signal
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from small_fit import small_fit

import cli
from benchmarks.resume_fuzz import command, difference, start, trial
from boltbox.detector.data.sampler import TrainBatches

ROOT = Path(cli.__file__).parent
THREE = [
    "--data.batch_size",
    "8",
    "--model.optim.nominal_batch_size",
    "48",
    "--doctor.enabled",
    "false",
    "--autoanchor.enabled",
    "false",
]
SHORT = ["--trainer.max_epochs", "2", *THREE]  # of three batches
ONE_BATCH = ["--trainer.limit_train_batches", "1", "--trainer.max_epochs"]
pytestmark = pytest.mark.usefixtures("quick_starts")


@pytest.fixture(scope="module")
def reference(small_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was never interrupted."""
    run = tmp_path_factory.mktemp("reference") / "run"
    assert start(command(small_data, run, 0, 1, within_epochs=False, more=SHORT)) == 0
    return run


def test_a_killed_run_ends_the_same(small_data: Path, tmp_path: Path, reference: Path) -> None:
    """With SIGKILL: while validating, writing a checkpoint, training, moving one into place. Workers
    make no difference. (Two processes: test_ranks_die.py.)"""
    kills = ["validation:0", "writing:2", "batch:1", "moving:0"]
    hits, unlike = trial(tmp_path / "run", small_data, kills, 1, 1, reference, SHORT)
    assert hits == len(kills)
    assert not unlike


def test_told_to_stop(small_data: Path, tmp_path: Path, reference: Path) -> None:
    """It saves after the batch, within an accumulation window, and leaves with the code that
    schedulers requeue on; during validation it leaves at once. (Two processes:
    test_ranks_die.py.)"""
    run = tmp_path / "run"
    line = command(small_data, run, workers=2, ranks=1, within_epochs=False, more=SHORT)
    resumed = [*line, "--ckpt_path", "last"]
    assert start(line, "batch:4:SIGHUP") == 128 + signal.SIGHUP
    saved = torch.load(run / "checkpoints/last.ckpt", weights_only=True)
    assert saved["loops"]["fit_loop"]["epoch_loop.batch_progress"]["total"]["processed"] == 5
    assert saved["processes"][0]["gradients"], "the window was open"
    assert start(resumed, "validation:0:SIGTERM") == 143
    assert start(resumed) == 0
    assert not difference(run, reference)


def test_a_slurm_job_that_is_started_again(
    small_data: Path, tmp_path: Path, reference: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line of docs/distributed.md, on one device: a preemption, a machine that fails, the end."""
    guide = (ROOT / "docs/distributed.md").read_text()
    options = shlex.split(guide.partition("srun ")[2].partition("\n")[0].partition(" fit ")[2])
    names = ("NTASKS", "JOB_ID", "PROCID", "LOCALID", "NODEID")
    for name, value in zip(names, "17000", strict=True):
        monkeypatch.setenv(f"SLURM_{name}", value)
    small = command(small_data, tmp_path / "run", 0, 1, within_epochs=False, more=SHORT)
    line = [*small[:3], *options, *small[3:], "--trainer.num_nodes", "1"]
    assert start(line, "batch:3:SIGTERM") == 143
    assert start(line, "batch:1") == -signal.SIGKILL
    assert start(line) == 0
    assert not difference(tmp_path / "run", reference)


class Stop(L.Callback):
    """Asks to stop after the first batch, as Lightning's Timer does for trainer.max_time."""

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        trainer.should_stop = True


def test_an_epoch_is_trained_to_its_end(small_data: Path, tmp_path: Path) -> None:
    for run in ("whole", "part"):
        line = small_fit(small_data, tmp_path / run, "--trainer.max_epochs", "2")
        cli.main([*line, *(["--trainer.callbacks", "test_resume.Stop"] if run == "part" else [])])
    with open(tmp_path / "part/metrics.csv", newline="") as file:
        assert [row["epoch"] for row in csv.DictReader(file)] == ["0"]
    cli.main([*line, "--ckpt_path", "last", "--trust_parts", "true"])
    whole, part = (
        torch.load(tmp_path / run / "checkpoints/last.ckpt", weights_only=True)["state_dict"]
        for run in ("whole", "part")
    )
    assert all(torch.equal(value, part[name]) for name, value in whole.items())


def test_told_to_stop_before_a_validation(small_data: Path, tmp_path: Path) -> None:
    """A checkpoint there would be resumed without it; so it comes after the next batch, which is the
    last one here."""
    run = tmp_path / "run"
    twice = ["--trainer.val_check_interval", "2"]
    line = command(small_data, run, workers=0, ranks=1, more=[*SHORT, *twice])
    assert start(line, "batch:1:SIGTERM") == 143
    saved = torch.load(run / "checkpoints/last.ckpt", weights_only=True)["loops"]["fit_loop"]
    assert saved["epoch_loop.batch_progress"]["total"]["processed"] == 1
    assert start([*line, "--ckpt_path", "last"], "batch:0:SIGTERM") == 143


def test_told_to_stop_before_the_first_batch(small_data: Path, tmp_path: Path) -> None:
    """While Lightning's own handlers are installed, which would end it with exit code 0."""
    line = command(small_data, tmp_path / "run", workers=0, ranks=1)
    assert start(line, "start:0:SIGTERM") == 143
    assert not (tmp_path / "run/checkpoints/last.ckpt").exists()


def test_other_workers_and_processes_at_the_resume(small_data: Path, tmp_path: Path) -> None:
    """Training goes on, with the images that were next."""
    run = tmp_path / "run"
    more = [*SHORT, "--trainer.limit_val_batches", "0"]
    lines = [command(small_data, run, 2 - ranks, ranks, more=more) for ranks in (2, 1)]
    assert start(lines[0], "batch:3") == -signal.SIGKILL
    assert start([*lines[1], "--ckpt_path", "last"]) == 0
    ended = torch.load(run / "checkpoints/last.ckpt", weights_only=True)
    assert ended["loops"]["fit_loop"]["epoch_loop.batch_progress"]["total"]["processed"] == 6

    alone = [key for batch in TrainBatches(24, 4, 0, position=lambda: (1, 1)) for key in batch]
    shares = [
        list(TrainBatches(24, 4, 0, position=lambda: (1, 1), rank=r, world=2)) for r in (0, 1)
    ]
    together = [
        key
        for pair in zip(*shares, strict=True)
        for turn in zip(*pair, strict=True)
        for key in turn
    ]
    assert together == alone


def test_a_restart_by_torchrun_goes_on(
    small_data: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its workers see: the same command again, and how many restarts there were."""
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "2")
    line = small_fit(small_data, Path("run"), "--trainer.limit_val_batches", "0", *ONE_BATCH)
    with pytest.raises(SystemExit):
        cli.main([word for word in [*line, "1"] if word not in ("--run", "run")])
    cli.main([*line, "1"])
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    cli.main([*line, "2"])
    assert torch.load("run/checkpoints/last.ckpt", weights_only=True)["epoch"] == 1
    assert len((here / "run/metrics.csv").read_text().splitlines()) == 3


def test_commands_that_fail_early_leave_nothing(
    small_data: Path, here: Path, reference: Path
) -> None:
    """Data, weights, checkpoint: all is known to be good before a folder is made."""
    shutil.copytree(reference, here / "run")
    before = sorted(p for p in here.rglob("*"))
    quiet = "--trainer.enable_progress_bar false"
    checkpoint = "--ckpt_path run/checkpoints/last.ckpt"
    for wrong in (
        f"fit {quiet} --data.dataset {small_data} --model.start.weights nowhere.pt",
        f"fit {quiet} --data.dataset {small_data} {checkpoint} --model.network.width_multiple 0.25",
        f"validate {quiet} --data.dataset {small_data} {checkpoint} --model.network.levels [4]",
        f"predict {checkpoint} --source nowhere",
    ):
        with pytest.raises(SystemExit) as leaving:
            cli.main(wrong.split())
        assert leaving.value.code == 2
        assert sorted(p for p in here.rglob("*")) == before, wrong
