"""Checkpoint files that are damaged, that somebody else made, that would run something, that did
not fit on the disk."""

import ctypes
import functools
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
from small_fit import small_fit

import cli
from boltbox.detector.checkpoint.reader import find_trained, newest_valid, read_checkpoint
from boltbox.detector.checkpoint.runs import claim, new_run
from boltbox.detector.checkpoint.writer import AtomicCheckpointIO
from boltbox.detector.system.errors import InputError

ONE_BATCH = ["--trainer.limit_train_batches", "1", "--trainer.max_epochs"]


@pytest.fixture(scope="module")
def trained(small_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two epochs, not to be written to."""
    run = tmp_path_factory.mktemp("trained") / "run"
    cli.main(small_fit(small_data, run, *ONE_BATCH, "2"))
    return run


def content(steps: int) -> dict[str, Any]:
    """What the smallest checkpoint that passes for one of ours holds."""
    plain = dict.fromkeys(("hyper_parameters", "optimizer_states", "loops", "callbacks"))
    return {**plain, "global_step": steps, "state_dict": {"a": torch.arange(10_000.0)}}


def write(folder: Path, **steps: int) -> Path:
    """Checkpoints of these names, after so many steps."""
    folder.mkdir(exist_ok=True)
    for name, number in steps.items():
        (folder / f"{name}.ckpt").write_bytes(saved(content(number)))
    return folder


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


def test_a_kill_in_the_first_save_leaves_no_gap(small_data: Path, here: Path) -> None:
    """After best.ckpt, which is the first of its names: the resume writes the others."""
    line = small_fit(small_data, here / "run", *ONE_BATCH, "2", "--checkpoints.save_period", "1")
    cli.main([*line, "--trainer.max_epochs", "1"])
    folder = here / "run/checkpoints"
    first = (folder / "best.ckpt").read_bytes()
    for name in ("last.ckpt", "epoch0.ckpt"):
        (folder / name).unlink()
    cli.main([*line, "--ckpt_path", "auto"])
    assert (folder / "epoch0.ckpt").read_bytes() == first
    assert (folder / "previous.ckpt").read_bytes() == first
    assert (folder / "epoch1.ckpt").exists()


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


def saved(content: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    torch.save(content, file, **options)
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
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sentence says why, also where it was given by name."""
    last = write(tmp_path, last=2, previous=1) / "last.ckpt"
    last.write_bytes(DAMAGE[kind](last.read_bytes()))
    found = newest_valid(tmp_path)
    assert found is not None
    assert found[0] == tmp_path / "previous.ckpt"
    told = capsys.readouterr().out
    assert told.count("passed over") == 1
    assert str(last) in told
    with pytest.raises(InputError, match=f"^{last}: [^\n]+$"):
        find_trained(str(last), None)


def test_a_damaged_file_is_named_and_passed_over(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run goes on from the one before it, here that of the epoch before."""
    shutil.copytree(trained, tmp_path / "run")
    folder = tmp_path / "run/checkpoints"
    (folder / "best.ckpt").unlink()
    last = folder / "last.ckpt"
    last.write_bytes(DAMAGE["a bit late"](last.read_bytes()))
    os.utime(folder / "previous.ckpt", (1, 1))
    cli.main(["fit", "--run", str(tmp_path / "run"), "--ckpt_path", "last"])
    told = capsys.readouterr().out
    assert f"warning: {last}: " in told
    assert "passed over" in told
    assert f"resume:    {folder / 'previous.ckpt'}\n" in told
    ours, theirs = (
        torch.load(r / "checkpoints/last.ckpt", weights_only=True)["state_dict"]
        for r in (tmp_path / "run", trained)
    )
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


@pytest.mark.parametrize(
    ("steps", "first"),
    [
        ({"last": 2, "previous": 1, "best": 1, "epoch0": 1}, "last"),
        ({"previous": 1, "best": 2}, "previous"),
        ({"best": 1, "epoch1": 2, "epoch0": 1}, "epoch1"),
    ],
)
def test_last_comes_first(steps: dict[str, int], first: str, tmp_path: Path) -> None:
    """Then previous, then the most trained, whatever the times are that a copy of the folder has
    given to its files."""
    for k, name in enumerate(sorted(steps, key=lambda name: name != first)):
        write(tmp_path, **{name: steps[name]})
        os.utime(tmp_path / f"{name}.ckpt", (2e9 + k, 2e9 + k))
    found = newest_valid(tmp_path)
    assert found
    assert found[0].stem == first


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
    claim(here / "run", "fit")
    (here / "run/config.yaml").write_text("")
    line = small_fit(small_data, Path("run"), "--ckpt_path", "auto", *ONE_BATCH)
    cli.main([*line, "1"])
    assert "no checkpoint in run/checkpoints, so this is a fresh start" in capsys.readouterr().out
    cli.main([*line, "2"])
    assert "resume:    run/checkpoints/last.ckpt\n" in capsys.readouterr().out
    assert torch.load("run/checkpoints/last.ckpt", weights_only=True)["epoch"] == 1


def payload(kind: str, marker: Path) -> bytes:
    """A file that would create `marker` under a careless reader, or that makes a careless reader
    fail badly."""
    shell = f"touch {marker}"
    python = f"open({str(marker)!r}, 'w').close()"
    system = Call(os.system, shell)
    objects: dict[str, Any] = {
        "os.system": system,
        "eval": Call(eval, python),
        "exec": Call(exec, python),
        "a chain of getattr": Call(Call(getattr, Call(__import__, "os"), "system"), shell),
        "deep in a state": {**content(2), "callbacks": {"deep": [{"down": (system,)}]}},
        "a partial": Call(functools.partial, os.system, shell),
        "a class of ours": Call(new_run, "fit"),
    }
    if kind in objects:
        return saved(objects[kind])
    if kind == "the old format":
        return saved(system, _use_new_zipfile_serialization=False)
    if kind == "a storage that is too short":
        with zipfile.ZipFile(io.BytesIO(saved(content(2)))) as source:
            entries = {e.filename: source.read(e) for e in source.infolist()}
        name = max((n for n in entries if "/data/" in n), key=lambda n: len(entries[n]))
        return zipped({**entries, name: entries[name][:16]})
    plain = {"archive/data.pkl": pickle.dumps({}, 2)}
    if kind == "a bomb":
        return zipped({**plain, "archive/data/0": bytes(50_000_000)}, zipfile.ZIP_DEFLATED)
    return zipped(
        {**plain, {"a path out of the archive": "../../outside.txt"}.get(kind, str(marker)): b"x"}
    )


PAYLOADS = [
    "os.system",
    "eval",
    "exec",
    "a chain of getattr",
    "deep in a state",
    "a partial",
    "a class of ours",
    "the old format",
    "a storage that is too short",
    "a bomb",
    "a path out of the archive",
    "an absolute path",
]


@pytest.mark.parametrize("kind", PAYLOADS)
def test_nothing_in_a_checkpoint_is_executed(
    kind: str, tmp_path: Path, small_data: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither by name, nor as the newest of a run, nor as weights to start from (commands get two
    kinds: one function reads for all)."""
    folder = write(tmp_path / "run", last=2, previous=1)
    marker = tmp_path / "marker"
    last = folder / "last.ckpt"
    last.write_bytes(payload(kind, marker))
    with pytest.raises(InputError):
        read_checkpoint(last)
    found = newest_valid(folder)
    assert found is not None
    assert found[0] != last
    assert f"warning: {last}" in capsys.readouterr().out
    if kind in ("os.system", "the old format"):
        start = ["fit", "--data.dataset", str(small_data), "--model.start.weights", str(last)]
        for line in (start, ["validate", "--ckpt_path", str(last)]):
            with pytest.raises(SystemExit) as leaving:
                cli.main(line)
            assert leaving.value.code == 2
            assert len(capsys.readouterr().err.strip().splitlines()) == 1
    assert not marker.exists()
    assert not list(tmp_path.glob("runs")), "a class of ours makes a folder"
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
    tiny_disk: Path, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Checkpoints and pictures do not fit; the older checkpoint stays, training continues to its end,
    says so, and ends with an error."""
    shutil.copytree(trained, tiny_disk / "run")
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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A disk that loses bits: found before the older checkpoint goes."""
    last = write(tmp_path, last=1) / "last.ckpt"
    before = last.read_bytes()
    whole = torch.save

    def lossy(content: Any, file: Any) -> None:
        whole(content, file)
        file.seek(file.tell() // 2)
        file.write(b"\x55" * 64)
        file.seek(0, 2)

    monkeypatch.setattr("boltbox.detector.checkpoint.writer.torch.save", lossy)
    AtomicCheckpointIO().save_checkpoint(content(2), last)
    assert last.read_bytes() == before
    assert "could not be saved (damaged in" in capsys.readouterr().out
    monkeypatch.undo()
    AtomicCheckpointIO().save_checkpoint(content(2), last)
    assert read_checkpoint(last)["global_step"] == 2
    assert (tmp_path / "previous.ckpt").read_bytes() == before
