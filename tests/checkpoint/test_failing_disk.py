"""Files of a run that cannot be written: the training goes on, best.ckpt and its figures stay
together, and a run that ends without its files ends with an error."""

import csv
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from failing_disk import CALLS, ERRORS, failing
from small_fit import small_fit

import cli
from benchmarks.resume_fuzz import unlike
from boltbox.detector.checkpoint.writer import wait_for_checkpoint
from boltbox.detector.evaluation.prediction_record import PredictionRecord
from boltbox.detector.training.module import Detector

FITNESS = (0.1, 0.2, 0.15)  # of the epochs
ONE_BATCH = (
    "--trainer.max_epochs",
    "3",
    "--trainer.limit_train_batches",
    "1",
    "--trainer.callbacks",
)


class Epochs(L.Callback):
    """Calls `begins` with the number of each epoch after its batch, when everything of the epoch
    before is written."""

    begins: Callable[[int], object] = staticmethod(lambda epoch: None)

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        wait_for_checkpoint(trainer)

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        type(self).begins(trainer.current_epoch)


def line(data: Path, run: Path, *more: str) -> list[str]:
    small = ["--model.network.levels", "[5]"]
    return small_fit(data, run, *small, *ONE_BATCH, "test_failing_disk.Epochs", *more)


@pytest.fixture(scope="module", autouse=True)
def chosen_fitness() -> Iterator[None]:
    """The epochs are as good as FITNESS says."""
    finish = Detector.on_validation_epoch_end

    def finish_as_chosen(self: Detector) -> None:
        result = self.metrics.compute()
        result.summary["fitness"] = FITNESS[self.current_epoch]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self.metrics, "compute", lambda: result)
            finish(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Detector, "on_validation_epoch_end", finish_as_chosen)
        yield


@pytest.fixture
def begins(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[int], object]], None]:
    """Sets what happens in each epoch, see Epochs."""
    return lambda function: monkeypatch.setattr(Epochs, "begins", staticmethod(function))


@pytest.fixture(scope="module")
def unharmed(small_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("unharmed") / "run"
    cli.main(line(small_data, run))
    return run


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]


def best_epochs(run: Path) -> list[int]:
    """That of best.ckpt, of metrics.json and of detections.npz."""
    best = torch.load(run / "checkpoints/best.ckpt", weights_only=True)
    assert best["fitness"] == pytest.approx(FITNESS[best["epoch"]])
    figures, record = (
        json.loads((run / "metrics.json").read_text()),
        PredictionRecord.load(run / "detections.npz"),
    )
    assert figures["fitness"] == FITNESS[figures["epoch"]]
    return [best["epoch"], figures["epoch"], record.epoch]


def leftovers(run: Path) -> list[str]:
    return [p.name for p in run.rglob("*") if "tmp" in p.name]


def assert_same_training(run: Path, other: Path) -> None:
    ours, theirs = (
        torch.load(r / "checkpoints/last.ckpt", weights_only=True) for r in (run, other)
    )
    for key in ("state_dict", "optimizer_states", "processes", "global_step", "epoch"):
        assert not unlike(ours[key], theirs[key], key)
    assert rows(run / "metrics.csv") == rows(other / "metrics.csv")


