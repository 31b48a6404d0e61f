"""Collections of cyclic garbage: none within imports, ours and the user's objects end as ever."""

import gc
import subprocess
import sys
from pathlib import Path

import pytest

from boltbox.detector.system.garbage import without_garbage_collection

ROOT = Path(__file__).parents[2]


def test_collections_go_on_after_an_error() -> None:
    @without_garbage_collection()
    def fail() -> None:
        assert not gc.isenabled()
        raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert gc.isenabled()


def test_a_command_ends_in_order_and_says_nothing_of_what_it_left(tmp_path: Path) -> None:
    """What was imported is not looked at again; what a command made is: files are written out,
    registered functions called, and what they print on standard error is read."""
    script = f"""
import atexit, gc, sys
sys.argv = ["cli.py", "validate", "--ckpt_path", {str(tmp_path / "none.ckpt")!r}]
import cli

class Cycle:
    def __init__(self, name):
        self.me, self.file = self, open(name, "w")
        self.file.write("all of it")

try:
    cli.run()
except SystemExit as e:
    print("exit", e.code)
assert gc.isenabled() and gc.get_freeze_count() > 100_000
left = Cycle({str(tmp_path / "left.txt")!r})
atexit.register(lambda: print("last words", file=sys.stderr))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "exit 2\n"
    error, last = done.stderr.splitlines()
    assert "none.ckpt" in error
    assert last == "last words"
    assert (tmp_path / "left.txt").read_text() == "all of it"
