"""COCO's metrics, by faster_coco_eval."""

import contextlib
import io

import numpy as np

COCO_NAMES = (
    *("AP", "AP50", "AP75", "AP_small", "AP_medium", "AP_large"),
    *("AR1", "AR10", "AR100", "AR_small", "AR_medium", "AR_large"),
)
# square pixels, both ends included
COCO_AREAS = {"small": (0, 32**2), "medium": (32**2, 96**2), "large": (96**2, np.inf)}


def coco_metrics(
    image: np.ndarray,
    rows: np.ndarray,
    label_image: np.ndarray,
    labels: np.ndarray,
    num_classes: int,
    max_det: int = 100,
) -> tuple[dict[str, float], np.ndarray]:
    """COCO's twelve metrics, equal to pycocotools.

    Args:
        image (n,): numbers from 0 of the detections' images.
        rows (n, 6): x1, y1, x2, y2, score, class.
        label_image (m,): likewise of the labels.
        labels (m, 7): x1, y1, x2, y2, class, crowd, area; crowd regions are ignored as COCO says,
            sizes go by the area.
        max_det: most detections an image that count.

    Returns:
        The metrics by COCO_NAMES (NaN where there is no such object), and AP by class (C,), NaN
            without objects.
    """
    from faster_coco_eval import COCO, COCOeval_faster

    # The evaluator needs a label and a detection: these, in a crowd of an image of their own, are
    # ignored.
    end = max([*image, *label_image], default=-1) + 1
    image, label_image = np.append(image, end), np.append(label_image, end)
    rows = np.concatenate((rows, [(0, 0, 9, 9, 0, 0)])).astype(float)
    labels = np.concatenate((labels, [(0, 0, 9, 9, 0, 1, 81)])).astype(float)
    for boxes in (rows, labels):
        boxes[:, 2:4] -= boxes[:, :2]  # width and height
    annotations = [
        {"id": k, "image_id": i, "category_id": c, "bbox": box, "area": area, "iscrowd": int(crowd)}
        for k, (i, (*box, c, crowd, area)) in enumerate(
            zip(label_image.tolist(), labels.tolist(), strict=True), 1
        )
    ]
    labelled = np.unique(labels[:, 4]).astype(int)
    with contextlib.redirect_stdout(io.StringIO()):
        truth_set = COCO()
        truth_set.dataset = {
            "info": {},
            "images": [{"id": i} for i in range(end + 1)],
            "annotations": annotations,
            "categories": [{"id": c, "name": str(c)} for c in labelled.tolist()],
        }
        truth_set.createIndex()
        found = truth_set.loadRes(np.column_stack((image, rows)))
        evaluation = COCOeval_faster(truth_set, found, "bbox")
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
