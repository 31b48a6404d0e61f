"""What is wrong with the images of a data set: each file is decoded, and compared with all
others."""

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import combinations
from queue import SimpleQueue
from typing import NamedTuple

import numpy as np

from boltbox.detector.commands.doctor.decoder import Decoder
from boltbox.detector.commands.doctor.finding import Finding
from boltbox.detector.commands.doctor.near_duplicates import SIDE, near_duplicates
from boltbox.detector.commands.doctor.picture import Picture

TOO_GOOD = "figures measured on it are too good"
_AHEAD = 1024  # images that wait for a decoder, so that a million paths do not queue at once


class _File(NamedTuple):
    """One file on the disk and the splits that it is in, in order."""

    path: str
    splits: list[str]
    times: int


def examine_images(
    splits: dict[str, list[str]],
    progress: Callable[[int], None],
    objects: Callable[[str], np.ndarray | None] = lambda path: None,
) -> list[Finding]:
    """Decode every image, each file once; on all processors, each image with about 3 kB kept.

    Args:
        splits: image paths by split, the training split first.
        progress: is told how many more images are done.
        objects: gives the (n, 5) class and xyxy of the objects of an image, None where nothing is
            known.

    Returns:
        faults: missing_image, unreadable_image, truncated_image, damaged_image, too_small_image,
            too_large_image,
        size_unlike_header, different_labels (the same image twice, with other boxes);
        warnings: wrong_suffix, no_end_marker, duplicate_image (in a split),
            duplicate_across_splits, shared_images (one file in
        several splits, said once), similar_across_splits; notes: exif_rotation, damaged_exif,
            grey_image, alpha_channel,
        cmyk_image, deep_colours, large_image, narrow_image, decoder_remark, similar_image.
    """
    files = _files(splits)
    pictures = []
    for file, picture in zip(files, _look([file.path for file in files]), strict=True):
        pictures.append(picture)
        progress(file.times)
    findings = [
        Finding(severity, kind, file.splits[0], file.path, "", problem)
        for file, picture in zip(files, pictures, strict=True)
        for severity, kind, problem in picture.remarks
    ]
    firsts, duplicates = _duplicates(files, pictures, objects)
    return [*findings, *_shared(files), *duplicates, *_similar(files, pictures, firsts)]


def _files(splits: dict[str, list[str]]) -> list[_File]:
    """Every file once, in the order of the splits."""
    found: dict[str, _File] = {}
    for split, paths in splits.items():
        for path in paths:
            file = found.setdefault(os.path.realpath(path), _File(path, [], 0))
            names = file.splits if split in file.splits else [*file.splits, split]
            found[os.path.realpath(path)] = _File(file.path, names, file.times + 1)
    return list(found.values())


def _look(paths: list[str]) -> Iterator[Picture]:
    """A Picture for each path, from as many decoders as there are processors to use."""
    # a decoder starts in the time that it takes to decode 50
    count = min(len(os.sched_getaffinity(0)), 1 + len(paths) // 16)
    with ExitStack() as stack:
        idle: SimpleQueue[Decoder] = SimpleQueue()
        for _ in range(count):
            idle.put(stack.enter_context(Decoder()))

        def look(path: str) -> Picture:
            decoder = idle.get()
            try:
                return decoder.look_at(path)
            finally:
                idle.put(decoder)

        pool = stack.enter_context(ThreadPoolExecutor(count))
        for start in range(0, len(paths), _AHEAD):
            yield from pool.map(look, paths[start : start + _AHEAD])


def _shared(files: list[_File]) -> list[Finding]:
    """Splits that hold the same files, said once for each pair."""
    findings = []
    names = list(dict.fromkeys(name for file in files for name in file.splits))
    for earlier, later in combinations(names, 2):
        of_later = [file for file in files if later in file.splits]
        common = sum(earlier in file.splits for file in of_later)
        if common:
            which = (
                "all of its images"
                if common == len(of_later)
                else f"{common} of its {len(of_later)} images"
            )
            problem = f"{which} are the very files of {earlier}: {TOO_GOOD}"
            findings.append(Finding("warning", "shared_images", later, "", "", problem))
    return findings


def _duplicates(
    files: list[_File], pictures: list[Picture], objects: Callable[[str], np.ndarray | None]
) -> tuple[list[int], list[Finding]]:
    """Numbers of the files whose content is new; findings on the others."""
    same: dict[str, list[int]] = defaultdict(list)
    firsts, findings = [], []
    for i, (file, picture) in enumerate(zip(files, pictures, strict=True)):
        earlier = same[picture.digest]
        if not picture.digest or not earlier:
            firsts.append(i)
        else:
            split = file.splits[0]
            other = next((files[j] for j in earlier if files[j].splits[0] != split), None)
            if other:
                problem = f"the same image as {other.path} of {other.splits[0]}: {TOO_GOOD}"
                findings.append(
                    Finding("warning", "duplicate_across_splits", split, file.path, "", problem)
                )
            else:
                problem = f"the same image as {files[earlier[0]].path}"
                findings.append(
                    Finding("warning", "duplicate_image", split, file.path, "", problem)
                )
            twin = (other or files[earlier[0]]).path
            difference = _difference(objects(file.path), objects(twin))
            if difference:
                problem = (
                    f"the same image as {twin}, with other boxes: {difference}; one of them is"
                    " wrong"
                )
                findings.append(Finding("fault", "different_labels", split, file.path, "", problem))
        earlier.append(i)
    return firsts, findings


def _difference(own: np.ndarray | None, others: np.ndarray | None) -> str:
    """How the objects (n, 5) of two identical images differ, in words; an empty string if they do
    not, to a pixel."""
    if own is None or others is None:
        return ""
    a, b = (x[np.lexsort(x.T[::-1])] for x in (own, others))
    if a.shape == b.shape and np.abs(a - b).max(initial=0) < 1:
        return ""
    same = sum(
        (Counter(map(tuple, a.round().tolist())) & Counter(map(tuple, b.round().tolist()))).values()
    )
    return f"{len(a)} here, {len(b)} there, {same} of them the same"


def _similar(files: list[_File], pictures: list[Picture], firsts: list[int]) -> list[Finding]:
    """Findings on images that look like another, of those with content of their own."""
    numbers = [i for i in firsts if pictures[i].thumbnail]
    levels = np.frombuffer(b"".join(pictures[i].thumbnail for i in numbers), np.uint8)
    splits = [files[i].splits[0] for i in numbers]
    known = list(dict.fromkeys(splits))
    findings = []
    groups, paper = (
        np.array([known.index(split) for split in splits], int),
        np.array([pictures[i].paper for i in numbers], bool),
    )
    for a, b in near_duplicates(levels.reshape(-1, SIDE, SIDE), groups, paper):
        file, other = files[numbers[a]], files[numbers[b]]
        if splits[a] != splits[b]:
            problem = (
                f"looks like {other.path} of {splits[b]}: if it is a copy or the next frame,"
                f" {TOO_GOOD}"
            )
            findings.append(
                Finding("warning", "similar_across_splits", splits[a], file.path, "", problem)
            )
        else:
            findings.append(
                Finding(
                    "note", "similar_image", splits[a], file.path, "", f"looks like {other.path}"
                )
            )
    return findings
