"""Decoding and non-maximum suppression, against loops over cells and over all pairs of
candidates."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from hypothesis import given, settings
from hypothesis import strategies as st
from made_heads import head_of
from made_labels import labels_of
from torch import Tensor

from boltbox.detector.data.sample import LetterboxInfo, Sample, collate
from boltbox.detector.inference.detections import Detections
from boltbox.detector.inference.predictor import Predictor
from boltbox.detector.model import postprocess
from boltbox.detector.model.network import NetworkOptions
from boltbox.detector.model.postprocess import NMSResult, nms
from boltbox.detector.training.module import Detector
from boltbox.detector.training.validation import VALIDATION


def test_decode_is_the_loop_over_cells() -> None:
    """Specification 1.5: rows by level, anchor, row, column; on maps that are not square."""
    rng = torch.Generator().manual_seed(0)
    shapes = [(3, 5), (2, 3), (1, 2)]
    strides = [8, 16, 32]
    classes = 2
    anchors = torch.rand(3, 2, 2, generator=rng) * 4 + 0.1
    raw = [torch.randn(2, 2, h, w, 5 + classes, generator=rng) * 3 for h, w in shapes]
    rows: list[list[list[float]]] = [[], []]
    for level, (height, width) in enumerate(shapes):
        for b in range(2):
            for a in range(2):
                for j in range(height):
                    for i in range(width):
                        y = [1 / (1 + math.exp(-v)) for v in raw[level][b, a, j, i].tolist()]
                        w, h = (anchors[level, a] * strides[level]).tolist()
                        centre = [
                            (2 * y[0] - 0.5 + i) * strides[level],
                            (2 * y[1] - 0.5 + j) * strides[level],
                        ]
                        rows[b].append([*centre, (2 * y[2]) ** 2 * w, (2 * y[3]) ** 2 * h, *y[4:]])
    decoded = head_of(anchors, strides).decode(raw)
    assert decoded.shape == (2, 2 * (15 + 6 + 2), 7)
    np.testing.assert_allclose(decoded, rows, rtol=1e-5, atol=1e-4)


def test_decode_by_hand() -> None:
    """Logits of 0: the centre of the cell, the size of the anchor, probability one half."""
    decoded = head_of(torch.tensor([[[2.0, 0.5]]]), [16]).decode([torch.zeros(1, 1, 2, 3, 6)])
    assert decoded[0, :, :2].tolist() == [[8, 8], [24, 8], [40, 8], [8, 24], [24, 24], [40, 24]]
    assert decoded[0, :, 2:].tolist() == [[32, 8, 0.5, 0.5]] * 6


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_decode_computes_in_float32(dtype: torch.dtype) -> None:
    raw = [torch.randn(1, 3, 4, 4, 6, generator=torch.Generator().manual_seed(0)).to(dtype)]
    head = head_of(torch.rand(1, 3, 2), [64])
    decoded = head.decode(raw)
    assert decoded.dtype == torch.float32
    assert torch.equal(decoded, head.decode([raw[0].float()]))


def slow_nms(
    rows: Sequence[Sequence[float]],
    conf: float,
    iou: float,
    max_det: int,
    multi_label: bool,
    agnostic: bool = False,
    classes: list[int] | None = None,
    limit: int = 30_000,
) -> list[tuple]:
    """One image, one full pass: (x1, y1, x2, y2, score, class), best first. Exact for the numbers
    of these tests."""
    candidates = []
    for cx, cy, w, h, objectness, *likely in rows:
        scores = [objectness * s for s in likely]
        if objectness > conf:
            for c, s in enumerate(scores):
                if (
                    s > conf
                    and (multi_label or c == scores.index(max(scores)))
                    and (classes is None or c in classes)
                ):
                    candidates.append((cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2, s, c))
    candidates.sort(key=lambda found: -found[4])
    kept: list[tuple] = []
    for one in candidates[:limit]:
        if all(overlap(one, other) <= iou for other in kept if agnostic or other[5] == one[5]):
            kept.append(one)
    return kept[:max_det]


def overlap(a: tuple, b: tuple) -> float:
    shared = max(min(a[2], b[2]) - max(a[0], b[0]), 0) * max(min(a[3], b[3]) - max(a[1], b[1]), 0)
    return shared / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared)


def as_tuples(found: NMSResult) -> list[tuple]:
    assert len(found.boxes) == len(found.scores) == len(found.classes)
    return [
        (*b, s, c)
        for b, s, c in zip(
            found.boxes.tolist(), found.scores.tolist(), found.classes.tolist(), strict=True
        )
    ]


# Whole pixels and eighths: no rounding anywhere, and plenty of ties in score and of overlaps
# exactly at the threshold.
eighths = st.integers(0, 8).map(lambda n: n / 8)
boxes = st.tuples(*[st.integers(0, 6).map(float)] * 2, *[st.sampled_from([2.0, 4.0, 6.0])] * 2)


@st.composite
def images(draw: st.DrawFn) -> list[list[list[float]]]:
    """A batch of two images: rows as `decode` gives them, as many in each."""
    num_classes = draw(st.integers(1, 3))
    n = draw(st.integers(1, 20))
    row = st.tuples(boxes, st.tuples(*[eighths] * (1 + num_classes))).map(lambda r: [*r[0], *r[1]])
    rows = st.lists(row, min_size=n, max_size=n)
    return [draw(rows), draw(rows)]


@settings(max_examples=150)
@given(
    images(),
    st.fixed_dictionaries(
        {
            "conf": st.sampled_from([0.001, 0.125, 0.25]),
            "iou": st.sampled_from([0.0, 0.25, 0.5, 0.6]),
            "max_det": st.sampled_from([1, 2, 5, 300]),
            "multi_label": st.booleans(),
            "agnostic": st.booleans(),
            "classes": st.none() | st.lists(st.integers(0, 3), max_size=2),
        }
    ),
)
def test_nms_is_the_full_pass(rows: list[list[list[float]]], options: dict[str, Any]) -> None:
    wanted = [slow_nms(r, **options) for r in rows]
    found = nms(torch.tensor(rows), **options)
    assert [as_tuples(f) for f in found] == wanted


def flood(seed: int, rows: int = 4000, classes: int = 4, levels: int | None = None) -> Tensor:
    """(1, rows, 5 + classes) of overlapping boxes, nearly all of them candidates; `levels`: so many
    different scores."""
    rng = torch.Generator().manual_seed(seed)
    decoded = torch.rand(1, rows, 5 + classes, generator=rng)
    decoded[..., :2] *= 640
    decoded[..., 2:4] = decoded[..., 2:4] * 100 + 20
    if levels:
        decoded[..., 4:] = (decoded[..., 4:] * levels).ceil() / levels
    return decoded


def full_pass(decoded: Tensor, conf: float, iou: float, max_det: int, agnostic: bool) -> NMSResult:
    """Multi-label, torchvision's suppression over all candidates, class by class."""
    (rows,) = decoded
    products = rows[:, 5:] * rows[:, 4:5]
    row, label = ((products > conf) & (rows[:, 4:5] > conf)).nonzero(as_tuple=True)
    order = products[row, label].argsort(descending=True, stable=True)
    row = row[order]
    label = label[order]
    scores = products[row, label]
    corners = torchvision.ops.box_convert(rows[row, :4], "cxcywh", "xyxy")
    kept = torch.zeros(len(row), dtype=torch.bool)
    for group in [torch.ones_like(kept)] if agnostic else [label == c for c in label.unique()]:
        members = group.nonzero().flatten()
        kept[
            members[torchvision.ops.nms(corners[members].double(), scores[members].double(), iou)]
        ] = True
    return NMSResult(*(v[kept][:max_det] for v in (corners, scores, label)))


