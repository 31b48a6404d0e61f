"""Unlabelled images and a teacher that labels them, by the command line."""

import shutil
from pathlib import Path
from typing import ClassVar

import lightning as L
import numpy as np
import pytest
import torch
from made_teacher import CENTRES, LARGE, SMALL, SURE, UNSURE, box, make_data, make_teacher
from small_fit import small_fit

import cli
from benchmarks import resume_fuzz
from benchmarks.resume_fuzz import command, trial
from boltbox.detector.data.sample import Batch

THREE = ["--trainer.limit_train_batches", "3", "--trainer.max_epochs", "2"]
pytestmark = pytest.mark.usefixtures("quick_starts")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return make_data(tmp_path / "data")


@pytest.fixture
def teacher(tmp_path: Path) -> Path:
    return make_teacher(tmp_path / "teacher.ckpt")


def fit(data: Path, teacher: Path, run: Path, *more: str) -> None:
    with_teacher = ["--data.unlabelled", str(data.parent / "more"), "--teacher", str(teacher)]
    cli.main(small_fit(data, run, *with_teacher, "--trainer.max_epochs", "1", *more))


class Batches(L.Callback):
    """Keeps the batches of a training, and its data."""

    kept: ClassVar[list[Batch]] = []

    def on_train_batch_start(self, trainer: L.Trainer, module: L.LightningModule, batch: Batch, batch_idx: int) -> None:  # fmt: skip
        self.kept.append(batch)


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[Batch]:
    monkeypatch.setattr(Batches, "kept", [])
    return Batches.kept


