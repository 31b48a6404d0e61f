"""The command `anchors`."""

import contextlib
import json as json_
import sys
from pathlib import Path

import lightning as L

from boltbox.callbacks.autoanchor import AutoAnchor
from boltbox.detector.data.datamodule import DetectionData
from boltbox.detector.report.anchors import anchor_rows, no_anchors
from boltbox.detector.report.table import aligned
from boltbox.detector.system.atomic_file import write_atomically
from boltbox.detector.system.rank_zero import print_fact, rank_zero_print
from boltbox.detector.training.module import Detector
from boltbox.detector.weights.trained import take_anchors


def anchors(
    trainer: L.Trainer,
    model: Detector,
    datamodule: DetectionData,
    json: bool = False,
    ckpt_path: str | None = None,
) -> None:
    """Measure how well the anchors fit the training labels, and search better ones if they don't.

    Args:
        json: Print the report as JSON instead of a table.
        ckpt_path: Measure the anchors of this checkpoint: last, best, a run folder or a file.
    """
    run = Path(trainer.default_root_dir)
    with contextlib.redirect_stdout(sys.stderr) if json else contextlib.nullcontext():
        if ckpt_path:
            take_anchors(model.network, ckpt_path)
        if model.network.anchor_head() is None:
            rank_zero_print(no_anchors(model.network.head))
            return
        datamodule.trainer = trainer
        datamodule.prepare_data()
        datamodule.setup("fit")
        auto = next(c for c in trainer.callbacks if isinstance(c, AutoAnchor))  # type: ignore[attr-defined]
        _, report = auto.examine(model, datamodule)
        write_atomically(run / "anchors.json", json_.dumps(report, indent=1))
    if json:
        print(json_.dumps(report))
    else:
        table = aligned(anchor_rows(report))
        print_fact("anchors", report["reason"])
        rank_zero_print(f"{table}\n")
        if report["changed"]:
            rank_zero_print(f"to use them: {report['yaml']}")
        print_fact("report", run / "anchors.json")
