"""Files of a run that cannot be written: the training goes on, best.ckpt and its figures stay
together, and a run that ends without its files ends with an error."""

import errno
import os
import resource
import signal
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from pathlib import Path

import lightning as L
import pytest
from made_runs import column, load, read, small_fit
from made_runs import rows as all_rows

import cli
from benchmarks.recorded_disk import RecordedDisk
from boltbox.detector.checkpoint.writer import wait_for_checkpoint
from boltbox.detector.evaluation.prediction_record import PredictionRecord
from boltbox.detector.training.module import Detector

# words of operations that fail, and whether best.ckpt is lost by that
TROUBLE = [
    (["open"], True),
    (["rename", "best.ckpt"], True),
    (["fsync", "/checkpoints "], False),  # of the folder, which some systems refuse
    (["fsync", "last.ckpt"], False),
    (["fsync", "metrics.csv"], False),
]


@contextmanager
def failing(folder, words, is_due=lambda: True):
    """While this lasts, what is done to a file of the folder fails where its description has these
    words.

    Yields:
        What failed so far.
    """
    failed = []

    def check(_, operation):
        if is_due() and all(word in f"{operation} " for word in words):
            failed.append(operation)
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    folder.mkdir(exist_ok=True)
    with RecordedDisk(folder, check).recording():
        yield failed


def fitness(epoch):
    """Every odd epoch is better than all before, the one after it than all but that one."""
    return 0.1 + 0.02 * epoch + 0.03 * (epoch % 2)


class Epochs(L.Callback):
    """Calls `begins` with the number of each epoch after its batch, when everything of the epoch
    before is written. The epochs are as good as `fitness` says."""

    fitness: Callable[[int], float] = staticmethod(fitness)
    begins: Callable[[int], object] = staticmethod(lambda epoch: None)

    def on_train_epoch_start(self, trainer, pl_module):
        wait_for_checkpoint(trainer)

    def on_train_batch_end(self, trainer, *_):
        type(self).begins(trainer.current_epoch)


def line(data, run, epochs, *more):
    """Epochs of one batch."""
    own = f"--trainer.max_epochs {epochs} --trainer.limit_train_batches 1"
    own += " --trainer.limit_val_batches 1 --data.val_batch_size 2"
    own += " --trainer.callbacks test_failing_disk.Epochs"
    return small_fit(data, run, *own.split(), *more)


def train(*arguments):
    cli.main(line(*arguments))


@pytest.fixture(scope="module", autouse=True)
def chosen_fitness():
    """The epochs are as good as Epochs.fitness says."""
    finish = Detector.on_validation_epoch_end

    def finish_as_chosen(self):
        metrics = self.evaluation.metrics
        result = metrics.compute()
        result.summary["fitness"] = Epochs.fitness(self.current_epoch)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(metrics, "compute", lambda: result)
            finish(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Detector, "on_validation_epoch_end", finish_as_chosen)
        yield


@pytest.fixture
def begins(monkeypatch):
    """Sets what happens in each epoch, see Epochs."""
    return lambda function: monkeypatch.setattr(Epochs, "begins", staticmethod(function))


def best_epochs(run):
    """That of best.ckpt, of metrics.json and of detections.npz."""
    best = load(run / "checkpoints/best.ckpt")
    assert best["fitness"] == pytest.approx(Epochs.fitness(best["epoch"]))
    figures = read(run / "metrics.json")
    assert figures["fitness"] == pytest.approx(Epochs.fitness(figures["epoch"]))
    record = PredictionRecord.load(run / "detections.npz")
    return [best["epoch"], figures["epoch"], record.epoch]


def leftovers(run):
    return [p.name for p in run.rglob("*") if "tmp" in p.name]


def rows(run):
    """What metrics.csv says of the training."""
    table = all_rows(run)
    for row in table:
        for name in list(row):
            if not name.startswith(("epoch", "train/", "lr/")):
                del row[name]
    return table


