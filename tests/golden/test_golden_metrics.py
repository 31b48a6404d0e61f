"""Non-maximum suppression, matching, average precision, confusion matrix."""

import numpy as np
import torch
from golden.cases import close, each
from made_labels import labels_of
from made_runs import column
from torch.nn.functional import one_hot

from boltbox.detector.evaluation.class_metrics import class_metrics
from boltbox.detector.evaluation.coco import coco_metrics
from boltbox.detector.evaluation.confusion import confused_pairs, confusion_matrix
from boltbox.detector.evaluation.matching import match
from boltbox.detector.evaluation.metrics import DetectionMetrics
from boltbox.detector.model.boxes import area_xyxy
from boltbox.detector.model.postprocess import nms

FIGURES = ("P", "R", "mAP50", "mAP50-95")


@each("nms")
def test_nms(case):
    """With YOLOv5's rounding; YOLOv5's time limit is not copied."""
    decoded = case.tensor("in_pred")
    for k, setting in enumerate(case.meta["settings"]):
        each_image = list(decoded)
        if setting["labels"]:  # boxes that are certain: further rows
            image, label, *box = case.tensor("in_labels").T
            ones = torch.ones_like(label)
            certain = torch.column_stack((*box, ones, one_hot(label.long(), decoded.shape[2] - 5)))
            each_image = [
                torch.cat((rows, certain[image == i])) for i, rows in enumerate(each_image)
            ]
        options = {name: value for name, value in setting.items() if name != "labels"}
        found = nms(each_image, rounded=True, **options)
        counts = case[f"out_n_{k}"]
        assert list(map(len, column(found, "boxes"))) == counts.tolist()
        theirs = np.split(case[f"out_det_{k}"], np.cumsum(counts)[:-1])
        for f, t in zip(found, theirs, strict=True):
            ours = torch.column_stack((*f.boxes.T, f.scores, f.classes)).numpy()
            # rows of score 1 have no order
            ours, t = (r[np.lexsort((r[:, 0], -r[:, 4]))] for r in (ours, t))
            close(ours[:, :4], t[:, :4], 1e-3)
            close(ours[:, 4:], t[:, 4:], 1e-6)


@each("ap")
def test_average_precision(case):
    figures = class_metrics(
        case["in_tp"], case["in_conf"], case["in_pred_cls"], case["in_target_cls"]
    )
    _compare(figures, case)


@each("boxes")
def test_boxes_to_metrics(case):
    found = case["in_det"]
    labels = case["in_labels"]
    nc = case.meta["nc"]
    limits = {"conf": case.meta["confusion_conf"], "iou": case.meta["confusion_iou"]}
    hits = []
    pairs = []
    metrics = DetectionMetrics(nc)
    for i in range(case.meta["n_images"]):
        d = found[case["in_det_image"] == i]
        t = labels[case["in_label_image"] == i]
        if len(d):
            hits.append(match(d[:, :4], d[:, 5], t[:, 1:], t[:, 0]))
        if len(t):  # YOLOv5 leaves images without labels out
            columns = d[:, :4], d[:, 4], d[:, 5], t[:, 1:], t[:, 0]
            confused = confused_pairs(*columns, nc, **limits)
            if not (confused < nc).all(1).any():  # YOLOv5 leaves out false positives
                confused = confused[confused[:, 1] < nc]
            pairs.append(confused)
        metrics.update([d], [labels_of(t[:, 1:], t[:, 0], 10**6, 10**6)], [i])
    assert np.array_equal(np.concatenate(hits), case["out_correct"])
    matrix = confusion_matrix(np.concatenate(pairs), nc, range(nc))
    close(matrix, case["out_confusion"], 0)
    true = np.column_stack((labels[:, 1:], labels[:, 0], np.zeros(len(labels))))
    true = np.column_stack((true, area_xyxy(labels[:, 1:])))
    wide, _ = coco_metrics(
        case["in_det_image"], found, case["in_label_image"], true, nc, max_det=300
    )
    close([wide["AP"], wide["AP50"]], case["out_coco_maxdet300_ap_ap50"], 1e-6)
    result = metrics.compute()
    if "out_ap" in case.arrays:
        _compare(result.by_class, case)
    close(list(map(result.summary.get, FIGURES)), case["out_summary"], 1e-6)
    close([result.summary["coco/AP"], result.summary["coco/AP50"]], case["out_coco_ap_ap50"], 1e-6)
    close(result.class_maps(), case["out_maps"], 1e-6)


def _compare(figures, case):
    names = {
        "p": "precision",
        "r": "recall",
        "ap": "ap",
    }
    for theirs, ours in names.items():
        close(getattr(figures, ours), case[f"out_{theirs}"], 1e-9)
    assert np.array_equal(figures.classes, case["out_classes"])
    summary = figures.summary()
    close(list(map(summary.get, FIGURES)), case["out_summary"], 1e-9)
    close(summary["fitness"], case["out_fitness"].item(), 1e-9)
