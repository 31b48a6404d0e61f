"""Names out of files, with the control characters that clear a terminal or rename its window:
shown, not sent."""

import io
import re
import shutil
import sys

import pytest
import yaml
from made_runs import read, train

import cli
from boltbox.detector.report import charts

CLEAR = "\x1b[2J"
TITLE = "\x1b]0;x\x07"
RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@pytest.fixture
def steered(small_data, tmp_path, monkeypatch):
    """A dataset with such names: of a class, of an image whose label is wrong, and of one that is
    broken."""
    monkeypatch.setattr(charts, "DOTS", 30)
    shutil.copytree(small_data.parent, tmp_path / "data")
    path = tmp_path / "data/data.yaml"
    names = [f"{CLEAR}class \x9b31m {k}" for k in range(5)]
    content = read(path) | {"names": names, "path": str(path.parent)}
    path.write_text(yaml.safe_dump(content))
    image = path.parent / "images/train/0000.jpg"
    image.with_stem(f"{TITLE}broken").write_bytes(b"no image")
    image.rename(image.with_stem(f"{TITLE}0000"))
    label = path.parent / "labels/train/0000.txt"
    label.rename(label.with_stem(f"{TITLE}0000")).write_text("0 1.5 .5 .1 .1\n")
    return path


def shown(capsys):
    told = capsys.readouterr()
    assert not RAW.search(told.out.replace("\r", ""))
    assert not RAW.search(told.err.replace("\r", ""))
    return told.out + told.err


def test_a_training_and_its_report(
    steered,
    here,
    capsys,
):
    limits = "--trainer.max_epochs 1 --trainer.limit_train_batches 1 --report.enabled true"
    train(steered, here / "run", f"{limits} --doctor.enabled true")
    told = shown(capsys)
    assert "\\x1b[2Jclass" in told
    assert "\\x1b]0;x\\x07" in told


def test_the_doctor_and_errors(steered, here, capsys, monkeypatch):
    """Also on a terminal that lacks a character."""
    doctor = ["doctor", "--data.dataset", str(steered), "--run", "doctor"]
    for line, words in (
        (doctor, TITLE),  # there are faults
        (["predict", "--ckpt_path", f"{CLEAR}.pt", "--source", str(steered.parent)], CLEAR),
        ([f"fit{TITLE}"], TITLE),
    ):
        with pytest.raises(SystemExit):
            cli.main(line)
        assert words.encode("unicode_escape").decode() in shown(capsys)
    broken = next(steered.parent.rglob("train/*broken*"))
    broken.rename(broken.with_stem("猫"))
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, "latin-1", write_through=True))
    with pytest.raises(SystemExit):
        cli.main(doctor)
    assert b"\\u732b" in written.getvalue()
