"""The command `anchors`."""

from pathlib import Path

import lightning as L

from boltbox.callbacks.autoanchor import AutoAnchor, no_anchors
from boltbox.detector.data.datamodule import DetectionData
from boltbox.detector.system.atomic_file import write_json
from boltbox.detector.system.rank_zero import print_fact, rank_zero_print
from boltbox.detector.training.module import Detector


def anchors(trainer: L.Trainer, model: Detector, datamodule: DetectionData) -> None:
    """Measure how well the anchors fit the training labels, and search better ones if they don't.

    --model.start.weights FILE measures those of a checkpoint.
    """
    if model.network.anchor_head() is None:
        rank_zero_print(no_anchors(model.network.head))
        return
    datamodule.trainer = trainer
    datamodule.prepare_data()
    datamodule.setup("fit")
    auto = next(c for c in trainer.callbacks if isinstance(c, AutoAnchor))  # type: ignore[attr-defined]
    choice, report = auto.examine(model, datamodule)
    print_fact("anchors", choice.reason)
    if choice.changed:
        new = report["after"]["anchors"]
        rank_zero_print(f"to use them: model: {{network: {{anchors: {new}}}}}")
    path = Path(trainer.default_root_dir) / "anchors.json"
    write_json(path, report)
    print_fact("report", path)