@pytest.mark.parametrize("agnostic", [False, True])
@pytest.mark.parametrize("levels", [None, 3], ids=["scores", "ties"])
@pytest.mark.parametrize(("iou", "max_det"), [(0.6, 300), (0.6, 10), (0.1, 300), (0.05, 10_000)])
def test_nms_stops_early_with_the_same_result(
    monkeypatch: pytest.MonkeyPatch, agnostic: bool, levels: int | None, iou: float, max_det: int
) -> None:
    sizes = []

    def spy(boxes: Tensor, scores: Tensor, iou: float) -> Tensor:
        sizes.append(len(boxes))
        return torchvision.ops.nms(boxes, scores, iou)

    monkeypatch.setattr(postprocess, "suppress", spy)
    decoded = flood(0, levels=levels)
    (found,) = nms(decoded, conf=0.001, iou=iou, max_det=max_det, agnostic=agnostic)
    wanted = full_pass(decoded, 0.001, iou, max_det, agnostic)
    for ours, theirs in zip(found, wanted, strict=True):
        assert torch.equal(ours, theirs)
    if len(found.boxes) == max_det:
        assert sum(sizes) < 10_000, "there are about 16 000 candidates"
    else:
        assert sum(sizes) > 14_000, "too few survive: all must be looked at"


def test_only_the_best_candidates_take_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """With ties across the limit: the earlier rows are in."""
    rows = flood(1, rows=200, classes=2, levels=4)
    rows[..., :4] = rows[..., :4].round() * 2
    assert postprocess.MAX_CANDIDATES == 30_000
    for limit in (1, 30, 100):
        monkeypatch.setattr(postprocess, "MAX_CANDIDATES", limit)
        for agnostic in (False, True):
            (found,) = nms(rows, 0.001, 0.1, 300, agnostic=agnostic)
            wanted = slow_nms(rows[0].tolist(), 0.001, 0.1, 300, True, agnostic, limit=limit)
            assert as_tuples(found) == wanted


@pytest.mark.parametrize("multi_label", [False, True])
@pytest.mark.parametrize(
    "decoded",
    [torch.zeros(2, 0, 8), torch.zeros(2, 5, 8), torch.full((2, 5, 8), 0.01), torch.zeros(2, 0, 6)],
)
def test_nothing_to_keep(decoded: Tensor, multi_label: bool) -> None:
    """No rows at all, or none above the confidence."""
    found = nms(decoded, conf=0.25, multi_label=multi_label)
    assert [f.boxes.shape for f in found] == [(0, 4), (0, 4)]
    assert [(f.scores.shape, f.classes.shape, f.classes.dtype) for f in found] == [
        ((0,), (0,), torch.int64)
    ] * 2


