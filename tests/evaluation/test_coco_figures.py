"""COCO's figures against pycocotools and hotcoco."""

import contextlib
import io
import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from made_detections import random_set
from made_labels import labels_of

from boltbox.detector.data.sample import Labels
from boltbox.detector.evaluation.coco import COCO_NAMES
from boltbox.detector.evaluation.metrics import DetectionMetrics


def evaluated(
    detections: list[np.ndarray], truths: list[Labels], num_classes: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The twelve figures and the precisions (IoU, recall, class, size, detections) of hotcoco, then
    of pycocotools."""
    import hotcoco
    import pycocotools.coco
    import pycocotools.cocoeval

    images = [
        {"id": i, "file_name": f"{i}.jpg", "width": 600, "height": 600} for i in range(len(truths))
    ]
    categories = [{"id": c, "name": str(c)} for c in range(num_classes)]

    def entries(numbers: list[int], boxes: list[np.ndarray], **more: list) -> list[dict[str, Any]]:
        rows = []
        for k, (i, b) in enumerate(zip(numbers, boxes, strict=True)):
            x1, y1, x2, y2 = (float(v) for v in b)
            row = {
                "id": k + 1,
                "image_id": i,
                "bbox": [x1, y1, x2 - x1, y2 - y1],
                "area": (x2 - x1) * (y2 - y1),
                "iscrowd": 0,
            }
            rows.append(row | {name: values[k] for name, values in more.items()})
        return rows

    def content(annotations: list[dict[str, Any]]) -> dict[str, Any]:
        return {"images": images, "annotations": annotations, "categories": categories}

    def indexed(content: dict[str, Any]) -> Any:
        coco = pycocotools.coco.COCO()
        coco.dataset = content
        coco.createIndex()
        return coco

    true = entries(
        [i for i, t in enumerate(truths) for _ in t.boxes],
        [b for t in truths for b in t.boxes],
        category_id=[int(c) for t in truths for c in t.classes],
        area=[float(a) for t in truths for a in t.area],
        iscrowd=[int(c) for t in truths for c in t.crowd],
    )
    rows = [(i, row) for i, found in enumerate(detections) for row in found]
    found = entries(
        [i for i, _ in rows],
        [row[:4] for _, row in rows],
        score=[float(row[4]) for _, row in rows],
        category_id=[int(row[5]) for _, row in rows],
    )
    whole = hotcoco.COCO(content(true))
    for evaluation in (
        # before pycocotools, which writes into the entries
        hotcoco.COCOeval(whole, whole.load_res(found), "bbox"),
        pycocotools.cocoeval.COCOeval(indexed(content(true)), indexed(content(found)), "bbox"),
    ):
        with contextlib.redirect_stdout(io.StringIO()):
            evaluation.evaluate()
            evaluation.accumulate()
            evaluation.summarize()
        yield np.array(evaluation.stats), np.array(evaluation.eval["precision"])


def check_coco(
    detections: list[np.ndarray], truths: list[Labels], num_classes: int
) -> dict[str, float]:
    metrics = DetectionMetrics(num_classes)
    metrics.update(detections, truths, range(len(truths)))
    result = metrics.compute()
    ours = {name: result.summary[f"coco/{name}"] for name in COCO_NAMES}
    by_class = result.coco_by_class
    (also, also_precision), (stats, precision) = evaluated(detections, truths, num_classes)
    assert np.array_equal(also, stats), "hotcoco and pycocotools agree to the bit"
    assert np.array_equal(also_precision.reshape(precision.shape), precision)
    theirs = dict(zip(COCO_NAMES, np.where(stats == -1, math.nan, stats), strict=True))
    every = precision[:, :, :, 0, 2].transpose(2, 0, 1).reshape(num_classes, -1)
    theirs_by_class = [p[p > -1].mean() if (p > -1).any() else math.nan for p in every]
    assert ours == pytest.approx(theirs, abs=1e-12, rel=0, nan_ok=True)
    np.testing.assert_allclose(by_class, theirs_by_class, rtol=0, atol=1e-12)
    return ours


SETS: dict[str, dict[str, Any]] = {
    "one class": {"classes": 1, "most_objects": 8},
    "empty images": {"empty": 0.5, "images": 8},
    "everything": {"crowds": 0.2, "ties": True, "empty": 0.2, "areas": True},
}


@pytest.mark.parametrize("kind", SETS)
def test_coco_figures_are_those_of_pycocotools(kind: str) -> None:
    rng = np.random.default_rng(list(SETS).index(kind))
    classes = SETS[kind].get("classes", 3)
    sets = [random_set(rng, **SETS[kind]) for _ in range(25)]
    # two classes have no objects
    found = [check_coco(*s, num_classes=classes + 2)["AP"] for s in sets]
    assert np.nanmedian(found) > 0.1, "sets that say something"


def test_coco_figures_with_more_than_100_detections() -> None:
    """Of an image and class only the best 100 count, so a true one among the rest does not."""
    detections, truths = random_set(
        np.random.default_rng(0), images=3, classes=2, clutter=500, most_objects=10
    )
    assert max(Counter(d[:, 5]).most_common(1)[0][1] for d in detections) > 100
    check_coco(detections, truths, 2)
    spread = np.array(
        [[20 * i, 0, 20 * i + 10, 10, 1 - i / 200, 0] for i in range(101)], np.float32
    )
    last = [labels_of(spread[-1:, :4], [0], 10, 3000)]
    assert check_coco([spread], last, 1)["AR100"] == 0
    assert check_coco([spread[1:]], last, 1)["AR100"] == 1


def test_coco_figures_where_there_is_nothing() -> None:
    (found, *_), (true, *_) = random_set(np.random.default_rng(0), images=1, most_objects=8)
    nothing = found[:0]
    no_labels = labels_of([], [], 600, 600)
    crowd = labels_of(true.boxes, true.classes, 600, 600, crowd=np.ones(len(true.boxes)))
    assert math.isnan(check_coco([nothing], [no_labels], 3)["AP"])
    assert math.isnan(check_coco([found], [no_labels], 3)["AP"])
    assert math.isnan(check_coco([found], [crowd], 3)["AP"])
    assert math.isnan(check_coco([nothing], [crowd], 3)["AP"])
    assert check_coco([nothing, nothing], [true, no_labels], 3)["AP"] == 0
    assert check_coco([nothing, found], [true, no_labels], 3)["AP"] == 0


@pytest.mark.parametrize("width", [10, 50, 200])
def test_coco_figures_of_a_size_that_does_not_occur(width: int) -> None:
    """Without any detection, too, the figures of the other two sizes do not exist."""
    true = labels_of([[0, 0, width, width]], [0], 600, 600)
    figures = check_coco([np.zeros((0, 6), np.float32)], [true], 1)
    assert sum(math.isnan(figures[f"AP_{size}"]) for size in ("small", "medium", "large")) == 2
