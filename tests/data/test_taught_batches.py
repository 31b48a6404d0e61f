"""Batches of labelled and taught images: which ones, in every epoch, for any number of processes."""

from collections import Counter
from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

from boltbox.detector.data.sampler import TrainBatches, taught_images


def sampler(n: int, batch: int, taught: int, **more: int) -> TrainBatches:
    return TrainBatches(n, batch, 0, position=lambda: (3, 0), taught=taught, **more)


@given(st.integers(1, 40), st.integers(1, 8), st.integers(1, 60))
def test_all_come_equally_often(n: int, half: int, taught: int) -> None:
    whole = sampler(n, 2 * half, taught)
    each = taught_images(2 * half, n, taught)
    seen: Counter[int] = Counter()
    for epoch in range(5):
        batches = whole.batches(epoch)
        assert len(batches) == len(whole)
        keys = [*chain(*batches)]
        assert sorted(key.index for key in keys if key.index < n) == [*range(n)]
        seen.update(key.index for key in keys if key.index >= n)
        assert len({(key.index, key.repeat) for key in keys}) == len(keys)
        for key in keys:
            assert all((other >= n) == (key.index >= n) for other in key.partners)
        for batch in batches:
            assert sum(key.index >= n for key in batch) == each <= half
    counts = [seen[k] for k in range(n, n + taught)]
    assert max(counts) - min(counts) <= 1
    assert sum(seen.values()) == sum(counts) == 5 * len(whole) * each


def test_processes_share_them() -> None:
    alone = [*sampler(20, 8, 30)]
    shares = [[*sampler(20, 8, 30, rank=rank, world=2)] for rank in range(2)]
    for batch, *own in zip(alone, *shares, strict=True):
        assert sorted(map(repr, chain(*own))) == sorted(map(repr, batch))
        assert len(own[0]) == len(own[1])
