"""Samples are a function of seed, epoch and index, in whatever order or process; the order of the
steps."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from made_datasets import read_yolo
from made_samples import SIZE, assert_same, noise_set
from torch.utils.data import DataLoader

from boltbox.detector.data.cache.images import ResizedImages
from boltbox.detector.data.datasets import DetectionDataset
from boltbox.detector.data.inputs.evaluation_input import EvaluationInput, EvaluationSamples
from boltbox.detector.data.sample import Sample, collate
from boltbox.detector.data.sampler import Key, TrainBatches
from boltbox.detector.data.transforms.augment import Augment, TrainSamples
from boltbox.detector.data.transforms.letterbox import GREY

EVERYTHING = Augment(
    degrees=10, shear=3, perspective=0.0005, flipud=0.3, mosaic=0.6, mixup=0.4, copy_paste=0.5,
    albumentations=[{"RandomBrightnessContrast": {"p": 0.5}}, {"HorizontalFlip": {"p": 0.3}}],
)  # fmt: skip


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> DetectionDataset:
    return noise_set(tmp_path_factory.mktemp("set"))


def train_samples(
    dataset: DetectionDataset, seed: int = 5, shapes: np.ndarray | None = None
) -> TrainSamples:
    return TrainSamples(ResizedImages(dataset, SIZE), EVERYTHING.steps(SIZE, shapes), seed)


KEYS: list[Key] = [
    Key(epoch, index, repeat) for epoch in (0, 1) for index in range(8) for repeat in (0, 1)
]


@pytest.fixture(scope="module")
def first_time(dataset: DetectionDataset) -> dict[Key, Sample]:
    samples = train_samples(dataset)
    return {key: samples[key] for key in KEYS}


def test_samples_are_as_promised(first_time: dict[Key, Sample]) -> None:
    for key, s in first_time.items():
        assert (s.image.shape, s.image.dtype, s.index) == ((SIZE, SIZE, 3), np.uint8, key.index)
        assert (s.boxes.dtype, s.classes.dtype) == (np.float32, np.int64)
        assert len(s.boxes) == len(s.classes) == len(s.parts())
        assert s.boxes.min(initial=0) >= -1e-4
        assert s.boxes.max(initial=0) <= SIZE + 1e-4
        assert (s.boxes[:, 2:] > s.boxes[:, :2]).all()
    assert sum(len(s.boxes) for s in first_time.values()) > 60


def test_sample_does_not_depend_on_what_was_asked_before(
    dataset: DetectionDataset, first_time: dict[Key, Sample]
) -> None:
    fresh = train_samples(dataset)
    for key in [*KEYS[::-3], *KEYS[:4], KEYS[3]]:
        assert_same(fresh[key], first_time[key])


def test_sample_differs_with_each_part_of_the_key_and_the_seed(
    dataset: DetectionDataset, first_time: dict[Key, Sample]
) -> None:
    other_seed = train_samples(dataset, seed=6)
    images = [
        s.image.tobytes() for s in (*first_time.values(), *(other_seed[key] for key in KEYS[:8]))
    ]
    assert len(set(images)) == len(images)


def test_labels_of_the_data_set_are_not_touched(
    dataset: DetectionDataset, first_time: dict[Key, Sample]
) -> None:
    again = read_yolo(Path(dataset.files[0]).parent, dataset.names, Path())
    for ours, theirs in zip(dataset.labels, again.labels, strict=True):
        assert np.array_equal(ours.boxes, theirs.boxes)
        assert [[p.tolist() for p in parts] for parts in ours.polygons] == [
            [p.tolist() for p in parts] for parts in theirs.polygons
        ]


@pytest.mark.parametrize("rect", [False, True])
def test_other_processes_make_the_same_samples(dataset: DetectionDataset, rect: bool) -> None:
    shapes = np.full((8, 2), SIZE) if rect else None
    # the second batch of the second epoch of three
    batches = TrainBatches(8, 3, 5, position=lambda: (1, 1))

    def through(workers: int) -> list[Any]:
        samples = train_samples(dataset, shapes=shapes)
        return list(
            DataLoader(samples, batch_sampler=batches, num_workers=workers, collate_fn=collate)
        )

    alone = through(0)
    shared = through(2)
    assert [b.indices for b in alone] == [[key.index for key in keys] for keys in batches]
    assert len(alone) == len(shared) == 2
    for a, b in zip(alone, shared, strict=True):
        assert a.indices == b.indices
        assert torch.equal(a.images, b.images)
        assert torch.equal(a.targets, b.targets)


def test_validation_samples_have_no_randomness(dataset: DetectionDataset) -> None:
    shapes = np.full((8, 2), SIZE)
    images = ResizedImages(dataset, SIZE, smooth=True)
    inputs = EvaluationInput(SIZE, 32)
    a, b = (EvaluationSamples(images, inputs, shapes) for _ in range(2))
    for k in (3, 0, 3):
        assert_same(a[k], b[k])
        truth = a[k].truth
        assert truth is not None
        assert np.array_equal(truth.boxes, dataset.labels[k].boxes)
        assert np.array_equal(truth.classes, dataset.labels[k].classes)
        letterbox = a[k].letterbox
        assert letterbox is not None
        np.testing.assert_allclose(
            letterbox.to_file(a[k].boxes), dataset.labels[k].boxes, rtol=0, atol=1e-3
        )


def test_labels_follow_the_pixels_through_all_steps(tmp_path: Path) -> None:
    """One rectangle an image, coloured by class; where a box says there is one, its colour must
    fill just that box."""
    (tmp_path / "images").mkdir()
    (tmp_path / "labels").mkdir()
    for k in range(3):
        image = np.full((120, 160, 3), GREY, np.uint8)
        image[30:90, 40:120, 2 - k] = 255  # 40..120 of 160, 30..90 of 120; OpenCV writes BGR
        image[30:90, 40:120, [2 - c for c in range(3) if c != k]] = 0
        cv2.imwrite(str(tmp_path / f"images/{k}.png"), image)
        (tmp_path / f"labels/{k}.txt").write_text(f"{k} 0.5 0.5 0.5 0.5")
    augment = Augment(hsv_h=0, hsv_s=0, hsv_v=0, flipud=0.5, mosaic=0.7, translate=0.1, scale=0.3)
    samples = TrainSamples(
        ResizedImages(read_yolo(tmp_path / "images", ["r", "g", "b"], tmp_path), 160),
        augment.steps(160),
        0,
    )
    checked = 0
    for epoch in range(20):
        s = samples[Key(epoch, epoch % 3, 0)]
        for c, box in zip(s.classes, s.boxes, strict=True):
            x1, y1, x2, y2 = (box + np.array((-4, -4, 4, 4))).round().astype(int).clip(0)
            around = s.image[y1:y2, x1:x2].astype(int)
            pure = around[..., c] - np.delete(around, c, -1).max(-1) > 128
            assert pure.any()
            x, y, w, h = cv2.boundingRect(pure.astype(np.uint8))
            np.testing.assert_allclose(
                (x1 + x, y1 + y, x1 + x + w, y1 + y + h), box, rtol=0, atol=2
            )
            checked += 1
    assert checked > 30


def test_steps_in_order() -> None:
    names: Callable[[list[Any]], list[str]] = lambda steps: [type(s).__name__ for s in steps]  # noqa: E731
    tail = ["RandomHSV", "RandomFlip", "RandomFlip"]
    assert names(Augment().steps(64)) == [
        "Mosaic",
        "RandomPerspective",
        "MixUp",
        *tail,
    ]
    for twice in (
        Augment().steps(64, lazy=False),
        Augment(degrees=1).steps(64),
        Augment(copy_paste=0.1).steps(64),
    ):
        assert names(twice) == [
            "function",
            "Mosaic",
            "CopyPaste",
            "RandomPerspective",
            "MixUp",
            *tail,
        ]
    assert names(Augment().steps(64, np.array([[64, 64]]))) == [
        "function",
        "Letterbox",
        "CopyPaste",
        "RandomPerspective",
        *tail,
    ]
    with_library = names(Augment(albumentations=[{"Blur": {}}]).steps(64))
    assert with_library == [
        "Mosaic",
        "RandomPerspective",
        "MixUp",
        "Albumentations",
        *tail,
    ]
