"""A run that is interrupted and resumed is the run that never was. benchmarks/resume_fuzz.py is the
long version."""

import os
import signal
from pathlib import Path

import pytest
import torch
import wandb
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from wandb_files import read_history

import cli
from benchmarks.resume_fuzz import command, difference, start, trial
from boltbox.detector.data.sampler import TrainBatches

ROOT = Path(cli.__file__).parent
SHORT = ["--trainer.max_epochs", "2"]  # of six batches
pytestmark = pytest.mark.usefixtures("quick_starts")


@pytest.fixture(scope="module")
def reference(small_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was never interrupted."""
    run = tmp_path_factory.mktemp("reference") / "run"
    assert start(command(small_data, run, 0, 1, within_epochs=False, more=SHORT)) == 0
    return run


@pytest.mark.parametrize(
    ("workers", "kills"),
    [
        (0, ["validation:0", "moving:3"]),
        (2, ["writing:2", "batch:2", "moving:0"]),
    ],
    ids=str,
)
def test_killed_runs_end_the_same(
    workers: int, kills: list[str], small_data: Path, tmp_path: Path, reference: Path
) -> None:
    """With SIGKILL: while training, validating, writing a checkpoint, moving it into place. Workers
    make no difference. (Two processes: test_ranks_die.py.)"""
    hits, unlike = trial(tmp_path / "run", small_data, kills, workers, 1, reference, SHORT)
    assert hits == len(kills)
    assert not unlike


def test_told_to_stop(small_data: Path, tmp_path: Path, reference: Path) -> None:
    """It saves after the batch, within an accumulation window, and leaves with the code that
    schedulers requeue on. (Two processes: test_ranks_die.py.)"""
    run = tmp_path / "run"
    line = command(small_data, run, workers=0, ranks=1, within_epochs=False, more=SHORT)
    assert start(line, "batch:10:SIGHUP") == 128 + signal.SIGHUP
    saved = torch.load(run / "checkpoints/last.ckpt", weights_only=True)
    assert saved["loops"]["fit_loop"]["epoch_loop.batch_progress"]["total"]["processed"] == 11
    assert saved["processes"][0]["gradients"], "the window was open"
    assert start([*line, "--ckpt_path", "last"]) == 0
    assert not difference(run, reference)


def test_told_to_stop_during_validation(small_data: Path, tmp_path: Path, reference: Path) -> None:
    run = tmp_path / "run"
    line = command(small_data, run, workers=0, ranks=1, more=SHORT)
    assert start(line, "validation:1:SIGTERM") == 143
    assert start([*line, "--ckpt_path", "last"]) == 0
    assert not difference(run, reference)


def test_told_to_stop_before_the_first_batch(small_data: Path, tmp_path: Path) -> None:
    """While Lightning's own handlers are installed, which would end it with exit code 0."""
    line = command(small_data, tmp_path / "run", workers=0, ranks=1)
    assert start(line, "start:0:SIGTERM") == 143
    assert not (tmp_path / "run/checkpoints/last.ckpt").exists()


def test_other_workers_and_processes_at_the_resume(small_data: Path, tmp_path: Path) -> None:
    """Training goes on, with the images that were next."""
    run = tmp_path / "run"
    lines = [command(small_data, run, 2 - ranks, ranks, more=SHORT) for ranks in (2, 1)]
    assert start(lines[0], "batch:7") == -signal.SIGKILL
    assert start([*lines[1], "--ckpt_path", "last"]) == 0
    ended = torch.load(run / "checkpoints/last.ckpt", weights_only=True)
    assert ended["loops"]["fit_loop"]["epoch_loop.batch_progress"]["total"]["processed"] == 12

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


LOGGED = ["--data.image_size", "64", "--data.batch_size", "8", "--data.workers", "0", "--model.network.width_multiple", "0.125",
          "--model.network.depth_multiple", "0.1", "--model.network.levels", "[5]", "--trainer.enable_progress_bar", "false", "--trainer.precision", "32-true",
          "--report.enabled", "false", "--pictures.enabled", "false", "--autoanchor.enabled", "false", "--run", "run"]  # fmt: skip


def test_tensorboard_goes_on_without_gap_or_repeat(small_data: Path, here: Path) -> None:
    """Also when epochs are trained again that it had seen."""
    line = [
        "fit",
        "--config",
        str(ROOT / "configs/tensorboard.yaml"),
        "--data.dataset",
        str(small_data),
        *LOGGED,
    ]
    cli.main([*line, "--trainer.max_epochs", "2"])
    (here / "run/checkpoints/last.ckpt").unlink()
    (here / "run/checkpoints/best.ckpt").unlink()
    # from previous.ckpt, the end of the first epoch
    cli.main([*line, "--trainer.max_epochs", "3", "--ckpt_path", "last"])
    events = EventAccumulator(str(here / "run/tensorboard"))
    events.Reload()
    steps = [e.step for e in events.Scalars("val/mAP50")]
    assert len(steps) == 3
    assert steps == sorted(set(steps))
    assert [e.step for e in events.Scalars("train/box_loss")] == steps


def test_a_killed_wandb_run_is_continued(
    small_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the same run, up to its last epoch; also in a process whose parent has used W&B."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    wandb.teardown()
    # as in a notebook that starts trainings: its service is in their environment
    wandb.init(dir=tmp_path).finish()
    assert "WANDB_SERVICE" in os.environ
    run = tmp_path / "run"
    line = [
        *command(small_data, run, workers=0, ranks=1),
        "--config",
        str(ROOT / "configs/wandb.yaml"),
        "--ckpt_path",
        "auto",
    ]
    assert start(line, "batch:7") == -signal.SIGKILL
    assert start(line) == 0
    files = sorted(run.glob("wandb/offline-run-*/*.wandb"))
    assert len(files) == 2
    assert len({file.stem for file in files}) == 1, "two runs"
    rows = [values for _, values in read_history(files[1])]
    for name in ("val/per_class", "val/images", "val/mAP50-95"):
        # from the checkpoint on; the last one of epoch 0 may not have been written before the kill
        assert [row["epoch"] for row in rows if name in row][-2:] == [1, 2], name


def test_a_restart_by_torchrun_goes_on(
    small_data: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its workers see: the same command again, and how many restarts there were."""
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "2")
    line = ["fit", "--data.dataset", str(small_data), *LOGGED]
    with pytest.raises(SystemExit):
        cli.main([*line[:-2], "--trainer.max_epochs", "1"])  # without --run
    cli.main([*line, "--trainer.max_epochs", "1"])
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    cli.main([*line, "--trainer.max_epochs", "2"])
    assert torch.load("run/checkpoints/last.ckpt", weights_only=True)["epoch"] == 1
    assert len((here / "run/metrics.csv").read_text().splitlines()) == 3


def test_commands_that_fail_early_leave_nothing(small_data: Path, here: Path) -> None:
    """Data, weights, checkpoint: all is known to be good before a folder is made."""
    cli.main(["fit", "--data.dataset", str(small_data), *LOGGED, "--trainer.max_epochs", "1"])
    before = sorted(p for p in here.rglob("*"))
    for wrong in (
        ["fit", "--data.dataset", "nowhere.yaml"],
        ["fit", "--data.dataset", str(small_data), "--model.start.weights", "nowhere.pt"],
        [
            "fit",
            "--data.dataset",
            str(small_data),
            "--ckpt_path",
            "run/checkpoints/last.ckpt",
            "--model.network.width_multiple",
            "0.25",
        ],
        [
            "validate",
            "--data.dataset",
            str(small_data),
            "--ckpt_path",
            "run/checkpoints/last.ckpt",
            "--model.network.levels",
            "[4]",
        ],
        ["predict", "--ckpt_path", "run/checkpoints/last.ckpt", "--source", "nowhere"],
    ):
        quiet = [] if wrong[0] == "predict" else ["--trainer.enable_progress_bar", "false"]
        with pytest.raises(SystemExit) as leaving:
            cli.main([*wrong, *quiet])
        assert leaving.value.code == 2
        assert sorted(p for p in here.rglob("*")) == before, wrong
