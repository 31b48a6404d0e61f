"""The short form of the doctor before a fit: what it reports, and what it leaves to others."""

import shutil
from pathlib import Path

import pytest
from made_datasets import lay_out

import cli


@pytest.fixture
def data(small_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small data set of its own, where nobody has looked yet."""
    monkeypatch.setenv("BOLTBOX_CACHE", str(tmp_path / "cache"))
    return Path(shutil.copytree(small_data.parent, tmp_path / "data")) / small_data.name


def fit(data: Path, *options: str) -> None:
    """Of no epoch: what comes before the first."""
    run = data.parent.parent / f"fit-{len(list(data.parent.parent.glob('fit-*')))}"
    line = f"fit --data.dataset {data} --data.image_size 64 --data.workers 0 --autoanchor.enabled false"
    cli.main([*line.split(), "--trainer.max_epochs", "0", "--run", str(run), *options])


def said(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in capsys.readouterr().out.splitlines() if line.startswith("doctor: ")]


def test_reports_what_is_worth_it(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fit(data)
    usual = said(capsys)
    root = data.parent
    past = root / "labels/train/0000.txt"
    # the second is left out, which the fit says anyway
    past.write_text("0 .9 .5 .5 .5\n1 .5 .5 0 .5\n")
    lay_out(root, {"labels/val/gone.txt": ""})
    fit(data)
    first = said(capsys)
    assert any(f"{past}, line 1: the box reaches" in line for line in first)
    assert any("gone.txt: no image of this name" in line for line in first)
    assert not any("zero width" in line for line in first)
    assert not any("note" in line for line in first)
    assert len(usual) < len(first) <= 6
    assert first[-1].endswith(f"cli.py doctor --data.dataset {data}")
    fit(data, "--doctor.enabled", "false")
    assert said(capsys) == []
    (root / "labels/val/gone.txt").unlink()
    past.write_text("0 .5 .5 .5 .5\n")
    fit(data)
    assert said(capsys) == usual
