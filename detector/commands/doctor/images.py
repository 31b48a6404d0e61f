"""What is wrong with the images of a data set: each file is decoded, and compared with all
others."""

import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import combinations
from typing import NamedTuple

import numpy as np

from boltbox.detector.commands.doctor.finding import Finding
from boltbox.detector.commands.doctor.image_file import ImageFile, look_at
from boltbox.detector.data.loader import WorkerContext, prepare_worker
from boltbox.detector.system.errors import InputError

TOO_GOOD = "figures measured on it are too good"
ALIKE = 0.16  # share of the bits of two hashes that differ; of different photos it is above 0.28
FEW = 16  # images; fewer are decoded without worker processes


class _File(NamedTuple):
    """One file on the disk and the splits that it is in, in order."""

    path: str
    splits: list[str]


def examine_images(
    splits: Mapping[str, Collection[str]], show: Callable[..., Iterable[ImageFile]] = iter
) -> list[Finding]:
    """Decode every image, each file once, on all processors.

    Args:
        splits: image paths by split, the training split first.
        show: what the images pass through, a progress bar for instance.

    Raises:
        InputError: a decoder crashed; it names an image at or shortly before the one.
    """
    found: dict[str, _File] = {}
    for split, paths in splits.items():
        for path in paths:
            file = found.setdefault(os.path.realpath(path), _File(path, []))
            file.splits.extend([] if split in file.splits else [split])
    files, looks = list(found.values()), list[ImageFile]()
    try:
        looks.extend(show(_decoded([file.path for file in files])))
    except BrokenProcessPool as e:
        raise InputError(
            f"{files[len(looks)].path}: a decoder crashed on this image or on one of the next, or"
            f" memory ran out ({e}); remove the image"
        ) from None
    remarks = [
        Finding(severity, kind, file.splits[0], file.path, "", problem, file.path)
        for file, look in zip(files, looks, strict=True)
        for severity, kind, problem in look.remarks
    ]
    return [*remarks, *_shared(files), *_duplicates(files, looks), *_similar(files, looks)]


def _decoded(paths: list[str]) -> Iterator[ImageFile]:
    """In the order of the paths."""
    workers = min(len(os.sched_getaffinity(0)), len(paths) // FEW)
    if not workers:
        yield from map(look_at, paths)
        return
    with ProcessPoolExecutor(workers, WorkerContext(), prepare_worker, (0,)) as pool:
        yield from pool.map(look_at, paths)


def _shared(files: list[_File]) -> Iterator[Finding]:
    """Splits that hold the same files, reported once for each pair."""
    names = dict.fromkeys(name for file in files for name in file.splits)
    for earlier, later in combinations(names, 2):
        of_later = [file for file in files if later in file.splits]
        common = sum(earlier in file.splits for file in of_later)
        if common:
            which = f"{common} of its {len(of_later)} images are the very files of {earlier}"
            yield Finding("warning", "shared_images", later, "", "", f"{which}: {TOO_GOOD}")


def _duplicates(files: list[_File], looks: list[ImageFile]) -> Iterator[Finding]:
    """Files of the same content as an earlier one, of another split if there is one."""
    same: dict[str, list[_File]] = defaultdict(list)
    for file, look in zip(files, looks, strict=True):
        split, path, earlier = file.splits[0], file.path, same[look.digest]
        if look.digest and earlier:
            twin = next((other for other in earlier if other.splits[0] != split), earlier[0])
            kind, problem = "duplicate_image", f"the same image as {twin.path}"
            if twin.splits[0] != split:
                kind = "duplicate_across_splits"
                problem = f"{problem} of {twin.splits[0]}: {TOO_GOOD}"
            yield Finding("warning", kind, split, path, "", problem, path, None, twin.path)
        earlier.append(file)


def _similar(files: list[_File], looks: list[ImageFile]) -> Iterator[Finding]:
    """Images that look like another, of another content: resized, compressed again, or the next
    frame of a video."""
    contents = {look.digest: i for i, look in reversed([*enumerate(looks)]) if look.bits}
    numbers = sorted(contents.values())
    splits = [files[i].splits[0] for i in numbers]
    hashes = np.frombuffer(b"".join(looks[i].bits for i in numbers), np.uint64).reshape(-1, 8)
    for a, b in near_duplicates(hashes, np.unique(splits, return_inverse=True)[1]):
        path, other, split = files[numbers[a]].path, files[numbers[b]].path, splits[b]
        severity, kind, problem = "note", "similar_image", f"looks like {other}"
        if split != splits[a]:
            severity, kind = "warning", "similar_across_splits"
            problem = f"{problem} of {split}: if it is a copy or the next frame, {TOO_GOOD}"
        yield Finding(severity, kind, splits[a], path, "", problem, path, None, other)


def near_duplicates(hashes: np.ndarray, groups: np.ndarray) -> Iterator[tuple[int, int]]:
    """For each hash that is like an earlier one: its number and that of the earlier one which it is
    most like, first of those in another group.

    Args:
        hashes: (n, 8) uint64 of `difference_hash`. groups: (n,) split of each.

    Each is compared with each: 10,000 take seconds, 100,000 a minute or two.
    """
    for i in range(1, len(hashes)):
        differences = np.bitwise_count(hashes[:i] ^ hashes[i]).sum(1, dtype=int)  # of 480 bits
        near = np.flatnonzero(differences <= ALIKE * 480)
        if len(near):
            order = np.lexsort((near, differences[near], groups[near] == groups[i]))
            yield i, int(near[order[0]])
