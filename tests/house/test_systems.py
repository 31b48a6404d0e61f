"""macOS and Windows, as far as Linux can play them: what one of them lacks is taken away from each
process, and workers start anew instead of as forks."""

import ntpath
import os
import subprocess
import sys
from pathlib import PureWindowsPath
from types import SimpleNamespace

from made_runs import ROOT, SMALL

from boltbox.detector.checkpoint import runs
from boltbox.detector.data import read_split
from boltbox.detector.data.formats.format import Entry, Split
from boltbox.detector.data.read_split import part_of
from boltbox.detector.system import rank_zero

LACKS = """
import ctypes.util  # of macOS it needs what Debian leaves out
import multiprocessing, os, signal, sys, types
sys.platform = "darwin"
multiprocessing.set_start_method("spawn")
for name in ("triton", "fcntl"):
    sys.modules[name] = None
sys.modules["_scproxy"] = types.SimpleNamespace(_get_proxies=dict, _get_proxy_settings=dict)
for name in ("memfd_create", "sched_getaffinity", "posix_fallocate", "fork", "forkpty", "getloadavg", "killpg",
             "pread", "pwrite", "sysconf", "O_DIRECTORY", "O_NOFOLLOW"):
    delattr(os, name)
for name in ("SIGHUP", "pthread_sigmask"):
    delattr(signal, name)
"""  # fmt: skip
PROGRAM = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
import cli
if __name__ == "__main__":
    words = sys.argv[1:]
    middle = words.index("then")
    cli.main(words[:middle])
    cli.main(words[middle + 1:])
"""


def test_fit_and_predict(small_data, here, monkeypatch):
    (here / "site").mkdir()
    (here / "site/sitecustomize.py").write_text(LACKS)
    (here / "program.py").write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", str(here / "site"))
    limits = "--trainer.max_epochs 1 --trainer.limit_train_batches 1 --trainer.limit_val_batches 0"
    line = f"fit --data.dataset {small_data} {SMALL} --data.batch_size 8 --data.workers 1 {limits}"
    image = next(small_data.parent.rglob("val/*.jpg"))
    line += " --data.cache disk --run run then predict --ckpt_path last --run run --workers 1"
    program = [sys.executable, "program.py"] + f"{line} --source {image}".split()
    done = subprocess.run(program, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "results:" in done.stdout


def val_of(root):
    """The names of a half of 20 images."""
    entries = [Entry(str(root / f"images/{k}.png"), "") for k in range(20)]
    return [
        root.joinpath(entry.image).name for entry in part_of(entries, 0.5, Split("val", (), root))
    ]


def test_paths_of_windows(here, monkeypatch):
    """Two drives: of a run and where it was started, and of images. The same part of a dataset is
    val as elsewhere."""
    expected = val_of(here)
    windows = SimpleNamespace(path=ntpath, sep="\\", fsencode=os.fsencode)
    for module in (rank_zero, runs, read_split):
        monkeypatch.setattr(module, "os", windows)
    assert val_of(PureWindowsPath("C:\\pets")) == expected
    monkeypatch.setattr(runs, "read_machine", lambda run: {"folder": "C:\\work", "run": "D:\\run"})
    assert runs.start_of(here) == "C:\\work"
    assert rank_zero.common_folder(["C:\\a.png", "D:\\b.png"]) == ""
    assert rank_zero.inside("C:\\a.png", "D:\\") == "C:\\a.png"
