"""The command `anchors`."""

import contextlib
import json as json_
import sys
from pathlib import Path

import lightning as L

from callbacks.autoanchor import AutoAnchor, save_report
from detector.data.datamodule import DetectionData
from detector.module import Detector
from detector.trained import take_anchors


def anchors(
    trainer: L.Trainer, model: Detector, datamodule: DetectionData, json: bool = False, ckpt_path: str | None = None
) -> None:
    """How well the anchors fit the training labels, and better ones if they don't; trains nothing.

    Args:
        json: Print the report as JSON instead of a table.
        ckpt_path: Measure the anchors of this checkpoint (last, best or a file).
    """
    run = Path(trainer.default_root_dir)
    with contextlib.redirect_stdout(sys.stderr) if json else contextlib.nullcontext():
        if ckpt_path:
            take_anchors(model, ckpt_path)
        datamodule.trainer = trainer
        datamodule.prepare_data()
        datamodule.setup("fit")
        examiner = next(c for c in trainer.callbacks if isinstance(c, AutoAnchor))  # type: ignore[attr-defined]
        report = examiner.examine(model, datamodule)
        save_report(report, run)
    if json:
        print(json_.dumps({**report.content(), "yaml": report.yaml_line()}))
    else:
        print(f"{report.choice.reason}\n{report.table()}\n\nto use them: {report.yaml_line()}")
        print(f"report: {run}")
