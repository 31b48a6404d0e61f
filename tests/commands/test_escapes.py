"""Names out of files, with the control characters that clear a terminal or rename its window:
shown, not sent."""

import io
import re
import shutil
import sys
from pathlib import Path
from shlex import split

import pytest
import yaml
from small_fit import small_fit

import cli
from boltbox.detector.report import charts

CLEAR = "\x1b[2J"
TITLE = "\x1b]0;x\x07"
RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@pytest.fixture
def steered(small_data: Path, tmp_path: Path) -> Path:
    """A data set with such names: of a class, of an image whose label is wrong, and of one that is
    broken."""
    shutil.copytree(small_data.parent, tmp_path / "data")
    path = tmp_path / "data/data.yaml"
    content = yaml.safe_load(path.read_text())
    content["names"] = [f"{CLEAR}class \x9b31m {k}" for k in range(len(content["names"]))]
    path.write_text(yaml.safe_dump({**content, "path": str(path.parent)}))
    image, *others = sorted((tmp_path / "data").rglob("train/*.jpg"))
    label = Path(str(image).replace("images", "labels")).with_suffix(".txt")
    label.rename(label.with_stem(f"{TITLE}{label.stem}")).write_text("0 1.5 .5 .1 .1\n")
    image.rename(image.with_stem(f"{TITLE}{image.stem}"))
    others[0].with_stem(f"{TITLE}broken").write_bytes(b"no image")
    return path


def shown(capsys: pytest.CaptureFixture[str]) -> str:
    told = capsys.readouterr()
    assert not RAW.search(told.out.replace("\r", ""))
    assert not RAW.search(told.err.replace("\r", ""))
    return told.out + told.err


def test_a_terminal_that_lacks_a_character(
    steered: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steered.write_text(steered.read_text().replace("class", "\u732b"))
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, "latin-1", write_through=True))
    limits = "--trainer.max_epochs 1 --trainer.limit_train_batches 1 --trainer.limit_val_batches 1"
    cli.main([*small_fit(steered, here / "run"), *split(limits)])
    assert b"\\u732b" in written.getvalue()


def test_a_training_a_validation_and_its_report(
    steered: Path,
    here: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(charts, "DOTS", 30)
    limits = "--trainer.max_epochs 1 --trainer.limit_train_batches 1 --report.enabled true --doctor.enabled true"
    cli.main([*small_fit(steered, here / "run"), *split(limits)])
    told = shown(capsys)
    assert "\\x1b[2Jclass" in told
    assert "\\x1b]0;x\\x07" in told
    cli.main(
        ["validate", "--ckpt_path", "last", "--run", str(here / "run"), "--report.enabled", "false"]
    )
    assert "\\x1b[2Jclass" in shown(capsys)


def test_the_doctor_and_errors(
    steered: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):  # there are faults
        cli.main(["doctor", "--data.dataset", str(steered), "--run", "doctor"])
    assert "\\x1b]0;x\\x07" in shown(capsys)
    with pytest.raises(SystemExit):
        cli.main(["predict", "--ckpt_path", f"{CLEAR}.pt", "--source", str(steered.parent)])
    assert f"error: {CLEAR}".replace("\x1b", "\\x1b") in shown(capsys).replace("ckpt_path ", "")
    with pytest.raises(SystemExit):
        cli.main([f"fit{TITLE}"])
    assert "\\x1b]0;x\\x07" in shown(capsys)
