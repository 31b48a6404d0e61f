"""From which confidence on a teacher is believed, compared with a slow loop."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from boltbox.detector.inference.teacher import believed


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 9)), max_size=30), st.integers(0, 5))
def test_thresholds(boxes: list[tuple[bool, int]], missed: int) -> None:
    right = np.array([is_right for is_right, _ in boxes], bool)
    scores = np.array([tenths / 10 for _, tenths in boxes])
    objects = int(right.sum()) + missed
    sure, unsure = believed(right, scores, objects)
    if not right.any():
        assert (sure, unsure) == (1, 1)
        return
    precise, f2 = [1.0], {}
    for threshold in sorted({*scores.tolist()}):
        above = right[scores >= threshold]
        if above.mean() >= 0.9:
            precise.append(threshold)
        precision, recall = above.mean(), above.sum() / objects
        f2[threshold] = 5 * precision * recall / max(4 * precision + recall, 1e-9)
    assert sure == min(precise)
    assert unsure == sure or np.isclose(f2[unsure], max(f2.values()))
    assert unsure <= sure
