"""AutoAnchor: measure how well the anchors fit the labels, and find better ones where they
don't."""

from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch

from boltbox.detector.data.datamodule import DetectionData
from boltbox.detector.model.anchors import Choice, choose_anchors, measure
from boltbox.detector.report.anchors import anchor_report, anchor_rows, no_anchors
from boltbox.detector.report.table import aligned
from boltbox.detector.system.atomic_file import write_json
from boltbox.detector.system.ranges import ClosedUnitInterval
from boltbox.detector.system.rank_zero import print_fact, rank_zero_print
from boltbox.detector.training.module import Detector
from boltbox.detector.training.trainer_data import data_of

FRESH, TRAINED = 0.98, 0.8  # limits of BPR: YOLOv5's, and for anchors that boxes were trained with


class AutoAnchor(L.Callback):
    """Before a new training: anchors that fit the labels badly at this image size are replaced, if
    better ones are found.

    New anchors are made for the augmented labels (mosaic, scale, ...), as training sees them, and
    accepted only if neither best possible recall nor fitness falls, on the labels and on these.
    Anchors that model.network.anchors lists are measured and kept; `model.network.anchors: N` asks
    for N new ones per level. A resumed run keeps those of its checkpoint. The report is written to
    anchors.json.

    Args:
        enabled: Off: the anchors stay as they are.
        bpr_limit: Anchors with a best possible recall above this are kept; none: above 0.98, as
            in YOLOv5, or above 0.8 where the head's boxes were trained with them.
    """

    def __init__(self, enabled: bool = True, bpr_limit: ClosedUnitInterval | None = None) -> None:
        self.enabled, self.bpr_limit = enabled, bpr_limit

    def on_fit_start(self, trainer: L.Trainer, pl_module: Detector) -> None:
        """After a checkpoint is restored, before EMA copies the network (on_train_start)."""
        if not self.enabled:
            return
        head = pl_module.network.anchor_head()
        if head is None:
            rank_zero_print(no_anchors(pl_module.network.head))
            return
        if trainer.ckpt_path:
            print_fact("anchors", "those of the checkpoint; AutoAnchor is skipped")
            return
        data = data_of(trainer, "anchors stay as they are; they are not compared with the labels")
        if data is None:
            return
        found = self.examine(pl_module, data) if trainer.is_global_zero else None
        result = found and (found[0].changed, found[0].anchors.tolist())
        changed, anchors = trainer.strategy.broadcast(result)  # type: ignore[misc]
        if changed:
            head.set_anchors(torch.tensor(anchors))
        if found is None:
            return
        choice, report = found
        print_fact("anchors", f"{'warning: ' if choice.warning else ''}{choice.reason}")
        if changed:
            rank_zero_print(aligned(anchor_rows(report)))
        write_json(Path(trainer.default_root_dir) / "anchors.json", report)

    def examine(self, detector: Detector, data: DetectionData) -> tuple[Choice, dict[str, Any]]:
        """Measure the detector's anchors, of a head that has some, on the training labels, and
        choose; nothing is changed. With the choice the content of anchors.json."""
        network, head = detector.network, detector.network.anchor_head()
        assert head is not None
        anchor_t = detector.options.loss.anchor_t
        asked = detector.options.network.anchors
        dataset = data.datasets["train"]
        sizes = dataset.object_sizes(data.image_size)[~dataset.labels.crowd]
        before = head.anchors_px.cpu().numpy().astype(float)
        bpr, seen = measure(before.reshape(-1, 2), sizes, anchor_t).bpr, None
        limit = self.bpr_limit
        if limit is None:
            limit = TRAINED if detector.loaded.has_head else FRESH
        fits = bpr > limit
        if isinstance(asked, list):
            below = "" if fits else f", below {limit:g}"
            reason = f"those of model.network.anchors (BPR {bpr:.4f}{below})"
            choice = Choice(before, False, reason, warning=not fits)
        else:
            force = isinstance(asked, int)
            if force or not fits:
                print_fact(
                    "anchors", f"BPR {bpr:.4f}, searching better ones for {len(sizes)} boxes"
                )
                seen = data.train_samples.object_sizes(512)
            how = {"bpr_limit": limit, "seed": data.seed, "force": force}
            choice = choose_anchors(before, network.strides, sizes, seen, anchor_t, **how)
        seen = np.zeros((0, 2)) if seen is None else seen
        return choice, anchor_report(before, choice, network.strides, sizes, seen, anchor_t)
