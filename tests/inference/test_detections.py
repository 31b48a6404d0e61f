"""Detections in Python: chosen, one by one, drawn."""

import numpy as np
import pytest

from boltbox.detector.inference.detections import Detections

ROWS = np.array(
    [[2, 4, 20, 30, 0.9, 1], [10, 10, 40, 38, 0.6, 0], [0, 0, 8, 8, 0.3, 1]], np.float32
)
FOUND = Detections.of(ROWS, ["cat", "dog"])


def test_some_of_them() -> None:
    assert FOUND[1].class_id.tolist() == [0]
    assert FOUND[-1].xyxy.tolist() == [[0, 0, 8, 8]]
    assert FOUND[:2].confidence.tolist() == pytest.approx([0.9, 0.6])
    assert FOUND[FOUND.confidence > 0.5].class_id.tolist() == [1, 0]
    assert FOUND[np.array([2, 0])].class_id.tolist() == [1, 1]
    assert FOUND[FOUND.class_id == 7].xyxy.shape == (0, 4)
    with pytest.raises(IndexError):
        FOUND[3]


def test_one_by_one() -> None:
    assert [(len(each), each.names[each.class_id[0]]) for each in FOUND] == [
        (1, "dog"),
        (1, "cat"),
        (1, "dog"),
    ]


def test_drawn() -> None:
    image = np.full((40, 48, 3), 90, np.uint8)
    drawn = FOUND[1].plot(image, width=1)
    assert (image == 90).all()
    changed = (drawn != 90).any(2)
    assert changed[38, 15:40].all()  # the lower edge
    assert not changed[30:37, 20:38].any()
    assert (FOUND[:0].plot(image) == image).all()
    assert (FOUND[1].plot(image[..., ::-1], width=1) == drawn).all(), "as cv2.imread's is turned"
    assert (FOUND[1].plot(image[..., 0], width=1) == drawn).all(), "grey"
