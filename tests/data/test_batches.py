"""Batches: order, ranks, resuming, weights by rarity, rectangles, and samples put together."""

import os
import signal
from itertools import chain, cycle, islice
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import lightning as L
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from made_datasets import picture
from made_labels import labels_of, table_of
from made_runs import column, load, train
from made_samples import SIZE, few, noise_set, seeds

from benchmarks.resume_fuzz import difference
from boltbox.detector.data.datamodule import DetectionData
from boltbox.detector.data.sample import LetterboxInfo, Sample, collate, rescaled
from boltbox.detector.data.sampler import (
    PARTNERS,
    Key,
    TrainBatches,
    class_weights,
    image_weights,
)
from boltbox.detector.data.transforms.augment import Augment
from boltbox.detector.data.transforms.letterbox import rectangular_batches


def sampler(n, batch_size, seed=0, **options):
    options.setdefault("position", lambda: (0, 0))
    return TrainBatches(n, batch_size, seed, **options)


@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 4), st.integers(0, 30), seeds)
@few
def test_ranks_share_one_global_order(n, size, world, done, seed):
    """Each image once an epoch; a resume begins after the batches that are done; a batch that does
    not divide by the world is filled up with its own images."""
    size = min(size, n)
    epoch, start = divmod(done, -(-n // size))
    order = sampler(n, size, seed).order(epoch).tolist()
    assert sorted(order) == list(range(n))
    assert sampler(n, 1, seed).order(epoch).tolist() == order, "whatever the batch size"
    for rank in range(world):
        mine = sampler(n, size, seed, position=lambda: (epoch, start), rank=rank, world=world)
        assert len(mine) == -(-n // size), "Lightning counts whole epochs"
        expected = []
        for first in range(start * size, n, size):
            own = [Key(epoch, index, 0) for index in order[first : first + size]]
            filled = list(islice(cycle(own), len(own) + -len(own) % world))
            expected.append(filled[rank::world])
        assert list(mine) == expected


def test_order():
    """It changes with epoch and seed; the position is asked for at the start of each epoch."""
    keys = ((0, 0), (0, 1), (1, 0), (1, 1))
    orders = {tuple(sampler(30, 4, seed).order(epoch)) for seed, epoch in keys}
    assert len(orders) == 4
    position = [(0, 0)]
    fixed = sampler(4, 3, fixed_order=np.array([3, 0, 2, 1]), position=lambda: position[0])
    batches = [[Key(7, 3, 0), Key(7, 0, 0), Key(7, 2, 0)], [Key(7, 1, 0)]]
    assert list(fixed.batches(7)) == batches
    position[0] = (7, 1)
    assert list(fixed) == batches[1:]


def test_weighted_order():
    """Weights are asked for afresh, repeats are numbered, and the partners are drawn by the weights
    too."""
    weights = np.array([1.0, 3.0] + [0.0] * 38)
    drawn = sampler(40, 7, weights=lambda: weights)
    keys = list(chain(*drawn.batches(2)))
    assert len(keys) == len(set(keys)) == 40
    for index, low, high in ((0, 5, 16), (1, 24, 35)):
        repeats = [key.repeat for key in keys if key.index == index]
        assert repeats == list(range(len(repeats)))
        assert low <= len(repeats) <= high
    assert set(map(len, column(keys, "partners"))) == {PARTNERS}
    assert set(keys[0].partners) == {0, 1}
    assert len(set(column(keys, "partners"))) == 6, "others in each batch"
    weights = np.array([0.0] * 39 + [1.0])
    assert set(drawn.order(2)) == {39}
    assert set(next(drawn.batches(2))[0].partners) == {39}


def weights_of(images, classes, maps=0.0):
    """Of images whose objects have these classes, as the data module makes them."""
    labels = table_of([labels_of(np.zeros((len(x), 4)), np.array(x), 9, 9) for x in images])
    counts = np.bincount(labels.classes, minlength=classes)
    return image_weights(labels, class_weights(counts) * (1 - np.asarray(maps)) ** 2)


@pytest.mark.parametrize(
    ("images", "maps", "expected"),
    [
        # two of eight images without objects
        ([[0]] * 4 + [[1]] * 2 + [[]] * 2, 0, [3 / 32] * 4 + [3 / 16] * 2 + [1 / 8] * 2),
        # every class is found perfectly
        ([[0], [0, 1], [1], []], 1, [1 / 4] * 4),
        ([[], []], 0, [1 / 2] * 2),
        # the first never comes in YOLOv5
        ([[0], [1]], [1, 0, 0], [0.0005 / 1.0005, 1 / 1.0005]),
    ],
)
def test_image_weights(images, maps, expected):
    np.testing.assert_allclose(weights_of(images, 3, maps), expected)


EPOCHS = 2
BATCHES = 6  # of the runs below: 24 images in batches of 4


class Trace(L.Callback):
    """Writes down which images each batch holds, gives each class a new mAP at every validation,
    and stops where it is told."""

    seen: ClassVar[list[list[int]]] = []
    stop_after: ClassVar[int] = -1

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.seen.append(list(batch.indices))
        at = trainer.fit_loop.epoch_loop.batch_progress.total.processed
        if at == self.stop_after:
            os.kill(os.getpid(), signal.SIGTERM)

    def on_validation_end(self, trainer, pl_module):
        """The real figures have just come; those of so young a network are all about 0."""
        maps = [0.0] * len(pl_module.names)
        at = trainer.fit_loop.epoch_loop.batch_progress.total.processed
        maps[at // 3 % len(maps)] = 0.999
        pl_module.evaluation.class_maps = maps


def test_a_weighted_run_stopped_within_an_epoch_and_resumed(small_data, here):
    """The epoch goes on with the weights it began with, although a validation has changed the
    figures since."""
    line = f"""--data.batch_size 4 --data.image_weights true --data.val_batch_size 2
    --trainer.max_epochs {EPOCHS} --trainer.val_check_interval {BATCHES // 2}
    --trainer.limit_val_batches 1 --trainer.callbacks test_batches.Trace"""
    stop = BATCHES + 4  # in the second epoch, after the validation in its middle

    def images(run, more="", stop_after=-1):
        Trace.seen = []
        Trace.stop_after = stop_after
        train(small_data, run, f"{line} {more}")
        return Trace.seen

    whole = images("whole")
    assert sorted(chain(*whole[:BATCHES])) != sorted(chain(*whole[BATCHES:]))
    with pytest.raises(SystemExit, match="143"):
        images("cut", stop_after=stop)
    assert Trace.seen == whole[:stop]
    saved = load("cut/checkpoints/last.ckpt")
    assert saved["class_maps"] != saved["DetectionData"]["epoch_maps"], "else nothing is tested"
    assert images("cut", "--ckpt_path last") == whole[stop:]
    assert not difference(here / "cut", here / "whole")


@pytest.fixture(scope="module")
def data_yaml(tmp_path_factory):
    dataset = noise_set(tmp_path_factory.mktemp("set"))
    return str(Path(dataset.files[0]).parents[1] / "data.yaml")


@pytest.mark.parametrize(("literal", "size"), [(False, None), (True, None), (True, 5)])
def test_validation_batches(data_yaml, literal, size):
    """Literal: twice the training batch; equal aspect ratios as numpy's default sort leaves them,
    which is the original's order."""
    data = DetectionData(data_yaml, SIZE, batch_size=3, workers=0, val_batch_size=size)
    data.literal = literal
    data.setup("validate")
    shapes = data.datasets["val"].labels.sizes
    size = size or 3 * (1 + literal)
    expected = rectangular_batches(shapes, SIZE, size, 32, 0.5, stable=not literal)[0]
    assert list(data.val_dataloader().batch_sampler) == expected
    many = np.random.default_rng(0).integers(2, 5, (200, 2)) * 60
    order = np.concatenate(rectangular_batches(many, 320, 16, 32, 0.5, stable=not literal)[0])
    by_ratio = (many[:, 0] / many[:, 1]).argsort()
    assert (order.tolist() == by_ratio.tolist()) == literal


def test_one_network_after_another(data_yaml):
    """Of other strides: each gets the images that fresh data give it."""

    def frames(data, stride):
        network = SimpleNamespace(
            max_stride=lambda: stride,
            shape_for=lambda size: None,
            options=SimpleNamespace(literal=False),
        )
        data.trainer = SimpleNamespace(
            lightning_module=network, global_rank=0, world_size=1, num_devices=1, local_rank=0
        )
        data.setup("validate")
        return [batch.letterboxes for batch in data.val_dataloader()]

    data = DetectionData(data_yaml, 96, workers=0)
    for stride in (32, 64, 32):
        assert frames(data, stride) == frames(DetectionData(data_yaml, 96, workers=0), stride)


def test_rectangular_training(data_yaml):
    """Ratios: 0.33 0.47 | 0.625 1 (the smaller of the two squares) | 1 1.2 | 1.29 1.94. No shuffle.

    Heights and widths: 128 * 0.469 = 60 -> 64; up to ratio 1; from ratio 1; 128 / 1.286 -> 128.
    """
    data = DetectionData(data_yaml, 128, batch_size=2, workers=0, rect=True, augment=Augment())
    data.setup("fit")
    loader = data.train_dataloader()
    expected = [[3, 0], [7, 5], [1, 2], [6, 4]]
    for epoch in (0, 5):
        batches = loader.batch_sampler.batches(epoch)
        assert [column(keys, "index") for keys in batches] == expected
    shapes = []
    for batch, indices in zip(loader, expected, strict=True):
        assert batch.indices == indices
        assert len(batch.targets) > 0
        shapes.append(tuple(batch.images.shape[2:]))
    assert shapes == [(64, 128), (128, 128), (128, 128), (128, 128)]
    assert next(iter(loader.batch_sampler))[0].epoch == 1, "without a Trainer a pass is an epoch"


def test_collate_in_numbers(data_yaml):
    boxes = np.array([[-5, 10, 70, 200], [20, 5, 40, 25], [150, 60, 160, 70]], np.float32)
    letterbox = LetterboxInfo(50, 100)
    a = Sample(picture(50, 100, 1), boxes, np.array([2, 0, 1]), letterbox=letterbox, index=7)
    empty = Sample(picture(50, 100, 2), boxes[:0], np.zeros(0, np.int64), index=3)
    b = Sample(picture(50, 100, 3), np.array([[0, 0, 100, 50]], np.float32), np.array([4]), index=5)
    batch = collate([a, empty, b])
    assert (batch.images.shape, batch.images.dtype) == ((3, 3, 50, 100), torch.uint8)
    for planes, sample in zip(batch.images, (a, empty, b), strict=True):
        assert np.array_equal(planes, sample.image.transpose(2, 0, 1)), "channels first, RGB"
    right = 100 - 1e-3
    bottom = 50 - 1e-3
    expected = [
        [0, 2, 70 / 2 / 100, (10 + bottom) / 2 / 50, 70 / 100, (bottom - 10) / 50],
        [0, 0, 0.3, 0.3, 0.2, 0.4],
        [0, 1, right / 100, bottom / 50, 0, 0],  # outside: on the last pixel, without size
        [2, 4, right / 2 / 100, bottom / 2 / 50, right / 100, bottom / 50],
    ]
    np.testing.assert_allclose(batch.targets, expected, rtol=0, atol=1e-6)
    assert (batch.targets[:, 2:4] < 1).all(), "a centre lies in a cell of the grid"
    assert batch.indices == [7, 3, 5]
    assert batch.letterboxes == [letterbox, None, None]
    nothing = collate([empty]).targets
    assert (nothing.shape, nothing.dtype) == ((0, 6), torch.float32)
    moved = DetectionData(data_yaml, workers=0).on_after_batch_transfer(batch, 0)
    assert torch.equal(moved.images, batch.images / 255)


def test_sizes_of_small_images():
    """In multi-scale training: batch norm needs two values of a map."""
    images = torch.zeros(1, 3, 64, 64)
    assert {rescaled(images, 64, 32, 0, i).shape[2] for i in range(99)} == {64, 96}
