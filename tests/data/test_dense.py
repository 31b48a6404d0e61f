"""Work on many boxes at a time gives what a slow loop gives."""

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st
from made_datasets import (
    parsed,
)
from made_samples import few, seeds

from boltbox.detector.data.formats.format import FARTHEST
from boltbox.detector.data.read_split import box_problems
from boltbox.detector.model.boxes import EPS, area_xyxy, pairwise_iou_xyxy

words = st.sampled_from(
    ["0", "-0", "0.0", "1", ".5", "0.50", "5e-1", "0.25", "1e-9", "2", "nan", "x"]
)


@given(st.lists(st.lists(words, min_size=4, max_size=7).map(" ".join), max_size=12))
@example(["0 .5 .5 .5 .5", "-0 .5 .50 .5 5e-1", "0 -0 .5 .5 .5", "0 0 .5 .5 .5"])
@few
def test_duplicates_are_those_of_a_slow_loop(lines: list[str]) -> None:
    """Each line is compared with each earlier one that was kept, number by number."""
    rows, _, faults = parsed("\n".join(lines))
    kept: list[np.ndarray] = []
    expected = []
    for number, line in enumerate(lines, 1):
        alone, _, wrong = parsed(line)
        if wrong:
            expected.append((f"line {number}", wrong[0][1]))
        elif any(np.array_equal(alone[0], row) for row in kept):
            expected.append((f"line {number}", "duplicate of an earlier line"))
        else:
            kept.append(alone[0])
    assert faults == expected
    assert np.array_equal(rows, np.array(kept, np.float32).reshape(-1, 5))


numbers = st.sampled_from(
    [
        0.0,
        -0.0,
        1.0,
        1e7,
        1e7 + 0.4,
        2.0**24,
        2.0**24 - 1,
        3.4028235e38,
        3.4028236e38,
        -1e300,
        1e-46,
    ]
)


@given(st.lists(numbers | st.floats(), min_size=4, max_size=4))
@few
def test_box_problems_are_those_of_float32_arrays(xyxy: list[float]) -> None:
    def in_arrays() -> str:
        with np.errstate(over="ignore"):
            x1, y1, x2, y2 = corners = np.array(xyxy, np.float32)
        if not np.isfinite(corners).all():
            return "missing or non-finite coordinate"
        if np.abs(corners).max() >= FARTHEST:
            return f"coordinate beyond {FARTHEST:.0f} px"
        return "zero or negative width or height" if x2 <= x1 or y2 <= y1 else ""

    assert box_problems(np.array([xyxy])) == [in_arrays()]


@given(seeds)
@few
def test_overlaps_are_those_of_one_product(seed: int) -> None:
    """Bit for bit: figures hang on ties."""
    rng = np.random.default_rng(seed)
    a, b = (
        np.sort(rng.integers(0, 9, (n, 2, 2)) + rng.random((n, 1, 1)), 1)
        .reshape(n, 4)
        .astype(np.float32)
        for n in (7, 5)
    )
    overlap = (
        (np.minimum(a[:, None, 2:], b[None, :, 2:]) - np.maximum(a[:, None, :2], b[None, :, :2]))
        .clip(0)
        .prod(-1)
    )
    union = area_xyxy(a)[:, None] + area_xyxy(b)[None] - overlap + EPS
    assert np.array_equal(pairwise_iou_xyxy(a, b), overlap / union)
