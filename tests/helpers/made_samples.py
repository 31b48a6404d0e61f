"""Samples made from a seed, a data set of noise, and how samples are compared."""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from made_datasets import image_set, picture, read_yolo

from boltbox.detector.data.sample import LetterboxInfo, Sample

few = settings(max_examples=25)
seeds = st.integers(0, 2**32 - 1)


def random_boxes(rng, n, width, height):
    """(n, 4) float32 xyxy inside width x height, no side shorter than a tenth."""
    low = rng.uniform(0, 0.9, (n, 2))
    high = low + 0.1 + (0.9 - low) * rng.random((n, 2))
    return (np.hstack((low, high)) * (width, height, width, height)).astype(np.float32)


def random_sample(seed, height, width, n=3, polygons=True):
    """Noise with n boxes; every other one has a polygon whose hull it is."""
    rng = np.random.default_rng(seed)
    boxes = random_boxes(rng, n, width, height)
    parts = [[] for _ in range(n)]
    for i in range(0, n if polygons else 0, 2):
        x1, y1, x2, y2 = boxes[i]
        parts[i] = [np.array(((x1, y1), (x2, (y1 + y2) / 2), (x1, y2)), np.float32)]
    return Sample(
        picture(height, width, seed),
        boxes,
        rng.integers(0, 5, n),
        parts,
        LetterboxInfo(height, width),
        index=seed % 100,
    )


def painted(height, width, x1, y1, x2, y2):
    """A black image with one white box, its label."""
    image = np.zeros((height, width, 3), np.uint8)
    image[y1:y2, x1:x2] = 255
    return Sample(
        image,
        np.array([[x1, y1, x2, y2]], np.float32),
        np.zeros(1, np.int64),
        letterbox=LetterboxInfo(height, width),
    )


def assert_same(a, b):
    assert np.array_equal(a.image, b.image)
    assert np.array_equal(a.boxes, b.boxes)
    assert np.array_equal(a.classes, b.classes)
    for ours, theirs in zip(a.polygons, b.polygons, strict=True):
        assert list(map(np.ndarray.tolist, ours)) == list(map(np.ndarray.tolist, theirs))
    assert (a.letterbox, a.index) == (b.letterbox, b.index)


SIZE = 64
SHAPES = [(30, 64), (64, 64), (48, 40), (20, 60), (64, 33), (50, 50), (90, 70), (40, 64)]


def noise_set(root):
    """Eight images of noise, two objects each, one of them with a polygon."""
    texts = []
    for k in range(len(SHAPES)):
        texts.append(f"{k % 3} 0.3 0.4 0.3 0.5\n{(k + 1) % 3} 0.6 0.2 0.9 0.3 0.9 0.7\n")
    pictures = [picture(h, w, k) for k, (h, w) in enumerate(SHAPES)]
    image_set(root, pictures, texts, "[a, b, c]")
    return read_yolo(root / "images", ["a", "b", "c"], root)