def test_what_fails_for_an_epoch(small_data, tmp_path, begins, capsys):
    """In every other epoch something of TROUBLE. The training goes on. A best.ckpt is lost; that of
    the next epoch better than the file is not."""
    run = tmp_path / "run"
    current = ExitStack()
    epochs = 2 * len(TROUBLE) + 1
    failed = []
    found = []

    def look():
        told = "best.ckpt could not be saved" in capsys.readouterr().out
        found.append((best_epochs(run), told, leftovers(run)))

    def begin(epoch):
        current.close()
        if epoch > 1 and epoch % 2:
            look()
        if epoch % 2:
            failed.append(current.enter_context(failing(run, TROUBLE[epoch // 2][0])))

    begins(begin)
    with current:
        train(small_data, run, epochs)
    look()
    for k, trouble in enumerate(TROUBLE):
        best, told, left = found[k]
        is_lost = trouble[-1]
        assert failed[k], trouble
        assert best == [2 * k + 1 + is_lost] * 3, trouble
        assert told == is_lost, trouble
        assert not left, trouble
    assert column(rows(run), "epoch") == list(map(str, range(epochs)))


def test_a_disk_that_becomes_read_only(
    small_data,
    tmp_path,
    begins,
    refused,
    monkeypatch,
):
    """The training ends, and then says what is not on the disk."""
    run = tmp_path / "run"
    epoch = [0]
    begins(lambda number: epoch.__setitem__(0, number))
    with failing(run, [], lambda: epoch[0] >= 1):
        told = refused(
            line(small_data, run, 3, "--report.enabled", "true", "--pictures.enabled", "true")
        )
    assert epoch == [2]
    assert "last.ckpt (" in told
    assert "best.ckpt (" in told
    assert load(run / "checkpoints/last.ckpt")["epoch"] == 0
    assert best_epochs(run) == [0, 0, 0]


def test_no_checkpoint_at_all(small_data, tmp_path, refused):
    """The reason is that of the disk, not torch's own error that follows from it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        told = refused(line(small_data, tmp_path / "run", 1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert f"{tmp_path}/run/checkpoints/last.ckpt ([Errno 27] File too large" in told
    assert not list((tmp_path / "run").rglob("*.ckpt"))


def die_in_the_end(run):
    """In a process of its own, which has to kill itself."""
    pid = os.fork()
    if pid == 0:
        try:
            run()
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def test_killed_between_the_best_and_its_figures(small_data, tmp_path, begins, monkeypatch):
    """In epochs that are better than all before, after another file each; then after a best.ckpt that
    could not be written, with which last.ckpt was saved: the resumed run goes by the best.ckpt that
    is there. Figures that were damaged meanwhile are replaced, with the rows of the checkpoint."""
    run = tmp_path / "run"
    current = [-1]
    replace = os.replace
    resume = ("--ckpt_path", "last")
    good = [0.1, 0.2, 0.3, 0.4, 0.6, 0.5]
    monkeypatch.setattr(Epochs, "fitness", staticmethod(good.__getitem__))

    def begin(epoch):
        follows = 0 <= current[0] == epoch - 1
        current[0] = epoch
        if epoch == 5:
            die()
        if follows:
            assert best_epochs(run) == [epoch - 1] * 3

    def train_and_die(kill_epoch, after, *more):
        def replaced(source, target):
            replace(source, target)
            if current[0] == kill_epoch and Path(target).name == after:
                die()

        monkeypatch.setattr(os, "replace", replaced)
        train(small_data, run, 6, *more)

    def train_without_the_best():
        with failing(run, ["rename", "best.ckpt"], lambda: current[0] == 4):
            train(small_data, run, 6, *resume)

    begins(begin)
    for k, after in enumerate(("best.ckpt", "detections.npz")):
        die_in_the_end(lambda k=k, after=after: train_and_die(k + 1, after, *resume[: 2 * k]))
    die_in_the_end(train_without_the_best)
    begins(lambda epoch: None)
    assert load(run / "checkpoints/last.ckpt")["epoch"] == 4
    before = rows(run)
    for name in ("metrics.csv", "metrics.json"):
        (run / name).write_bytes(b"\xff\xfe")
    train(small_data, run, 6, *resume)
    assert best_epochs(run) == [5, 5, 5]
    assert not leftovers(run)
    assert rows(run)[:5] == before
    assert column(rows(run), "epoch") == list("012345")


def test_of_several_validations_an_epoch_the_last_counts(small_data, tmp_path, monkeypatch):
    """Files and figures are of the same weights, also where the network was better before; the last
    is at the end of the epoch."""
    chosen = iter([0.9, 0.3, 0.8, 0.2])
    monkeypatch.setattr(Epochs, "fitness", staticmethod(lambda epoch: next(chosen)))
    twice = "--trainer.limit_train_batches 3 --trainer.val_check_interval 2"
    train(small_data, tmp_path, 2, *twice.split())
    best = load(tmp_path / "checkpoints/best.ckpt")
    figures = read(tmp_path / "metrics.json")
    assert (best["epoch"], best["fitness"]) == (0, pytest.approx(0.3))
    assert (figures["epoch"], figures["fitness"]) == (0, pytest.approx(0.3))
    assert PredictionRecord.load(tmp_path / "detections.npz").epoch == 0
