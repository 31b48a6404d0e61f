"""Checkpoint files that are damaged, that somebody else made, that would run something, that did
not fit on the disk."""

import ctypes
import io
import os
import pickle
import shutil
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from made_payloads import Call

import cli
from boltbox.detector.checkpoint.reader import newest_valid, read_checkpoint
from boltbox.detector.checkpoint.runs import new_run
from boltbox.detector.checkpoint.writer import AtomicCheckpointIO
from boltbox.detector.system.errors import InputError

QUICK = ["--data.image_size", "64", "--data.batch_size", "8", "--data.workers", "0", "--model.network.width_multiple", "0.125",
         "--model.network.depth_multiple", "0.1",
         "--trainer.enable_progress_bar", "false", "--trainer.precision", "32-true", "--trainer.limit_train_batches", "1",
         "--report.enabled", "false", "--pictures.enabled", "false", "--autoanchor.enabled", "false"]  # fmt: skip


@pytest.fixture(scope="module")
def trained(small_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two epochs, not to be written to."""
    run = tmp_path_factory.mktemp("trained") / "run"
    cli.main(
        [
            "fit",
            "--data.dataset",
            str(small_data),
            *QUICK,
            "--trainer.max_epochs",
            "2",
            "--run",
            str(run),
        ]
    )
    return run


def test_a_checkpoint_is_complete_and_plain(trained: Path) -> None:
    """weights_only: tensors and plain types; float32 throughout."""
    content = torch.load(trained / "checkpoints/last.ckpt", weights_only=True)
    tensors = content["state_dict"]
    assert {k.partition(".")[0] for k in tensors} == {"network", "ema", "loss"}
    assert {t.dtype for t in tensors.values()} == {torch.float32, torch.int64}
    assert content["optimizer_states"][0]["state"][0]["exp_avg"].dtype == torch.float32
    states = " ".join(content["callbacks"])
    for name in ("EMA", "EarlyStop", "EpochTable", "Guard"):
        assert name in states
    assert {"gradients", "epoch_losses", "random"} == set(content["processes"][0])
    run = content["run"]
    assert content["hyper_parameters"]["names"] == ["disc", "ring", "star", "triangle", "cross"]
    assert torch.__version__.startswith(run["versions"]["torch"])
    assert "width_multiple: 0.125" in run["config"]


def test_last_previous_and_best_are_files_of_their_own(trained: Path) -> None:
    files = [trained / f"checkpoints/{name}.ckpt" for name in ("last", "previous", "best")]
    assert len({f.stat().st_ino for f in files}) == 3
    assert [f.stat().st_nlink for f in files] == [1, 1, 1]
    assert torch.load(files[0], weights_only=True)["epoch"] == 1
    assert torch.load(files[1], weights_only=True)["epoch"] == 0


def flipped(data: bytes, place: float) -> bytes:
    """One bit changed, that far into the file."""
    at = int(len(data) * place)
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def zipped(entries: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return file.getvalue()


def saved(content: Any) -> bytes:
    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue()


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "cut to its first bytes": lambda data: data[:100],
    "cut in the middle": lambda data: data[: len(data) // 2],
    "without its last byte": lambda data: data[:-1],
    "a bit early on": lambda data: flipped(data, 0.3),
    "a bit late": lambda data: flipped(data, 0.9),
    "zeros at its end": lambda data: data[: -len(data) // 4] + bytes(len(data) // 4),
    "a web page": lambda data: b"<!DOCTYPE html><html><body>404</body></html>",
    "other weights": lambda data: saved({"state_dict": {"a": torch.zeros(3)}}),
    "a list": lambda data: saved([1, 2, 3]),
    "a zip of something else": lambda data: zipped({"a.txt": b"hello"}),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_file_is_not_the_newest(
    kind: str, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(trained / "checkpoints", tmp_path / "checkpoints")
    (folder / "best.ckpt").unlink()
    last = folder / "last.ckpt"
    last.write_bytes(DAMAGE[kind](last.read_bytes()))
    found = newest_valid(folder)
    assert found is not None
    assert found[0] == folder / "previous.ckpt"
    told = capsys.readouterr().out
    assert told.count("passed over") == 1
    assert str(last) in told


@pytest.mark.parametrize("kind", ["a bit late", "other weights"])
def test_a_damaged_file_is_named_and_passed_over(
    kind: str, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run goes on from the one before it, here that of the epoch before."""
    shutil.copytree(trained, tmp_path / "run")
    folder = tmp_path / "run/checkpoints"
    (folder / "best.ckpt").unlink()
    last = folder / "last.ckpt"
    last.write_bytes(DAMAGE[kind](last.read_bytes()))
    os.utime(folder / "previous.ckpt", (1, 1))
    cli.main(["fit", "--run", str(tmp_path / "run"), "--ckpt_path", "last"])
    told = capsys.readouterr().out
    assert f"warning: {last}: " in told
    assert "passed over" in told
    assert f"resuming from {folder / 'previous.ckpt'}" in told
    ours, theirs = (
        torch.load(r / "checkpoints/last.ckpt", weights_only=True)
        for r in (tmp_path / "run", trained)
    )
    assert all(torch.equal(t, theirs["state_dict"][k]) for k, t in ours["state_dict"].items())


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_file_given_by_name(
    kind: str, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "my.ckpt"
    file.write_bytes(DAMAGE[kind]((trained / "checkpoints/last.ckpt").read_bytes()))
    with pytest.raises(SystemExit) as leaving:
        cli.main(["validate", "--ckpt_path", str(file), "--data.dataset", "demo"])
    told = capsys.readouterr().err.strip()
    assert leaving.value.code == 2
    assert told.startswith(f"error: ckpt_path {file}: ")
    assert len(told.splitlines()) == 1


@pytest.mark.parametrize("newer", ["previous.ckpt", "epoch0.ckpt"])
def test_last_comes_first(
    newer: str, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever the times are that a copy of the folder has given to its files."""
    run = shutil.copytree(trained, tmp_path / "run")
    for name in ("best.ckpt", "epoch0.ckpt"):
        shutil.copy(run / "checkpoints/previous.ckpt", run / f"checkpoints/{name}")
    for k, name in enumerate(("last.ckpt", newer)):
        os.utime(run / f"checkpoints/{name}", (2e9 + k, 2e9 + k))
    cli.main(["fit", "--run", str(run), "--ckpt_path", "last"])
    assert "finished: all 2 epochs" in capsys.readouterr().out


def test_without_last_and_previous_the_most_trained_is_taken(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(trained, tmp_path / "run")
    folder = run / "checkpoints"
    (folder / "last.ckpt").rename(folder / "epoch1.ckpt")
    (folder / "previous.ckpt").rename(folder / "best.ckpt")
    os.utime(folder / "epoch1.ckpt", (1, 1))
    cli.main(["fit", "--run", str(run), "--ckpt_path", "auto"])
    assert f"resuming from {folder / 'epoch1.ckpt'}" in capsys.readouterr().out


def test_nothing_intact_is_an_error(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(trained, tmp_path / "run")
    for file in (tmp_path / "run/checkpoints").iterdir():
        file.write_bytes(b"")
    for word in ("last", "auto"):
        with pytest.raises(SystemExit):
            cli.main(["fit", "--run", str(tmp_path / "run"), "--ckpt_path", word])
        assert "no intact checkpoint in" in capsys.readouterr().err


def test_an_older_checkpoint_does_not_replace_a_newer_last(trained: Path, tmp_path: Path) -> None:
    """Nothing is left to train after `previous`, which is an epoch behind."""
    shutil.copytree(trained, tmp_path / "run")
    folder = tmp_path / "run/checkpoints"
    before = (folder / "last.ckpt").read_bytes()
    shutil.copy(folder / "previous.ckpt", folder / "best.ckpt")
    cli.main(
        ["fit", "--run", str(tmp_path / "run"), "--ckpt_path", "best", "--trainer.max_epochs", "1"]
    )
    assert (folder / "last.ckpt").read_bytes() == before


def test_auto(small_data: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A fresh start where there is none, in a folder whose run never came to a checkpoint too; then
    it goes on."""
    (here / "run").mkdir()
    (here / "run/config.yaml").write_text("")
    line = ["fit", "--data.dataset", str(small_data), *QUICK, "--run", "run", "--ckpt_path", "auto"]
    cli.main([*line, "--trainer.max_epochs", "1"])
    assert "no checkpoint in run/checkpoints, so this is a fresh start" in capsys.readouterr().out
    cli.main([*line, "--trainer.max_epochs", "2"])
    assert "resuming from run/checkpoints/last.ckpt" in capsys.readouterr().out
    assert torch.load("run/checkpoints/last.ckpt", weights_only=True)["epoch"] == 1


def archive(data: bytes, **others: bytes) -> bytes:
    return zipped(
        {
            "archive/data.pkl": data,
            "archive/version": b"3\n",
            **{f"archive/{k}": v for k, v in others.items()},
        }
    )


def payload(kind: str, marker: Path, whole: dict[str, Any]) -> bytes:
    """A file that would create `marker` under a careless reader, or that makes a careless reader
    fail badly."""
    shell, python = f"touch {marker}", f"open({str(marker)!r}, 'w').close()"
    system = Call(os.system, shell)
    nested = {**whole, "callbacks": {"deep": [{"down": (system,)}]}}
    objects: dict[str, Any] = {
        "os.system": system,
        "eval": Call(eval, python),
        "exec": Call(exec, python),
        "a chain of getattr": Call(Call(getattr, Call(__import__, "os"), "system"), shell),
        "deep in a state": nested,
        "a partial": Call(__import__("functools").partial, os.system, shell),
        "a class of ours": Call(new_run, "fit"),
    }
    if kind in objects:
        file = io.BytesIO()
        torch.save(objects[kind], file)
        return file.getvalue()
    if kind == "a path out of the archive":
        return zipped({"archive/data.pkl": pickle.dumps({}, 2), "../../outside.txt": b"x"})
    if kind == "an absolute path":
        return zipped({"archive/data.pkl": pickle.dumps({}, 2), str(marker): b"x"})
    if kind == "a bomb":
        return zipped(
            {"archive/data.pkl": pickle.dumps({}, 2), "archive/data/0": bytes(50_000_000)},
            zipfile.ZIP_DEFLATED,
        )
    if kind == "a storage that is too short":
        data = saved({**whole, "state_dict": {"a": torch.arange(1000.0)}})
        with zipfile.ZipFile(io.BytesIO(data)) as source:
            entries = {e.filename: source.read(e) for e in source.infolist()}
        name = max((n for n in entries if "/data/" in n), key=lambda n: len(entries[n]))
        return zipped({**entries, name: entries[name][:16]})
    assert kind == "the old format"
    file = io.BytesIO()
    torch.save(system, file, _use_new_zipfile_serialization=False)
    return file.getvalue()


PAYLOADS = [
    *(
        "os.system",
        "eval",
        "exec",
        "a chain of getattr",
        "deep in a state",
        "a partial",
        "a class of ours",
    ),
    *(
        "a path out of the archive",
        "an absolute path",
        "a bomb",
        "a storage that is too short",
        "the old format",
    ),
]


@pytest.mark.parametrize("kind", PAYLOADS)
def test_nothing_in_a_checkpoint_is_executed(
    kind: str, trained: Path, tmp_path: Path, small_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither by name, nor as the newest of a run, nor as weights to start from (of every second
    kind: both are read by one function)."""
    shutil.copytree(trained, tmp_path / "run")
    marker, last = tmp_path / "marker", tmp_path / "run/checkpoints/last.ckpt"
    whole = torch.load(last, weights_only=True)
    last.write_bytes(payload(kind, marker, whole))
    with pytest.raises(InputError):
        read_checkpoint(last)
    found = newest_valid(last.parent)
    assert found is not None
    assert found[0] != last
    assert f"warning: {last}" in capsys.readouterr().out
    start = ["fit", "--data.dataset", str(small_data), "--model.start.weights", str(last)]
    line = start if PAYLOADS.index(kind) % 2 else ["validate", "--ckpt_path", str(last)]
    with pytest.raises(SystemExit) as leaving:
        cli.main(line)
    assert leaving.value.code == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
    assert not marker.exists()
    assert not (tmp_path.parent / "outside.txt").exists()


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"tmpfs", str(folder).encode(), b"tmpfs", 0, b"size=16m"):
        pytest.skip(f"a tmpfs cannot be mounted here ({os.strerror(ctypes.get_errno())})")
    yield folder
    libc.umount(str(folder).encode())


def test_a_full_disk_loses_nothing(
    tiny_disk: Path, small_data: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Checkpoints and pictures do not fit; the older checkpoint stays, training continues to its end,
    says so, and ends with an error."""
    line = ["fit", "--data.dataset", str(small_data), *QUICK, "--run", str(tiny_disk / "run")]
    cli.main([*line, "--trainer.max_epochs", "1"])
    last = tiny_disk / "run/checkpoints/last.ckpt"
    before = last.read_bytes()
    free = shutil.disk_usage(tiny_disk).free
    (tiny_disk / "filler").write_bytes(bytes(max(free - 40_000, 0)))
    capsys.readouterr()
    with pytest.raises(SystemExit) as leaving:
        cli.main(["fit", "--run", str(tiny_disk / "run"), "--ckpt_path", "last", "--trainer.max_epochs", "3",
                  "--pictures.enabled", "true"])  # fmt: skip
    told, error = capsys.readouterr()
    assert leaving.value.code == 2
    assert str(last) in error
    assert f"warning: {last} could not be saved" in told
    assert "training continues" in told
    assert f"warning: {tiny_disk / 'run/plots/val_labels.jpg'} could not be written" in told
    assert last.read_bytes() == before
    assert read_checkpoint(last)
    assert not list(last.parent.glob(".*")), "nothing half written is left"


def test_a_checkpoint_that_reads_back_wrong_replaces_nothing(
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A disk that loses bits: found before the older checkpoint goes."""
    last = tmp_path / "last.ckpt"
    shutil.copy(trained / "checkpoints/last.ckpt", last)
    content = torch.load(last, weights_only=True)
    whole = torch.save

    def lossy(content: Any, file: Any) -> None:
        whole(content, file)
        file.seek(file.tell() // 2)
        file.write(b"\x55" * 64)
        file.seek(0, 2)

    before = last.read_bytes()
    monkeypatch.setattr("boltbox.detector.checkpoint.writer.torch.save", lossy)
    AtomicCheckpointIO().save_checkpoint(content, last)
    assert last.read_bytes() == before
    assert "could not be saved (damaged in" in capsys.readouterr().out
    monkeypatch.undo()
    AtomicCheckpointIO().save_checkpoint(content, last)
    assert read_checkpoint(last)
    assert (tmp_path / "previous.ckpt").read_bytes() == before
