"""The command `report`, and what the end of a run calls."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from boltbox.detector.data.dataset_file import DatasetFile
from boltbox.detector.data.datasets import DetectionDataset
from boltbox.detector.report.folder import RunFiles
from boltbox.detector.report.page import Report
from boltbox.detector.system import trusted
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.rank_zero import rank_zero_print

SPLITS = {"fit": ("train", "val"), "validate": ("val",), "test": ("test",)}


def report(run: Path, trust_parts: bool = False) -> None:
    """A run's report, made anew from what lies in its folder: report.html, and its pictures in
    plots/.

    Args:
        run: Folder of a fit, validate or test, as runs/fit-1.
        trust_parts: Import a label format that the run names, whatever it is; else only boltbox's.
    """
    trusted.trust_parts(trust_parts)
    started = time.perf_counter()
    rank_zero_print(f"report: {make(run)} ({time.perf_counter() - started:.1f} s)")


def make(run: Path, datasets: Mapping[str, DetectionDataset] | None = None) -> Path:
    """Write the report; what the folder lacks is said in its place.

    Args:
        datasets: the run's splits, if they are open; else they are read again.

    Returns:
        The HTML file.

    Raises:
        InputError: the folder holds no run.
    """
    files = RunFiles.read(run)
    return Report(files, _open(files) if datasets is None else datasets).write()


def _open(files: RunFiles) -> Mapping[str, DetectionDataset] | str:
    """The splits that the run looked at, or why they cannot be opened."""
    source, command = files.option("data.dataset"), str(files.metrics.get("command", "fit"))
    if source is None:
        return "config.yaml is missing, or names no data set"
    try:
        format = files.option("data.format")
        if format and "." in str(format) and not trusted.may_import(str(format)):
            raise InputError(
                f"{files.path / 'config.yaml'}: {trusted.refusal('data.format', str(format))}"
            )
        file = DatasetFile.read(str(source), files.option("data.split"), format)
        datasets = {split: file.open(split) for split in SPLITS.get(command, ("val",))}
        for dataset in datasets.values():
            if files.option("data.single_class", False):
                dataset.merge_classes()
            dataset.check_classes()
    except (InputError, OSError) as e:
        return f"the data set cannot be opened: {e}"
    return datasets
