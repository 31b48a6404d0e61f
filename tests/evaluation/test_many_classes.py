"""Ten thousand classes, of which a dataset shows two: memory goes by what was seen."""

import tracemalloc

import numpy as np
from made_labels import labels_of

from boltbox.detector.evaluation.metrics import DetectionMetrics
from boltbox.detector.report.charts import draw_confusion

NAMES = [f"class {k}" for k in range(10_000)]


def test_the_metrics_take_memory_by_what_was_seen(tmp_path):
    """A matrix of all classes would take 800 MB, and COCO's table of precisions 970 MB."""
    metrics = DetectionMetrics(len(NAMES))
    boxes = np.array([[0, 0, 9, 9], [20, 20, 40, 40]], np.float32)
    for i in range(4):
        found = np.column_stack((boxes, [0.9, 0.8], [9999 - i, 5000])).astype(np.float32)
        metrics.update([found], [labels_of(boxes, [9999, 5000], 64, 64)], [i])
    tracemalloc.start()
    result = metrics.compute()
    confused = result.record.confused_pairs(len(NAMES))
    draw_confusion(confused, NAMES, tmp_path / "matrix.png")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100e6
    assert result.summary["coco/AP50"] > 0.5
    assert np.isnan(result.coco_by_class).sum() == 9998
    assert len(confused) == 8
