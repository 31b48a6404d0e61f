"""Batches: order, ranks, resuming, rarity, rectangles, and samples put together."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from made_samples import SIZE, few, noise, noise_set, random_boxes, random_sample, seeds

from boltbox.detector.data.datamodule import DetectionData
from boltbox.detector.data.sample import LetterboxInfo, Sample, collate
from boltbox.detector.data.sampler import (
    Key,
    TrainBatches,
    class_weights,
    rectangular_batches,
)
from boltbox.detector.data.transforms.augment import Augment
from boltbox.detector.data.transforms.colour import flip
from boltbox.detector.model.boxes import cxcywhn_to_xyxy


@pytest.fixture(scope="module")
def data_yaml(tmp_path_factory: pytest.TempPathFactory) -> str:
    dataset = noise_set(tmp_path_factory.mktemp("set"))
    return str(Path(dataset.files[0]).parents[1] / "data.yaml")


@given(st.integers(1, 40), st.integers(1, 4), st.integers(1, 3), st.integers(0, 5), seeds)
@few
def test_each_image_once_an_epoch(n: int, per_rank: int, world: int, epoch: int, seed: int) -> None:
    batches = TrainBatches(n, per_rank * world, seed, position=lambda: (0, 0), world=world).batches(
        epoch
    )
    assert all(key.epoch == epoch and key.repeat == 0 for batch in batches for key in batch)
    # without what fills a batch up
    own = [key for batch in batches for key in dict.fromkeys(batch)]
    assert sorted(key.index for key in own) == list(range(n))


@given(st.integers(1, 40), st.integers(1, 4), st.sampled_from([1, 2, 3]), st.integers(0, 30), seeds)
@few
def test_ranks_share_one_global_order(
    n: int, per_rank: int, world: int, done: int, seed: int
) -> None:
    batch_size = 6 * per_rank  # divides by 1, 2, 3
    # fewer in the last batch: see the next test
    assume(world == 1 or (n - 1) % min(batch_size, n) + 1 >= world)
    at = divmod(done, -(-n // min(batch_size, n)))
    alone = list(TrainBatches(n, batch_size, seed, position=lambda: at))
    ranks = [
        list(TrainBatches(n, batch_size, seed, position=lambda: at, rank=r, world=world))
        for r in range(world)
    ]
    for k, batch in enumerate(alone):
        shares = [ranks[r][k] for r in range(world)]
        assert len({len(share) for share in shares}) == 1, "all ranks do the same work"
        merged = [key for turn in zip(*shares, strict=True) for key in turn]
        assert merged[: len(batch)] == batch
        filled = merged[len(batch) :]
        assert len(filled) == -len(batch) % world
        assert filled == batch[: len(filled)]
    assert {len(rank) for rank in ranks} == {len(alone)}


@pytest.mark.parametrize(("n", "batch_size", "world"), [(7, 6, 3), (1, 6, 3), (9, 8, 4), (2, 6, 6)])
def test_last_batch_smaller_than_the_world(n: int, batch_size: int, world: int) -> None:
    ranks = [
        list(TrainBatches(n, batch_size, 0, position=lambda: (0, 0), rank=r, world=world))
        for r in range(world)
    ]
    assert len({tuple(map(len, rank)) for rank in ranks}) == 1
    assert all(len(share) > 0 for rank in ranks for share in rank)


def test_order_changes_with_epoch_and_seed() -> None:
    orders = [
        TrainBatches(30, 4, seed, position=lambda: (0, 0)).order(epoch).tolist()
        for seed in (0, 1)
        for epoch in (0, 1)
    ]
    assert len({tuple(o) for o in orders}) == 4
    assert TrainBatches(30, 7, 0, position=lambda: (0, 0)).order(1).tolist() == orders[1], (
        "whatever the batch size"
    )


def test_resume() -> None:
    """Ten images in batches of three are four batches an epoch."""
    whole = TrainBatches(10, 3, seed=1, position=lambda: (0, 0))
    stream = [b for epoch in range(4) for b in whole.batches(epoch)]
    for done in range(12):
        at = TrainBatches(10, 3, seed=1, position=lambda done=done: divmod(done, 4))
        assert list(at) == stream[done : done + 4 - done % 4]
        assert len(at) == len(whole) == 4, "Lightning counts whole epochs"


def test_position_is_asked_for_at_the_start_of_each_epoch() -> None:
    position = 0

    def run(sampler: TrainBatches) -> Iterator[list[Key]]:
        nonlocal position
        for batch in sampler:
            position += 1
            yield batch

    sampler = TrainBatches(5, 2, seed=0, position=lambda: divmod(position, 3))
    epochs = [list(run(sampler)) for _ in range(3)]
    assert [{key.epoch for batch in epoch for key in batch} for epoch in epochs] == [{0}, {1}, {2}]


@pytest.mark.parametrize(
    ("n", "batch_size", "batches"), [(10, 3, 4), (9, 3, 3), (4, 16, 1), (8, 8, 1)]
)
def test_number_of_batches(n: int, batch_size: int, batches: int) -> None:
    sampler = TrainBatches(n, batch_size, 0, position=lambda: (0, 0))
    assert len(sampler) == len(list(sampler)) == batches


def test_fixed_order() -> None:
    order = np.array([3, 0, 2, 1])
    sampler = TrainBatches(4, 3, 0, position=lambda: (0, 0), order=order)
    assert sampler.batches(7) == [[Key(7, 3, 0), Key(7, 0, 0), Key(7, 2, 0)], [Key(7, 1, 0)]]


def test_repeats_are_numbered() -> None:
    sampler = TrainBatches(
        40, 7, 0, position=lambda: (0, 0), weights=lambda: np.array([1.0, 3.0] + [0.0] * 38)
    )
    keys = [key for batch in sampler.batches(2) for key in batch]
    assert len(keys) == 40
    for index in (0, 1):
        repeats = [key.repeat for key in keys if key.index == index]
        assert repeats == list(range(len(repeats)))
        assert len(repeats) > 4
    assert {key.index for key in keys} == {0, 1}


def test_weights_are_asked_for_afresh() -> None:
    weights = np.array([1.0, 0, 0])
    sampler = TrainBatches(3, 3, 0, position=lambda: (0, 0), weights=lambda: weights)
    assert sampler.order(0).tolist() == [0, 0, 0]
    weights = np.array([0, 0, 5.0])
    assert sampler.order(0).tolist() == [2, 2, 2]


def test_class_weights_in_numbers() -> None:
    # 1/4, 1 (absent), 1/2 over their sum 7/4
    np.testing.assert_allclose(class_weights(np.array([4, 0, 2])), [1 / 7, 4 / 7, 2 / 7])


def test_image_weights_in_the_data_module(data_yaml: str) -> None:
    """A class that is found well already is drawn less; without its weight only images with another
    class come."""
    data = DetectionData(data_yaml, image_size=SIZE, batch_size=4, workers=0, image_weights=True)
    data.setup("fit")
    sampler = data.train_dataloader().batch_sampler
    data.epoch_maps = [1.0, 1.0, 0.0]
    order = sampler.order(0)
    assert len(order) == 8
    assert {i for i in order.tolist() if 2 not in (i % 3, (i + 1) % 3)} == set()
    assert len(set(order.tolist())) > 1


def test_literal_validation_batches() -> None:
    """Twice the training batch; equal aspect ratios as numpy's default sort leaves them, which is
    the original's order."""
    shapes = np.array([(h, w) for h, w in np.random.default_rng(0).integers(2, 5, (200, 2)) * 60])
    ratio = shapes[:, 0] / shapes[:, 1]
    literal = np.concatenate(rectangular_batches(shapes, 320, 16, 32, 0.5, stable=False)[0])
    assert literal.tolist() == ratio.argsort().tolist()
    ours = np.concatenate(rectangular_batches(shapes, 320, 16, 32, 0.5)[0])
    assert ours.tolist() != literal.tolist()
    assert np.array_equal(ratio[ours], ratio[literal])


