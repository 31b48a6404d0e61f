"""COCO's metrics, by faster_coco_eval."""

import contextlib
import io
from typing import Any

import numpy as np

from boltbox.detector.data.sample import Labels
from boltbox.detector.system.garbage import without_garbage_collection

COCO_NAMES = (
    *("AP", "AP50", "AP75", "AP_small", "AP_medium", "AP_large"),
    *("AR1", "AR10", "AR100", "AR_small", "AR_medium", "AR_large"),
)
# square pixels, both ends included
COCO_AREAS = {"small": (0, 32**2), "medium": (32**2, 96**2), "large": (96**2, np.inf)}


def coco_metrics(
    detections: list[np.ndarray], truths: list[Labels], num_classes: int, max_det: int = 100
) -> tuple[dict[str, float], np.ndarray]:
    """COCO's twelve metrics, equal to pycocotools. Only classes with labels are evaluated: the
    others do not count.

    Args:
        detections: per image (n, 6) x1, y1, x2, y2, score, class.
        truths: per image Labels; crowd regions are ignored as COCO says, sizes go by `area`.
        max_det: most detections an image that count.

    Returns:
        The metrics by COCO_NAMES (NaN where there is no such object), and AP by class (C,), NaN
            without objects.
    """
    from faster_coco_eval import COCO, COCOeval_faster

    annotations: list[dict[str, Any]] = []
    results = []
    for i, (found, truth) in enumerate(zip(detections, truths, strict=True)):
        for box, c, crowd, area in zip(
            truth.boxes, truth.classes, truth.crowd, truth.area, strict=True
        ):
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": i,
                    "category_id": int(c),
                    "bbox": [
                        *box[:2].tolist(),
                        *(box[2:].astype(float) - box[:2].astype(float)).tolist(),
                    ],
                    "area": float(area),
                    "iscrowd": int(crowd),
                }
            )
        f = found.astype(float)
        results.append(
            np.column_stack([np.full(len(f), i), f[:, :2], f[:, 2:4] - f[:, :2], f[:, 4], f[:, 5]])
        )
    labelled = sorted({a["category_id"] for a in annotations})
    rows = np.concatenate(results) if results else np.zeros((0, 7))
    rows = rows[np.isin(rows[:, 6], labelled)]
    if not annotations or not len(rows):  # the evaluator wants at least one of each
        real = [a for a in annotations if not a["iscrowd"]]
        present = np.isin(np.arange(num_classes), [a["category_id"] for a in real])
        metrics = {}
        for name in COCO_NAMES:
            low, high = COCO_AREAS.get(name.partition("_")[2], (0, np.inf))
            metrics[name] = 0.0 if any(low <= a["area"] <= high for a in real) else np.nan
        return metrics, np.where(present, 0.0, np.nan)
    with contextlib.redirect_stdout(io.StringIO()), without_garbage_collection():
        truth_set = COCO()
        truth_set.dataset = {
            "info": {},
            "images": [{"id": i} for i in range(len(truths))],
            "annotations": annotations,
            "categories": [{"id": c, "name": str(c)} for c in labelled],
        }
        truth_set.createIndex()
        evaluation = COCOeval_faster(truth_set, truth_set.loadRes(rows), "bbox")
        evaluation.params.maxDets = [1, 10, max_det]
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    stats = np.asarray(evaluation.stats[:12], float)
    precision = np.asarray(evaluation.eval["precision"])[:, :, :, 0, -1]  # (IoU, recall, class)
    by_class = np.full(num_classes, np.nan)
    by_class[labelled] = [
        p[p > -1].mean() if (p > -1).any() else np.nan for p in precision.transpose(2, 0, 1)
    ]
    return dict(zip(COCO_NAMES, np.where(stats < 0, np.nan, stats).tolist(), strict=True)), by_class