@pytest.mark.parametrize(
    ("calls", "error"),
    [
        (("write",), "full"),
        (("fsync",), "broken"),
        (("replace",), "full"),
        (("unlink", "mkdir"), "broken"),
        (CALLS, "read-only"),
    ],
    ids=str,
)
def test_a_disk_that_fails_for_an_epoch(
    calls: tuple[str, ...],
    error: str,
    small_data: Path,
    tmp_path: Path,
    unharmed: Path,
    begins: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The training is the same as if it had not. Its best.ckpt is lost; that of the next epoch
    better than the file is not."""
    run, epoch = tmp_path / "run", [0]
    begins(lambda number: epoch.__setitem__(0, number))
    with failing(run, calls, ERRORS[error], lambda path: epoch[0] == 1) as failed:
        cli.main(line(small_data, run))
    assert_same_training(run, unharmed)
    harmless = "unlink" in calls and "write" not in calls
    assert failed or harmless
    assert best_epochs(run) == [1 if harmless else 2] * 3
    assert ("best.ckpt could not be saved" in capsys.readouterr().out) != harmless
    assert not leftovers(run) or harmless


@pytest.mark.parametrize(
    ("call", "name"),
    [
        ("write", "best.ckpt"),
        ("replace", "best.ckpt"),
        ("write", "last.ckpt"),
        ("replace", "previous.ckpt"),
        ("replace", "metrics.json"),
        ("write", "metrics.csv"),
    ],
)
def test_a_file_that_fails_for_an_epoch(
    call: str, name: str, small_data: Path, tmp_path: Path, unharmed: Path, begins: Any
) -> None:
    run, epoch = tmp_path / "run", [0]
    begins(lambda number: epoch.__setitem__(0, number))
    stem, _, suffix = name.partition(".")
    with failing(
        run, (call,), ERRORS["full"], lambda path: epoch[0] == 1 and stem in path and suffix in path
    ):
        cli.main(line(small_data, run))
    assert_same_training(run, unharmed)
    best = best_epochs(run)
    assert best[0] == (2 if name == "best.ckpt" else 1)
    assert best[0] == best[1] == best[2]


def test_a_disk_that_becomes_read_only(
    small_data: Path, tmp_path: Path, begins: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """The training ends, says how good it was, and then what is not on the disk."""
    run, epoch = tmp_path / "run", [0]
    begins(lambda number: epoch.__setitem__(0, number))
    with (
        failing(run, CALLS, ERRORS["read-only"], lambda path: epoch[0] >= 1),
        pytest.raises(SystemExit) as leaving,
    ):
        cli.main(line(small_data, run, "--report.enabled", "true", "--pictures.enabled", "true"))
    out, err = capsys.readouterr()
    assert leaving.value.code == 2
    assert len(err.strip().splitlines()) == 1
    assert err.startswith("error: the training has ended, but checkpoints are missing")
    assert "last.ckpt (" in err
    assert "best.ckpt (" in err
    assert "  3/3 " in out
    assert "best: epoch 1/3" in out
    assert torch.load(run / "checkpoints/last.ckpt", weights_only=True)["epoch"] == 0
    assert best_epochs(run) == [0, 0, 0]


@pytest.mark.parametrize("call", ["write", "fsync", "mkdir"])
def test_no_checkpoint_at_all(
    call: str, small_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    with (
        failing(run, (call,), ERRORS["full"], lambda path: "checkpoints" in path),
        pytest.raises(SystemExit) as leaving,
    ):
        cli.main(line(small_data, run))
    out, err = capsys.readouterr()
    assert leaving.value.code == 2
    assert len(err.strip().splitlines()) == 1
    assert "last.ckpt (" in err
    assert "best: epoch " in out
    assert not list(run.rglob("*.ckpt"))


def killed(run: Callable[[], object]) -> None:
    """In a process of its own, which has to kill itself."""
    pid = os.fork()
    if pid == 0:
        try:
            run()
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_killed_after_the_best_could_not_be_written(
    small_data: Path, tmp_path: Path, unharmed: Path, begins: Any
) -> None:
    """last.ckpt was saved with it. The resumed run goes by the best.ckpt that is there."""
    run, epoch = tmp_path / "run", [0]

    def begin(number: int) -> None:
        epoch[0] = number
        if number == 2:
            die()

    def train() -> None:
        with failing(
            run,
            ("replace",),
            ERRORS["broken"],
            lambda path: epoch[0] == 1 and path.endswith("best.ckpt"),
        ):
            cli.main(line(small_data, run))

    begins(begin)
    killed(train)
    begins(lambda number: None)
    assert torch.load(run / "checkpoints/last.ckpt", weights_only=True)["epoch"] == 1
    cli.main(line(small_data, run, "--ckpt_path", "last"))
    assert_same_training(run, unharmed)
    assert best_epochs(run) == [2, 2, 2]
    assert not leftovers(run)


@pytest.mark.parametrize("after", ["best.ckpt", "previous.ckpt", "last.ckpt", "detections.npz"])
def test_killed_between_the_best_and_its_figures(
    after: str,
    small_data: Path,
    tmp_path: Path,
    unharmed: Path,
    begins: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, epoch, replace = tmp_path / "run", [0], os.replace
    begins(lambda number: epoch.__setitem__(0, number))

    def replace_and_die(source: Any, target: Any) -> None:
        replace(source, target)
        if epoch[0] == 1 and Path(target).name == after:
            die()

    def train() -> None:
        monkeypatch.setattr(os, "replace", replace_and_die)
        cli.main(line(small_data, run))

    killed(train)
    cli.main(line(small_data, run, "--ckpt_path", "last"))
    assert_same_training(run, unharmed)
    assert best_epochs(run) == [1, 1, 1]
    assert not leftovers(run)


def test_damaged_files_are_replaced(small_data: Path, tmp_path: Path) -> None:
    """Their rows are in the checkpoint."""
    run = tmp_path / "run"
    cli.main(line(small_data, run, "--trainer.max_epochs", "1"))
    for name in ("metrics.csv", "metrics.json"):
        (run / name).write_bytes(b"\xff\xfe")
    cli.main(line(small_data, run, "--ckpt_path", "last"))
    assert best_epochs(run) == [1, 1, 1]
    assert [int(row["epoch"]) for row in rows(run / "metrics.csv")] == [0, 1, 2]
