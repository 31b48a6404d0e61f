"""COCO's metrics, by faster_coco_eval."""

import numpy as np

COCO_NAMES = (
    "AP",
    "AP50",
    "AP75",
    "AP_small",
    "AP_medium",
    "AP_large",
    "AR1",
    "AR10",
    "AR100",
    "AR_small",
    "AR_medium",
    "AR_large",
)


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
        image: (n,) number of each detection's image, from 0.
        rows: (n, 6) detections: x1, y1, x2, y2, score, class.
        label_image: (m,) number of each label's image.
        labels: (m, 7) x1, y1, x2, y2, class, crowd, area; COCO ignores crowd regions and measures
            sizes by the area.
        num_classes: C.
        max_det: Maximum detections per image that count.

    Returns:
        The metrics by COCO_NAMES (NaN where there is no such object), and the AP per class (C,),
        NaN without objects.
    """
    from faster_coco_eval import COCO, COCOeval_faster

    annotations = []
    for number, of_image, label in zip(
        range(1, len(labels) + 1), label_image.tolist(), labels.tolist(), strict=True
    ):
        x1, y1, x2, y2, kind, crowd, area = label
        annotation = {
            "id": number,
            "image_id": of_image,
            "category_id": kind,
            "iscrowd": int(crowd),
            "area": area,
            "bbox": [x1, y1, x2 - x1, y2 - y1],
        }
        annotations.append(annotation)
    images = [{"id": number} for number in np.union1d(image, label_image).tolist()]
    labelled = np.unique(labels[:, 4]).astype(int)
    categories = [{"id": kind, "name": str(kind)} for kind in labelled.tolist()]
    truth = COCO({"images": images, "annotations": annotations, "categories": categories})
    corner, opposite, score_and_class = np.split(rows.astype(float), (2, 4), 1)
    detections = np.column_stack((image, corner, opposite - corner, score_and_class))
    evaluation = COCOeval_faster(truth, truth.loadRes(detections), "bbox")
    evaluation.params.maxDets = [1, 10, max_det]
    evaluation.run()
    precision = np.asarray(evaluation.eval["precision"])[:, :, :, 0, -1]  # (IoU, recall, class)
    by_class = np.full(num_classes, np.nan)
    for k, number in enumerate(labelled):
        by_class[number] = precision[:, :, k].ravel().mean()
    by_class[by_class < 0] = np.nan
    stats = np.asarray(evaluation.stats[:12])
    stats[stats < 0] = np.nan
    return dict(zip(COCO_NAMES, stats.tolist(), strict=True)), by_class