def test_literal_reaches_the_loader(data_yaml: str) -> None:
    sizes = []
    for literal, size in ((False, None), (True, None), (True, 5)):
        data = DetectionData(
            data_yaml, image_size=SIZE, batch_size=3, workers=0, val_batch_size=size
        )
        data.literal = literal
        data.setup("validate")
        shapes = data.datasets["val"].labels.sizes
        sampler = data.val_dataloader().batch_sampler
        assert sampler is not None
        sizes.append(max(len(b) for b in sampler))
        wanted = rectangular_batches(shapes, SIZE, sizes[-1], 32, 0.5, stable=not literal)[0]
        assert list(sampler) == wanted
    assert sizes == [3, 6, 5]


@given(
    st.lists(st.tuples(st.integers(10, 900), st.integers(10, 900)), min_size=1, max_size=30),
    st.integers(1, 8),
)
@few
def test_rectangular_batches(shapes: list[tuple[int, int]], batch_size: int) -> None:
    given_shapes = np.array(shapes)
    batches, per_image = rectangular_batches(given_shapes, 320, batch_size, 32, 0.0)
    assert sorted(i for batch in batches for i in batch) == list(range(len(shapes)))
    assert [len(b) for b in batches[:-1]] == [batch_size] * (len(batches) - 1)
    ratios = [shapes[i][0] / shapes[i][1] for batch in batches for i in batch]
    assert ratios == sorted(ratios)
    assert (per_image % 32 == 0).all()
    for batch in batches:
        (height, width) = per_image[batch[0]].tolist()
        assert (per_image[batch] == (height, width)).all()
        assert max(height, width) == 320
        need_height = max(320 * min(shapes[i][0] / shapes[i][1], 1) for i in batch)
        need_width = max(320 * min(shapes[i][1] / shapes[i][0], 1) for i in batch)
        assert height >= need_height - 1e-6
        assert width >= need_width - 1e-6
        if all(h < w for h, w in (shapes[i] for i in batch)):
            assert height - need_height < 32 + 1e-6
        if all(h > w for h, w in (shapes[i] for i in batch)):
            assert width - need_width < 32 + 1e-6