def test_no_images() -> None:
    assert nms(torch.zeros(0, 100, 8)) == []


@pytest.mark.parametrize("multi_label", [False, True])
def test_scores_that_are_no_number_are_never_kept(multi_label: bool) -> None:
    decoded = flood(2, rows=300, classes=3)
    decoded[0, ::3, 4] = math.nan
    decoded[0, 1::3, 6] = math.nan
    (found,) = nms(decoded, multi_label=multi_label, iou=1.0, max_det=10**6)
    assert found.scores.isfinite().all()
    centres = {(round(x), round(y)) for x, y in decoded[0, 2::3, :2].tolist()}
    kept = {(round((x1 + x2) / 2), round((y1 + y2) / 2)) for x1, y1, x2, y2 in found.boxes.tolist()}
    assert centres <= kept, "rows without a NaN are kept"
    if multi_label:  # a class that is NaN does not take the others with it
        assert (
            len(found.boxes)
            == 100 * 2 + 100 * 3 - (decoded[0, :, 5:] * decoded[0, :, 4:5] <= 0.001).sum()
        )


def test_one_detection() -> None:
    decoded = flood(3)
    (found,) = nms(decoded, max_det=1)
    products = decoded[0, :, 5:] * decoded[0, :, 4:5]
    assert found.scores.tolist() == [products.max().item()]
    assert found.classes.item() == products.max(0).values.argmax()


def test_one_class() -> None:
    """Its score counts, as in YOLOv5, although it has no loss; multi-label makes no difference."""
    decoded = flood(4, rows=50, classes=1)
    (a,), (b,) = (
        nms(decoded, conf=0.25, multi_label=True),
        nms(decoded, conf=0.25, multi_label=False),
    )
    assert as_tuples(a) == as_tuples(b)
    assert set(a.scores.tolist()) <= set((decoded[0, :, 4] * decoded[0, :, 5]).tolist())
    assert set(a.classes.tolist()) == {0}


def test_classes_far_apart_do_not_touch() -> None:
    """The same box in each of 1000 classes is kept 1000 times, also at coordinates below 0 and far
    from 0."""
    row = torch.cat(
        (
            torch.tensor([[-50_000.0, 3.0, 7.3, 1e5, 1.0], [70_000.0, 3.0, 7.3, 1e5, 1.0]]),
            torch.ones(2, 1000),
        ),
        1,
    )
    (found,) = nms(row[None], max_det=5000)
    assert found.classes.bincount().tolist() == [2] * 1000
    (found,) = nms(row[None], max_det=5000, agnostic=True)
    assert len(found.boxes) == 2


def test_the_input_stays_as_it_is() -> None:
    decoded = flood(5, rows=50)
    before = decoded.clone()
    (found,) = nms(decoded)
    found.boxes.zero_()
    assert torch.equal(decoded, before)


def test_rounded_nms_is_an_option_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """In evaluation and the Python API. Class 79 lies 606,720 px to the right, where
    float32 has 1/16 px."""
    rng = np.random.default_rng(0)
    first = np.column_stack((rng.integers(1, 7, (300, 2)) * 100.0, np.full((300, 2), 6.0)))
    pairs = np.stack((first, first + rng.normal(0, 0.5, first.shape)), 1).reshape(-1, 4)
    rows = torch.zeros(1, len(pairs), 5 + 80)
    rows[0, :, :4], rows[0, :, 4], rows[0, :, -1] = (
        torch.from_numpy(pairs),
        torch.linspace(1, 0.1, len(pairs)),
        1,
    )
    empty = labels_of(np.zeros((0, 4)), np.zeros(0), 640, 640)
    sample = Sample(
        np.zeros((640, 640, 3), np.uint8),
        empty.boxes,
        empty.classes,
        letterbox=LetterboxInfo(640, 640),
        index=0,
        truth=empty,
    )
    batch = collate([sample])
    exact, rounded = (nms(rows, 0.001, 0.6, 300, False, rounded=r)[0] for r in (False, True))
    assert exact.scores.tolist() != rounded.scores.tolist()
    for option, wanted in ((False, exact), (True, rounded)):
        detector = Detector(
            [f"class{i}" for i in range(80)],
            network=NetworkOptions(width_multiple=0.0625),
            literal=option,
        ).eval()
        monkeypatch.setattr(Predictor, "_forward", lambda self, images: (rows, None))
        (found,), _ = detector.make_predictor(**VALIDATION).detect(batch)
        assert found[:, 4].tolist() == wanted.scores.tolist()
        by_api = detector.predict(sample.image, conf=0.001, iou=0.6, max_det=300)
        assert isinstance(by_api, Detections)
        assert by_api.confidence.tolist() == wanted.scores.tolist()
