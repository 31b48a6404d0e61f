"""Examines the images of a dataset: decodes each file, and compares it with all others."""

import multiprocessing
import signal
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

import numpy as np
from tqdm import tqdm

from boltbox.detector.commands.doctor.finding import Finding
from boltbox.detector.commands.doctor.image_file import ImageFile, examine_image
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.operating_system import (
    available_cores,
    die_with_this_parent,
    start_method,
)

DAMAGED = "damaged_image"  # the kind of fault for which a repair leaves an image out
# share of the bits of two hashes that differ; above 0.28 for different photos
MAX_DIFFERENCE = 0.16
FEW = 16  # images; fewer are decoded without worker processes


def examine_images(splits: Mapping[str, Collection[str]]) -> Iterator[Finding]:
    """Decode every image on all processors and report damage and copies.

    Args:
        splits: image paths by split, the training split first.

    Yields:
        The findings.

    Raises:
        InputError: a decoder crashed; the error names this image or one shortly before it.
    """
    paths: list[str] = []
    split_of: list[str] = []
    for split, files in splits.items():
        unique = list(dict.fromkeys(files))
        paths += unique
        split_of += [split] * len(unique)
    images: list[ImageFile] = []
    try:
        images.extend(tqdm(_decoded(paths), "images", len(paths), mininterval=1))
    except BrokenProcessPool as e:
        raise InputError(
            f"{paths[len(images)]}: a decoder crashed on this image or on one of the next, or"
            f" memory ran out ({e}); remove the image"
        ) from None
    for split, path, image in zip(split_of, paths, images, strict=True):
        if image.damage:
            problem = f"damaged: the decoder says '{image.damage}'"
            yield Finding("fault", DAMAGED, problem, path, split, image=path)
    hashed = [i for i, image in enumerate(images) if image.bits]
    hashes = np.frombuffer(b"".join(images[i].bits for i in hashed), np.uint64).reshape(-1, 8)
    groups = np.array([split_of[i] for i in hashed])
    for a, b in near_duplicates(hashes, groups):
        i = hashed[a]
        k = hashed[b]
        is_same = images[i].digest == images[k].digest
        problem = f"{'the same image as' if is_same else 'looks like'} {paths[k]}"
        if split_of[i] != split_of[k]:
            doubt = "" if is_same else "if it is a copy or the next frame, "
            problem += f" of {split_of[k]}: {doubt}metrics measured on it are too high"
            kind = "duplicate_across_splits" if is_same else "similar_across_splits"
        elif is_same:
            kind = "duplicate_image"
        else:
            continue
        yield Finding(
            "warning", kind, problem, paths[i], split_of[i], image=paths[i], other=paths[k]
        )


def _decoded(paths: list[str]) -> Iterator[ImageFile]:
    """In the order of the paths."""
    workers = min(available_cores(), len(paths) // FEW)
    if not workers:
        yield from map(examine_image, paths)
        return
    context = multiprocessing.get_context(start_method())
    with ProcessPoolExecutor(workers, context, _prepare_worker) as pool:
        yield from pool.map(examine_image, paths)


def _prepare_worker() -> None:
    """Only the main process answers Ctrl-C. It ends its workers by SIGTERM, for which they may have
    inherited a handler."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    die_with_this_parent()


def near_duplicates(hashes: np.ndarray, groups: np.ndarray) -> Iterator[tuple[int, int]]:
    """Find hashes that resemble an earlier one.

    Each is compared with each: 10,000 take seconds, 100,000 a minute or two.

    Args:
        hashes: (n, 8) uint64 of `difference_hash`.
        groups: (n,) split of each.

    Yields:
        The index of the hash, and of the earlier one that it resembles most; one of another group
        comes first.
    """
    for i in range(1, len(hashes)):
        differences = np.bitwise_count(hashes[:i] ^ hashes[i]).sum(1, dtype=int)  # of 480 bits
        near = np.flatnonzero(differences <= MAX_DIFFERENCE * 480)
        if len(near):
            order = np.lexsort((near, differences[near], groups[near] == groups[i]))
            yield i, int(near[order[0]])