def test_labels_that_a_person_can_read(
    data: Path, teacher: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    left = run / "teacher/labels/of_a_killed_start.txt"
    left.parent.mkdir(parents=True)
    left.touch()
    (data.parent / "more/damaged.png").write_text("no image")
    shutil.copy(data.parent / "images/train/0.png", data.parent / "more/again.png")
    fit(data, teacher, run, "--report.enabled", "true")

    said = capsys.readouterr().out
    assert "left out: " in said
    assert "damaged.png: not a readable image" in said
    assert "teacher: 1 of 14 images have labels, which they keep" in said
    assert (
        "teacher: 12 unlabelled images, 48 objects (confidence from 0.90), 48 that may be" in said
    )
    assert {path.name for path in left.parent.iterdir()} == {f"{k}.txt" for k in range(200, 212)}
    rows = np.loadtxt(run / "teacher/labels/200.txt")
    assert np.allclose(rows[:, 5], np.repeat([SURE, UNSURE], 4), atol=1e-3)
    assert not rows[:, 0].any()
    for found, side in ((rows[:4], LARGE), (rows[4:], SMALL)):
        wanted = [
            ((a + c) / 2, (b + d) / 2, side, side) for a, b, c, d in (box(c, side) for c in CENTRES)
        ]
        assert np.allclose(sorted(found[:, 1:5].tolist()), np.array(sorted(wanted)) / 64, atol=1e-4)
    assert "What the teacher found" in (run / "report.html").read_text()


def test_what_the_network_is_trained_on(
    data: Path, teacher: Path, tmp_path: Path, batches: list[Batch]
) -> None:
    """Half of a batch is labelled; a corrected label counts."""
    plain = [
        "--data.augment.mosaic",
        "0",
        "--data.augment.translate",
        "0",
        "--data.augment.scale",
        "0",
    ]
    run = tmp_path / "run"
    fit(data, teacher, run, *plain, "--trainer.callbacks", "test_teaching.Batches")
    assert len(batches) == 2
    seen = [i for batch in batches for i in batch.indices]
    assert sorted(i for i in seen if i < 8) == [*range(8)]
    assert len({i for i in seen if i >= 8}) == 8
    for batch in batches:
        assert sum(i < 8 for i in batch.indices) == 4
        assert batch.unsure is not None
        for k, index in enumerate(batch.indices):
            sides = batch.targets[batch.targets[:, 0] == k, 4] * 64
            own = batch.unsure[batch.unsure[:, 0] == k]
            if index < 8:
                assert not len(own)
                assert len(sides) == 6
            else:
                assert torch.allclose(sides, torch.full((4,), 20.0), atol=0.01)
                assert torch.allclose(own[:, 4] * 64, torch.full((4,), 6.0), atol=0.01)
                assert (own[:, 1] == -1).all()


def test_classes_that_the_teacher_does_not_know(
    tmp_path: Path, batches: list[Batch], capsys: pytest.CaptureFixture[str]
) -> None:
    data = make_data(tmp_path / "data", ["Dot", "spot"])
    for label in data.parent.glob("labels/*/*.txt"):  # the spots are of class 1 here
        label.write_text("\n".join(f"1{line[1:]}" for line in label.read_text().splitlines()))
    teacher = make_teacher(tmp_path / "teacher.ckpt", ["Spot", "cup"])
    fit(data, teacher, tmp_path / "run", "--trainer.callbacks", "test_teaching.Batches")
    assert "it does not know Dot" in capsys.readouterr().out
    for batch in batches:
        assert batch.unsure is not None
        assert set(batch.targets[:, 1].tolist()) == {1.0}
        for k, index in enumerate(batch.indices):
            unknown = batch.unsure[(batch.unsure[:, 0] == k) & (batch.unsure[:, 1] == -2)]
            assert (len(unknown) > 0) == (index >= 8)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_killed_run_ends_the_same(ranks: int, data: Path, teacher: Path, tmp_path: Path) -> None:
    more = ["--data.unlabelled", str(data.parent / "more"), "--teacher", str(teacher), *THREE]
    line = command(data, tmp_path / "reference", 0, ranks, within_epochs=False, more=more)
    assert resume_fuzz.start(line) == 0
    kills = ["start:0", "batch:1", "validation:0"]
    hits, unlike = trial(tmp_path / "run", data, kills, 1, ranks, tmp_path / "reference", more)
    assert hits == len(kills)
    assert not unlike


def test_bad_input(
    data: Path, teacher: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(teacher: Path, *more: str) -> str:
        with pytest.raises(SystemExit):
            fit(data, teacher, tmp_path / "run", *more)
        assert not (tmp_path / "run/checkpoints").exists()
        return capsys.readouterr().err

    assert "no such file" in refused(tmp_path / "none.ckpt")
    other = make_teacher(tmp_path / "other.ckpt", ["cup", "plate"])
    assert "none of its classes (cup, plate) is one of the data set's (spot, dot)" in refused(other)
    (tmp_path / "empty").mkdir()
    assert "no image file there" in refused(teacher, "--data.unlabelled", str(tmp_path / "empty"))
    train = str(data.parent / "images/train")
    assert "all its images have labels" in refused(teacher, "--data.unlabelled", train)
    val = str(data.parent / "images/val")
    assert "is an image of val too" in refused(teacher, "--data.unlabelled", val)
    assert "data.rect false" in refused(teacher, "--data.rect", "true")
    with pytest.raises(SystemExit):
        cli.main(small_fit(data, tmp_path / "run", "--data.unlabelled", train))
    assert "need one another" in capsys.readouterr().err


def test_a_teacher_that_has_changed(
    data: Path, teacher: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    fit(data, teacher, run)
    resume = ["fit", "--ckpt_path", "last", "--run", str(run), "--trainer.max_epochs", "2"]
    label = run / "teacher/labels/203.txt"
    label.write_text("0 0.5 0.5 0.25 0.25\n")  # a person's
    cli.main(resume)
    said = capsys.readouterr().out
    assert "taught: 12 images with 96 objects, now 12 with 89" in said
    label.write_text("7 0.5 0.5 0.25 0.25\n")
    with pytest.raises(SystemExit):
        cli.main(resume)
    assert "203.txt, line 1: '7 0.5 0.5 0.25 0.25' is no object" in capsys.readouterr().err
    label.write_text("")
    make_teacher(teacher, ["spot", "cup"])
    with pytest.raises(SystemExit):
        cli.main(resume)
    assert f"changed: {teacher}" in capsys.readouterr().err
    teacher.unlink()  # it is not needed any more
    cli.main([*resume[:-1], "3"])
    (data.parent / "more/200.png").unlink()
    with pytest.raises(SystemExit):
        cli.main([*resume[:-1], "4"])
    assert "changed: the images of data.unlabelled" in capsys.readouterr().err


def test_one_class(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = make_teacher(tmp_path / "teacher.ckpt", ["Dot", "cup"])
    fit(data, other, tmp_path / "run", "--data.single_class", "true")
    assert "48 that may be objects (from 0.40)\n" in capsys.readouterr().out
    assert not np.loadtxt(tmp_path / "run/teacher/labels/200.txt")[:, 0].any()
