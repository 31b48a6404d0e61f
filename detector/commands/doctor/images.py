"""What is wrong with the images of a data set: each file is decoded, and compared with all
others."""

import multiprocessing
import signal
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

import numpy as np
from tqdm import tqdm

from boltbox.detector.commands.doctor.finding import Finding
from boltbox.detector.commands.doctor.image_file import ImageFile, look_at
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.operating_system import (
    available_cores,
    die_with_this_parent,
    start_method,
)

ALIKE = 0.16  # share of the bits of two hashes that differ; of different photos it is above 0.28
FEW = 16  # images; fewer are decoded without worker processes


def examine_images(splits: Mapping[str, Collection[str]]) -> Iterator[Finding]:
    """Decode every image on all processors, and report what is remarkable about it, also its like
    among the earlier ones.

    Args:
        splits: image paths by split, the training split first.

    Raises:
        InputError: a decoder crashed; it names an image at or shortly before the one.
    """
    files = [(split, path) for split, paths in splits.items() for path in dict.fromkeys(paths)]
    looks = list[ImageFile]()
    try:
        decoded = _decoded([path for _, path in files])
        looks.extend(tqdm(decoded, "images", len(files), mininterval=1))
    except BrokenProcessPool as e:
        raise InputError(
            f"{files[len(looks)][1]}: a decoder crashed on this image or on one of the next, or"
            f" memory ran out ({e}); remove the image"
        ) from None
    for (split, path), look in zip(files, looks, strict=True):
        for severity, kind, problem in look.remarks:
            yield Finding(severity, kind, problem, path, split, image=path)
    seen = [i for i, look in enumerate(looks) if look.bits]
    hashes = np.frombuffer(b"".join(looks[i].bits for i in seen), np.uint64).reshape(-1, 8)
    groups = np.array([files[i][0] for i in seen])
    for a, b in near_duplicates(hashes, groups):
        i, j = seen[a], seen[b]
        yield _alike(*files[i], *files[j], looks[i].digest == looks[j].digest)


def _decoded(paths: list[str]) -> Iterator[ImageFile]:
    """In the order of the paths."""
    workers = min(available_cores(), len(paths) // FEW)
    if not workers:
        yield from map(look_at, paths)
        return
    context = multiprocessing.get_context(start_method())
    with ProcessPoolExecutor(workers, context, _prepare_worker) as pool:
        yield from pool.map(look_at, paths)


def _prepare_worker() -> None:
    """Ctrl-C is answered by the main process only, which ends its workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_this_parent()


def _alike(split: str, path: str, earlier: str, other: str, same: bool) -> Finding:
    """An image that looks like one of an earlier split or of its own: the same file, a resized one,
    or the next frame of a video. same: byte for byte."""
    severity, kind = ("warning", "duplicate") if same else ("note", "similar")
    problem = f"{'the same image as' if same else 'looks like'} {other}"
    if split == earlier:
        return Finding(severity, f"{kind}_image", problem, path, split, image=path, other=other)
    doubt = "" if same else "if it is a copy or the next frame, "
    problem += f" of {earlier}: {doubt}metrics measured on it are too high"
    kind = f"{kind}_across_splits"
    return Finding("warning", kind, problem, path, split, image=path, other=other)


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
