"""COCO's metrics, by faster_coco_eval."""

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

    labelled = np.unique(labels[:, 4]).astype(int)
    annotations = [
        {
            "id": k,
            "image_id": i,
            "category_id": c,
            "iscrowd": int(crowd),
            "area": area,
            "bbox": [x1, y1, x2 - x1, y2 - y1],
        }
        for k, (i, (x1, y1, x2, y2, c, crowd, area)) in enumerate(
            zip(label_image.tolist(), labels.tolist(), strict=True), 1
        )
    ]
    images = [{"id": i} for i in np.union1d(image, label_image).tolist()]
    categories = [{"id": c, "name": str(c)} for c in labelled.tolist()]
    truth = COCO({"images": images, "annotations": annotations, "categories": categories})
    corner, opposite, score_and_class = np.split(rows.astype(float), (2, 4), 1)
    found = truth.loadRes(np.column_stack((image, corner, opposite - corner, score_and_class)))
    evaluation = COCOeval_faster(truth, found, "bbox")
    evaluation.params.maxDets = [1, 10, max_det]
    evaluation.run()
    precision = np.asarray(evaluation.eval["precision"])[:, :, :, 0, -1]  # (IoU, recall, class)
    by_class = np.full(num_classes, -1.0)
    by_class[labelled] = [p.ravel().mean() for p in precision.transpose(2, 0, 1)]
    stats = np.asarray(evaluation.stats[:12])
    stats[stats < 0] = by_class[by_class < 0] = np.nan
    return dict(zip(COCO_NAMES, stats.tolist(), strict=True)), by_class
