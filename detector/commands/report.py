"""The command `report`."""

import time
from pathlib import Path

from boltbox.detector.checkpoint.runs import check_run
from boltbox.detector.report.page import write_report
from boltbox.detector.system.rank_zero import rank_zero_print


def report(run: Path) -> None:
    """A run's report, written again from what lies in its folder: report.html, and its pictures in
    plots/.

    Args:
        run: Folder of a fit, validate or test, as runs/fit-1.
    """
    check_run(run)
    started = time.perf_counter()
    rank_zero_print(f"report: {write_report(run)} ({time.perf_counter() - started:.1f} s)")
