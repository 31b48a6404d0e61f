"""Nothing is left out silently."""

from importlib import import_module
from pathlib import Path

from golden import cases
from made_runs import column

for module in Path(__file__).parent.glob("test_golden_*.py"):
    import_module(f"golden.{module.stem}")  # each enters its kinds into cases.TAKEN

# kinds of the json files, which hold many cases each
BY_HAND = {"models", "param_groups", "labels"}


def test_every_case_is_tested_or_listed():
    forgotten = [
        c.path.name
        for c in cases.ALL
        if c.kind not in cases.TAKEN | BY_HAND and not cases.uncovered(c)
    ]
    assert not forgotten, f"no test takes {forgotten}; add one, or a reason to golden/cases.py"


def test_the_committed_slice_holds_every_kind():
    """A newcomer without the shared folder still checks everything but the long training traces and
    the real checkpoints."""
    kinds = {c.kind for c in cases._find() if (cases.SLICE / c.path.name).exists()}
    assert (cases.TAKEN | BY_HAND) - kinds <= {"e2e", "checkpoint"}
    size = sum(p.stat().st_size for p in cases.SLICE.iterdir())
    assert size < 2_000_000
    assert set(column(cases.SLICE.iterdir(), "suffix")) <= {".npz", ".json"}
