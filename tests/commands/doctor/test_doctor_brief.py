"""The short form of the doctor before a fit: what it says, what it leaves to others, and that it
looks once."""

import shutil
from pathlib import Path

import pytest
from made_datasets import lay_out

import cli
from boltbox.detector.commands.doctor import brief


@pytest.fixture
def data(small_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small data set of its own, where nobody has looked yet."""
    monkeypatch.setenv("BOLTBOX_CACHE", str(tmp_path / "cache"))
    return Path(shutil.copytree(small_data.parent, tmp_path / "data")) / small_data.name


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The splits whose labels were examined, in order."""
    seen: list[str] = []
    real = brief.examine_labels

    def counted(file, split, dataset):
        seen.append(split)
        return real(file, split, dataset)

    monkeypatch.setattr(brief, "examine_labels", counted)
    return seen


def fit(data: Path, *options: str) -> None:
    """Of no epoch: what comes before the first."""
    run = data.parent.parent / f"fit-{len(list(data.parent.parent.glob('fit-*')))}"
    sizes = ["--data.image_size", "64", "--data.workers", "0", "--autoanchor.enabled", "false"]
    cli.main(
        [
            "fit",
            "--data.dataset",
            str(data),
            *sizes,
            "--trainer.max_epochs",
            "0",
            "--run",
            str(run),
            *options,
        ]
    )


def said(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in capsys.readouterr().out.splitlines() if line.startswith("doctor: ")]


def test_says_what_is_worth_saying_once_examined(
    data: Path, looks: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    fit(data)
    usual = said(capsys)
    assert looks == ["train", "val"]
    root = data.parent
    past = root / "labels/train/0000.txt"
    # the second is left out, which the fit says anyway
    past.write_text("0 .9 .5 .5 .5\n1 .5 .5 0 .5\n")
    lay_out(root, {"labels/val/gone.txt": ""})
    fit(data)
    first = said(capsys)
    assert looks == ["train", "val"] * 2
    assert any(f"{past}, line 1: the box reaches" in line for line in first)
    assert any("gone.txt: no image of this name" in line for line in first)
    assert not any("zero width" in line for line in first)
    assert not any("note" in line for line in first)
    assert len(usual) < len(first) <= 6
    assert first[-1].endswith(f"cli.py doctor --data.dataset {data}")
    fit(data)
    assert said(capsys) == first
    assert looks == ["train", "val"] * 2, "nothing has changed"
    (root / "labels/val/gone.txt").unlink()
    past.write_text("0 .5 .5 .5 .5\n")
    fit(data)
    assert len(looks) == 6
    assert not any("past the frame" in line or "gone" in line for line in said(capsys))


@pytest.mark.parametrize("option", ["data.image_size", "data.single_class"])
def test_looks_again_under_other_options(option: str, data: Path, looks: list[str]) -> None:
    fit(data)
    fit(data, f"--{option}", {"data.image_size": "96", "data.single_class": "true"}[option])
    assert looks == ["train", "val"] * 2


def test_enabled_false(data: Path, looks: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    lay_out(data.parent, {"labels/val/gone.txt": ""})
    fit(data, "--doctor.enabled", "false")
    assert looks == []
    assert said(capsys) == []


def test_repeats_what_a_look_at_the_images_found(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As long as the images are the same."""
    cut = data.parent / "images/train/0003.jpg"
    whole = cut.read_bytes()
    cut.write_bytes(whole[: len(whole) // 2])
    fit(data)
    assert not any(str(cut) in line for line in said(capsys)), "its header is sound"
    with pytest.raises(SystemExit):
        cli.main(
            [
                "doctor",
                "--data.dataset",
                str(data),
                "--data.image_size",
                "64",
                "--run",
                str(data.parent / "run"),
            ]
        )
    capsys.readouterr()
    fit(data)
    assert said(capsys)[0].startswith(f"doctor: fault: {cut}: ")
    cut.write_bytes(whole)
    fit(data)
    assert not any(str(cut) in line for line in said(capsys))


@pytest.mark.parametrize("content", ["", "{", "[[1]]", '{"a": 1}', "[1]"])
def test_damaged_cache(
    content: str, data: Path, looks: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    lay_out(data.parent, {"labels/val/gone.txt": ""})
    fit(data)
    first = said(capsys)
    (kept,) = (data.parent.parent / "cache/doctor").iterdir()
    kept.write_text(content)
    fit(data)
    assert said(capsys) == first
    assert looks == ["train", "val"] * 2


def test_cache_that_cannot_be_written(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (data.parent / "file").write_text("no folder")
    monkeypatch.setenv("BOLTBOX_CACHE", str(data.parent / "file"))
    lay_out(data.parent, {"labels/val/gone.txt": ""})
    fit(data)
    assert any("gone.txt" in line for line in said(capsys))
