"""AutoAnchor: measure how well the anchors fit the labels, and find better ones where they
don't."""

from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch

from boltbox.detector.data.datamodule import DetectionData
from boltbox.detector.model.anchors import Choice, measure, search_anchors
from boltbox.detector.model.head import Head
from boltbox.detector.system.atomic_file import write_json
from boltbox.detector.system.ranges import ClosedUnitInterval
from boltbox.detector.system.rank_zero import print_fact, rank_zero_print
from boltbox.detector.training.module import Detector
from boltbox.detector.training.trainer_data import data_of

# anchors with a best possible recall (BPR) above these are kept
FRESH = 0.98  # as in YOLOv5
TRAINED = 0.8  # where the head's boxes were trained with them


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
        self.enabled = enabled
        self.bpr_limit = bpr_limit

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
        anchors = None  # the new ones
        if trainer.is_global_zero:
            choice, report = self.examine(pl_module, data)
            print_fact("anchors", choice.reason)
            if choice.changed:
                anchors = choice.anchors.tolist()
            write_json(Path(trainer.default_root_dir) / "anchors.json", report)
        anchors = trainer.strategy.broadcast(anchors)
        if anchors is not None:
            head.set_anchors(torch.tensor(anchors))

    def examine(self, detector: Detector, data: DetectionData) -> tuple[Choice, dict[str, Any]]:
        """Measure the anchors on the training labels, and choose; nothing is changed.

        Args:
            detector: One whose head has anchors.
            data: Set up for a fit.

        Returns:
            The choice, and the content of anchors.json.
        """
        network = detector.network
        head = network.anchor_head()
        assert head is not None
        anchor_t = detector.options.loss.anchor_t
        option = detector.options.network.anchors
        dataset = data.datasets["train"]
        sizes = dataset.labels.object_sizes(data.image_size, data.tile_size)
        sizes = sizes[~dataset.labels.crowd]
        before = head.anchors_px.cpu().numpy().astype(float)
        fit_before = measure(before.reshape(-1, 2), sizes, anchor_t)
        limit = self.bpr_limit
        if limit is None:
            limit = TRAINED if detector.loaded.has_head else FRESH
        bpr = fit_before.bpr
        fits = bpr > limit
        if not isinstance(option, int | None):
            choice = Choice(before, False, f"those of model.network.anchors (BPR {bpr:.4f})")
        elif fits and option is None:
            reason = f"kept, as they fit the labels (BPR {bpr:.4f} > {limit:g})"
            choice = Choice(before, False, reason)
        else:
            print_fact("anchors", f"searching better ones for {len(sizes)} boxes")
            augmented = data.train_samples.object_sizes(512)
            bases = [augmented, sizes] if len(augmented) else [sizes]
            choice = search_anchors(before, network.strides, bases, anchor_t, data.seed)
        if not (fits or choice.changed):
            choice = choice._replace(reason=f"warning: {choice.reason}")
        fit_after = measure(choice.anchors.reshape(-1, 2), sizes, anchor_t)
        report = {
            "reason": choice.reason,
            "changed": choice.changed,
            "before": fit_before._asdict() | {"anchors": _as_lists(before)},
            "after": fit_after._asdict() | {"anchors": _as_lists(choice.anchors)},
        }
        return choice, report


def no_anchors(head: Head) -> str:
    """What is printed of a head without anchors."""
    return f"anchors: {type(head).__name__} has none, so there is nothing to fit to the labels"


def _as_lists(anchors: np.ndarray) -> list[list[float]]:
    """(levels, A, 2) -> a list of 2 A numbers per level."""
    return anchors.reshape(len(anchors), -1).round(2).tolist()
