"""Drawing each file's pixels once, straight into their place, against the two resamplings of
YOLOv5's way."""

import numpy as np
import pytest
from made_datasets import image_set, read_yolo

from boltbox.detector.data.cache.images import ResizedImages
from boltbox.detector.data.sampler import Key
from boltbox.detector.data.transforms.augment import Augment, TrainSamples

SHAPES = [(120, 160), (160, 160), (200, 320), (77, 60), (340, 171)]
GEOMETRY = Augment(
    hsv_h=0, hsv_s=0, hsv_v=0, mosaic=0.8, mixup=0.2, scale=0.5, translate=0.1, flipud=0.2
)


def ramps(height, width):
    """An image whose every pixel tells where it is: red and blue rise to the right, green
    downwards."""
    y, x = np.mgrid[:height, :width]
    return (
        np.stack((x * 200 / width + 20, y * 200 / height + 20, x * 100 / width + 50), -1)
        .round()
        .astype(np.uint8)
    )


@pytest.fixture(scope="module", params=["png", "jpg"])
def dataset(request, tmp_path_factory):
    root = tmp_path_factory.mktemp("ramps")
    texts = []
    pictures = []
    for k, shape in enumerate(SHAPES):
        pictures.append(ramps(*shape))
        texts.append(f"{k} 0.3 0.4 0.3 0.5\n{k} 0.6 0.2 0.9 0.3 0.9 0.7\n{k} 0.9 0.9 0.05 0.1\n")
    image_set(root, pictures, texts, suffix=request.param)
    return read_yolo(root / "images", list("abcde"), root)


def test_once_is_twice_but_for_the_interpolation(dataset):
    """The same key: the same objects to the last bit, and pixels from the same places: on 200
    levels over 36 pixels or more a quarter of a pixel is about a level. Seams, where a pixel
    belongs to the one tile or the other, are few."""
    size = 160
    once, twice = (
        TrainSamples(ResizedImages(dataset, size, shrink=once), GEOMETRY.steps(size, lazy=once), 3)
        for once in (True, False)
    )
    for epoch in range(4):
        for index in range(len(SHAPES)):
            a = once[Key(epoch, index, 0)]
            b = twice[Key(epoch, index, 0)]
            assert np.array_equal(a.boxes, b.boxes)
            assert np.array_equal(a.classes, b.classes)
            assert a.image.shape == b.image.shape == (size, size, 3)
            apart = np.abs(a.image.astype(int) - b.image).max(-1)
            assert np.percentile(apart, 80) <= 2
            # within a pixel of four seams and the outer edges
            assert (apart > 8).mean() < 12 / size
