"""The command `report`."""

import time
from pathlib import Path

from boltbox.detector.checkpoint.runs import check_run, latest_fits
from boltbox.detector.report.page import write_report
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.rank_zero import print_fact


def report(runs: list[str]) -> None:
    """Write the reports of runs again from the files in their folders: report.html, and its
    pictures in plots/.

    Args:
        runs: Folders of fit, validate or test, as runs/fit-1; default: the most recent fit.
    """
    if not runs:
        runs = latest_fits(1)
    if not runs:
        raise InputError("report needs the folder of a run, as runs/fit-1")
    for run in runs:
        check_run(Path(run))
        started = time.perf_counter()
        page = write_report(Path(run))
        print_fact("report", f"{page} ({time.perf_counter() - started:.1f} s)")
