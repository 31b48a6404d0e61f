"""Images of thousands of objects: the findings are those of a slow loop, the work is not."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from made_datasets import (
    as_yolo,
    lay_out,
    load,
    parsed,
)
from made_samples import few, noise, seeds

from boltbox.detector.data.formats.format import FARTHEST
from boltbox.detector.data.read_split import box_problems
from boltbox.detector.model.boxes import EPS, area_xyxy, pairwise_iou_xyxy
from boltbox.detector.report import drawing
from boltbox.detector.report.drawing import draw_boxes


def crowd(n: int, seed: int = 0, least: float = 0.0005, most: float = 0.01) -> np.ndarray:
    """(n, 4) cx, cy, w, h as fractions."""
    rng = np.random.default_rng(seed)
    sides = rng.uniform(least, most, (n, 2))
    return np.concatenate((rng.uniform(sides / 2, 1 - sides / 2), sides), 1)


def lines_of(boxes: np.ndarray) -> str:
    return "".join("0 " + " ".join(f"{v:.6f}" for v in box) + "\n" for box in boxes)


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


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_places_are_those_of_a_slow_loop(tmp_path: Path, seed: int, cached: bool) -> None:
    """Each object is where it was read, whether the file is parsed or not; a line alone gives its
    box."""
    as_yolo(tmp_path)
    # some are alike
    lines = [
        *lines_of(crowd(12, seed, 0.2, 0.4).round(1)).splitlines(),
        "0 .1 .1 .5 .1 .5 .5",
        "",
        "x",
    ]
    lay_out(tmp_path, {"labels/train/c.txt": "\n".join(lines)})
    for _ in range(1 + cached):
        dataset = load(tmp_path)
    source = dataset.sources[2]
    assert source.file == str(tmp_path / "labels/train/c.txt")
    kept: dict[tuple[float, ...], str] = {}
    for number, line in enumerate(lines, 1):
        for row in parsed(line)[0]:
            kept.setdefault(tuple(row), f"line {number}")
    assert source.places == list(kept.values())
    rows = np.array(list(kept))
    corners = np.concatenate((rows[:, 1:3] - rows[:, 3:] / 2, rows[:, 1:3] + rows[:, 3:] / 2), 1)
    assert np.allclose(dataset.labels[2].boxes, corners * 64, atol=1e-4)


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


def test_names_are_left_out_where_nobody_could_read_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing, "MAX_NAMED", 3)
    rows = np.column_stack(
        (crowd(4, 4, 0.3, 0.4)[:, [0, 1, 0, 1]] * 60, np.full(4, 0.5), np.zeros(4))
    )
    rows[:, 2:4] += 20
    image = noise(100, 100)
    assert np.array_equal(
        draw_boxes(image, rows, ["cat"]), draw_boxes(image, rows, ["cat"], labels=False)
    )
    assert not np.array_equal(
        draw_boxes(image, rows[:3], ["cat"]), draw_boxes(image, rows[:3], ["cat"], labels=False)
    )
