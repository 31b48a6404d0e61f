"""Ten thousand classes, of which a data set shows five: memory goes by what was seen, and the
report is written."""

import contextlib
import os
import resource
import tracemalloc
from pathlib import Path
from shlex import split

import numpy as np
import yaml
from made_labels import labels_of
from small_fit import small_fit

import cli
from boltbox.detector.evaluation.confusion import mistaken_classes
from boltbox.detector.evaluation.metrics import DetectionMetrics
from boltbox.detector.report.charts import draw_confusion

NAMES = [f"class {k}" for k in range(10_000)]


def many(data: Path, folder: Path) -> Path:
    """The same data set with more names; its labels use five of them."""
    content = yaml.safe_load(data.read_text()) | {"nc": len(NAMES)}
    path = folder / "many.yaml"
    path.write_text(yaml.safe_dump({**content, "path": str(data.parent), "names": NAMES}))
    return path


def test_a_training_with_its_report(small_data: Path, tmp_path: Path) -> None:
    """In a process of its own, whose memory is the least of what this one has, and the training's.
    The network's head has 30,000 outputs; a matrix of all classes would be 800 MB."""
    limits = "--trainer.max_epochs 1 --trainer.limit_train_batches 1 --trainer.limit_val_batches 1"
    line = small_fit(many(small_data, tmp_path), tmp_path / "run", *split(limits))
    line += split("--report.enabled true --data.batch_size 2")
    before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() // 2**20
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            with open(tmp_path / "told.txt", "w") as told, contextlib.redirect_stdout(told):
                cli.main(line)
            code = 0
        finally:
            os._exit(code)
    _, status, used = os.wait4(pid, 0)
    assert status == 0
    assert "warning" not in (tmp_path / "told.txt").read_text()
    assert (tmp_path / "run/report.html").is_file()
    assert (tmp_path / "run/plots/confusion_matrix.png").is_file()
    assert used.ru_maxrss // 1024 < before + 600  # MB


def test_the_figures_take_memory_by_what_was_seen(tmp_path: Path) -> None:
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
    mistaken = mistaken_classes(confused, len(NAMES))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100e6
    assert result.summary["coco/AP50"] > 0.5
    assert np.isnan(result.coco_by_class).sum() == 9998
    assert len(confused) == 8
    assert mistaken == [[9999, 9996, 1], [9999, 9997, 1], [9999, 9998, 1]]