def test_rectangular_training(data_yaml: str) -> None:
    """Height over width: 20/60, 30/64, 40/64, then 50/50 and 64/64, then 48/40, 90/70, 64/33, in
    batches of three.

    Least rectangles of 64 pixels in steps of 32: 64 * 40/64 = 40 -> 64 high; the second holds
    ratios 1 and above: 64 x 64; the third: 64 / (90/70) = 49.8 -> 64 wide.
    """
    data = DetectionData(
        data_yaml, image_size=128, batch_size=2, workers=0, rect=True, augment=Augment(mosaic=1.0)
    )
    data.setup("fit")
    loader = data.train_dataloader()
    sampler = loader.batch_sampler
    # ratios: 0.33 0.47 | 0.625 1 (the smaller of the two squares) | 1 1.2 | 1.29 1.94
    expected = [[3, 0], [7, 5], [1, 2], [6, 4]]
    assert [[key.index for key in keys] for keys in sampler.batches(0)] == expected
    assert [[key.index for key in keys] for keys in sampler.batches(5)] == expected, "no shuffle"
    batches = list(loader)
    assert [b.indices for b in batches] == expected
    # 128 * 0.469 = 60 -> 64; up to ratio 1; from ratio 1; 128 / 1.286 = 99.6 -> 128
    assert [tuple(b.images.shape) for b in batches] == [
        (2, 3, 64, 128),
        (2, 3, 128, 128),
        (2, 3, 128, 128),
        (2, 3, 128, 128),
    ]
    assert all(len(b.targets) > 0 for b in batches)


def test_collate_in_numbers() -> None:
    boxes = np.array([[-5, 10, 70, 200], [20, 5, 40, 25], [150, 60, 160, 70]], np.float32)
    a = Sample(
        noise(50, 100, 1), boxes, np.array([2, 0, 1]), letterbox=LetterboxInfo(50, 100), index=7
    )
    b = Sample(noise(50, 100, 2), np.zeros((0, 4), np.float32), np.zeros(0, np.int64), index=3)
    c = flip(
        Sample(noise(50, 100, 3), np.array([[0, 0, 100, 50]], np.float32), np.array([4]), index=5),
        1,
    )
    batch = collate([a, b, c])
    assert (batch.images.shape, batch.images.dtype) == ((3, 3, 50, 100), torch.uint8)
    for k, s in enumerate((a, b, c)):
        assert np.array_equal(batch.images[k].numpy(), s.image.transpose(2, 0, 1)), (
            "channels first, RGB"
        )
    right = 100 - 1e-3
    bottom = 50 - 1e-3
    expected = [
        [0, 2, 70 / 2 / 100, (10 + bottom) / 2 / 50, 70 / 100, (bottom - 10) / 50],
        [0, 0, 0.3, 0.3, 0.2, 0.4],
        [0, 1, right / 100, bottom / 50, 0, 0],  # outside: on the last pixel, without size
        [2, 4, right / 2 / 100, bottom / 2 / 50, right / 100, bottom / 50],
    ]
    assert batch.targets.dtype == torch.float32
    np.testing.assert_allclose(batch.targets, expected, rtol=0, atol=1e-6)
    assert (batch.targets[:, 2:4] < 1).all(), "a centre lies in a cell of the grid"
    assert batch.indices == [7, 3, 5]
    assert batch.letterboxes == [LetterboxInfo(50, 100), None, None]
    assert batch.truths == [None, None, None]


def test_collate_without_any_object() -> None:
    empty = Sample(noise(8, 8), np.zeros((0, 4), np.float32), np.zeros(0, np.int64))
    batch = collate([empty, empty])
    assert batch.targets.shape == (0, 6)
    assert batch.targets.dtype == torch.float32


@given(seeds, st.integers(1, 4), st.sampled_from([(32, 32), (64, 96), (640, 640)]))
@few
def test_collate_gives_the_boxes_back(seed: int, n: int, shape: tuple[int, int]) -> None:
    height, width = shape
    samples = [random_sample(seed + k, 32, 32, n=k) for k in range(n)]
    for k, s in enumerate(samples):
        s.image, s.boxes = (
            np.zeros((height, width, 3), np.uint8),
            random_boxes(np.random.default_rng(k), k, width, height),
        )
    targets = collate(samples).targets.numpy()
    assert targets[:, 0].tolist() == [k for k in range(n) for _ in range(k)]
    assert targets[:, 1].tolist() == [float(c) for s in samples for c in s.classes]
    boxes = np.concatenate([s.boxes for s in samples])
    np.testing.assert_allclose(
        cxcywhn_to_xyxy(targets[:, 2:], width, height), boxes, rtol=0, atol=2e-3
    )


def test_device_hook_scales_to_one(data_yaml: str) -> None:
    batch = collate(
        [
            Sample(
                np.full((8, 8, 3), 51, np.uint8),
                np.zeros((0, 4), np.float32),
                np.zeros(0, np.int64),
            )
        ]
    )
    moved = DetectionData(data_yaml, workers=0).on_after_batch_transfer(batch, 0)
    assert moved.images.dtype == torch.float32
    assert moved.images.unique().tolist() == [pytest.approx(0.2)]
