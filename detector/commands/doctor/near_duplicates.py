"""Finds image hashes that resemble each other, without comparing each with each."""

from collections.abc import Iterator, Sequence

import numpy as np

# share of the bits of two hashes that differ; above 0.28 for different photos
MAX_DIFFERENCE = 0.16
_BITS = 480
_MAX_BITS = int(MAX_DIFFERENCE * _BITS)  # 76
# If at most 76 bits differ, at most 5 do in one of 13 parts. The 37 bits of a part and the index of
# a hash fit into 64 bits.
_PARTS = 13
_MAX_BITS_OF_PART = _MAX_BITS // _PARTS
_INDEX_BITS = 27
_LAST_INDEX = (1 << _INDEX_BITS) - 1
# The rank of an earlier hash: whether its group is the same, difference (7 bits), index.
_SAME_GROUP = 1 << (7 + _INDEX_BITS)
_NO_RANK = 2 * _SAME_GROUP
_COST_OF_CHECK = 20  # of all bits of a pair; 1: of the bits of one part


def _mask(v: int) -> int:
    """See `_candidates`; the bits k of a part have the numbers 27 + k."""
    return sum(1 << k for k in range(37) if ((27 + k) & v).bit_count() % 2)


MASKS = [_mask(v) for v in range(1, 64)]


def near_duplicates(bits: Sequence[bytes], groups: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Find images that resemble an earlier one.

    Time grows about as n log n; if too many hashes resemble each other, each is compared with each.

    Args:
        bits: `difference_hash` of each image; empty: it resembles none.
        groups: the split of each.

    Yields:
        The number of the image, and of the earlier one that it resembles most: its first copy in
        the same group; else one of another group comes first.
    """
    numbers = [i for i, of_image in enumerate(bits) if of_image]
    hashes = np.frombuffer(b"".join(bits), np.uint64).reshape(-1, 8)
    _, group_of = np.unique([groups[i] for i in numbers], return_inverse=True)
    rows = np.column_stack((hashes, group_of.astype(np.uint64)))
    _, first, number = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    originals = np.sort(first)
    similar = _most_similar(hashes[originals], group_of[originals])
    found = first[number.ravel()]
    found[originals] = np.where(similar < 0, -1, originals[similar])
    for i in np.flatnonzero(found >= 0).tolist():
        yield numbers[i], numbers[found[i]]


def _most_similar(hashes: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """(n,) index of the earlier hash that each resembles, -1: none."""
    best = np.full(len(hashes), _NO_RANK)
    for earlier, later in _candidates(hashes):
        bits = np.bitwise_count(hashes[earlier] ^ hashes[later]).sum(1, dtype=int)
        near = bits <= _MAX_BITS
        earlier = earlier[near]
        later = later[near]
        is_same = groups[earlier] == groups[later]
        rank = is_same * _SAME_GROUP + (bits[near] << _INDEX_BITS) + earlier
        np.minimum.at(best, later, rank)
    return np.where(best == _NO_RANK, -1, best & _LAST_INDEX)


def _candidates(hashes: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Pairs of hashes (n, 8), with every one that differs in at most 76 bits; most of these come
    several times.

    Sorting by some bits of a part brings hashes together that are equal in these. The bits of a
    part have numbers of six binary digits, and mask v of 63 keeps those bits whose numbers share an
    odd count of ones with v. For any five bits there is a mask that keeps none: five numbers span
    at most five dimensions, and v is orthogonal to these (R. Pagh, "Locality-sensitive hashing
    without false negatives", 2016).

    Yields:
        The indices (k,) of the earlier and (k,) of the later hashes.
    """
    n = len(hashes)
    work = 0
    shuffled = np.random.default_rng(0).permutation(_BITS)  # neighbours in an image are alike
    for places in np.array_split(shuffled, _PARTS):
        part = np.zeros(n, np.uint64)
        for place in places.tolist():
            bit = hashes.view(np.uint8)[:, place // 8] >> (7 - place % 8) & 1
            part = part << 1 | bit
        for v, mask in enumerate(MASKS):
            keys = (part & mask) << _INDEX_BITS | np.arange(n, dtype=np.uint64)
            keys.sort()
            order = (keys & _LAST_INDEX).astype(int)
            keys >>= _INDEX_BITS
            of_part = part[order]
            distance = 1
            first = np.flatnonzero(keys[1:] == keys[:-1])
            while len(first):
                differences = of_part[first] ^ of_part[first + distance]
                near = np.flatnonzero(np.bitwise_count(differences) <= _MAX_BITS_OF_PART)
                for earlier in MASKS[: min(v, 8)]:  # leaves out most pairs that have come before
                    near = near[differences[near] & earlier > 0]
                work += len(first) + _COST_OF_CHECK * len(near)
                if 2 * work > n * n:
                    yield from _all_pairs(n)
                    return
                yield order[first[near]], order[first[near] + distance]
                distance += 1
                first = first[first < n - distance]
                first = first[keys[first] == keys[first + distance]]


def _all_pairs(n: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """In n steps: 10,000 hashes take seconds."""
    for later in range(1, n):
        yield np.arange(later), np.full(later, later)
