"""What the doctor says of image files."""

import re
from pathlib import Path

import cv2
import numpy as np
import pytest
from made_datasets import picture, save
from made_labels import examine
from made_runs import column
from PIL import Image

from boltbox.detector.commands.doctor import images, near_duplicates
from boltbox.detector.commands.doctor.images import BATCH
from boltbox.detector.commands.doctor.near_duplicates import MAX_DIFFERENCE


def smooth(height, width, seed=0):
    """(height, width, 3) uint8: soft blobs, which survive JPEG and a change of size."""
    return cv2.resize(picture(7, 7, seed), (width, height), interpolation=cv2.INTER_CUBIC)


# Whole files have nothing said of them


def test_nothing_to_say(tmp_path):
    kinds_of_files = [
        ("jpg", {"progressive": True}),
        ("jpg", {"quality": 100, "subsampling": 0, "optimize": True}),
        ("png", {}),
        ("bmp", {}),
        ("tif", {"compression": "tiff_lzw"}),
        ("webp", {}),
        ("mpo", {}),
    ]
    files = []
    for size in ((10, 13), (128, 384)):
        for suffix, options in kinds_of_files:
            files.append(tmp_path / f"{len(files)}.{suffix}")
            Image.fromarray(smooth(*size, len(files))).save(files[-1], **options)
    assert examine(train=files) == []


# Faults


def cut(share):
    return lambda data: data[: int(len(data) * share)]


def flip(where):
    """One byte of the compressed data changed."""
    return lambda data: (
        data[: (k := int(len(data) * where))] + bytes([data[k] ^ 0x55]) + data[k + 1 :]
    )


BROKEN = [
    ("jpg", cut(0.5)),
    ("jpg", cut(0.97)),
    ("jpg", flip(0.7)),
    ("jpg", cut(0.01)),
    ("png", cut(0.5)),
    ("png", flip(0.5)),
    ("webp", cut(0.5)),
    ("bmp", cut(0.5)),
    ("tif", cut(0.5)),  # its directory is at the end
    ("png", lambda data: b""),
    ("jpg", lambda data: b"<html>not found</html>"),
]


@pytest.mark.parametrize("size", [(40, 60), (200, 160)])
def test_broken_files(tmp_path, size, capfd):
    paths = []
    for k, (suffix, spoil) in enumerate(BROKEN):
        paths.append(save(tmp_path / f"{k}.{suffix}", picture(*size, k)))
        paths[k].write_bytes(spoil(paths[k].read_bytes()))
    findings = examine(train=paths + [save(tmp_path / "good.png", picture(*size, 99))])
    assert column(findings, "file") == list(map(str, paths))
    assert set(column(findings, "severity")) == {"fault"}
    assert set(column(findings, "kind")) == {"damaged_image"}
    bar = r"images: +\d+%\|[^|\r\n]*\| \d+/\d+ \[[^\]]*\]"
    rest = re.sub(bar, "", capfd.readouterr().err).strip()
    assert rest == "", "what decoders say is for the report, not for the terminal"


def test_workers_find_what_one_process_finds(tmp_path, monkeypatch):
    paths = [str(save(tmp_path / f"{k}.jpg", smooth(80, 90, k % 7))) for k in range(3 * BATCH + 1)]
    for k in (3, 48):
        Path(paths[k]).write_bytes(cut(0.5)(Path(paths[k]).read_bytes()))
    findings = examine(train=paths)
    monkeypatch.setattr(images, "BATCH", 100)
    assert examine(train=paths) == findings


# Duplicates


def test_duplicates(tmp_path):
    a = save(tmp_path / "a.png", smooth(40, 60))
    b = save(tmp_path / "b.png", smooth(40, 60, 1)[..., 0] * np.uint16(257))
    a2, a3, b2 = map(tmp_path.joinpath, ("a2.png", "a3.png", "b2.png"))
    for copy, of in ((a2, a), (a3, a), (b2, b)):
        copy.write_bytes(of.read_bytes())
    blank = [save(tmp_path / f"{k}.png", np.full((40, 60, 3), k % 2, np.uint8)) for k in range(3)]
    findings = examine(train=[a, b, a2] + blank, val=[a3], test=[b2, a2])
    assert [(f.severity, f.kind, f.split, f.file, f.other) for f in findings] == [
        ("warning", "duplicate_image", "train", str(a2), str(a)),
        ("warning", "duplicate_image", "train", str(blank[2]), str(blank[0])),
        ("warning", "duplicate_across_splits", "val", str(a3), str(a)),
        ("warning", "duplicate_across_splits", "test", str(b2), str(b)),
        ("warning", "duplicate_across_splits", "test", str(a2), str(a)),
    ]


@pytest.mark.parametrize(
    "change",
    [
        lambda image: cv2.resize(image, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA),
        lambda image: cv2.convertScaleAbs(image, alpha=1.1, beta=8),
        lambda image: image[2:, 3:],
        lambda image: image,  # another file format
    ],
)
def test_copies_that_look_alike(tmp_path, change):
    originals = [save(tmp_path / f"{k}.png", smooth(160, 240, k)) for k in range(6)]
    copy = save(tmp_path / "copy.jpg", change(smooth(160, 240, 3)))
    assert examine(train=originals + [copy]) == [], "in one split it changes no metric"
    (finding,) = examine(train=originals, val=[copy])
    assert (finding.kind, finding.split) == ("similar_across_splits", "val")
    assert (finding.file, finding.other) == (str(copy), str(originals[3]))


def by_counting_bits(bits, groups):
    """The oracle of `near_duplicates`: every pair of bits (n, 480)."""
    signs = bits * 2.0 - 1
    differences = (480 - signs @ signs.T) / 2  # (n, n)
    pairs = []
    for i, row in enumerate(differences):
        is_same = groups == groups[i]
        rivals = np.flatnonzero(row[:i] <= MAX_DIFFERENCE * 480)
        ranks = [(row[j] > 0 or not is_same[j], is_same[j], row[j], j) for j in rivals]
        if ranks:
            pairs.append((i, min(ranks)[-1]))
    return pairs


@pytest.mark.parametrize("seed", range(3))
def test_near_duplicates_are_those_of_comparing_all(seed, monkeypatch):
    """Also pairs at the limit of 76 bits that lie evenly in all parts of the hash, hashes that many
    images of several splits share, and hashes that differ in one bit. No pair is left to the
    comparison of all, unless most resemble each other."""
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 2, (2000, 480), np.uint8)
    parts = np.array_split(np.random.default_rng(0).permutation(480), 13)
    evenly = np.concatenate([[part[k] for part in parts] for k in range(36)])
    for distance in range(70, 83):
        for at in (0, rng.integers(300)):
            copy, of = rng.integers(0, len(bits), 2)
            bits[copy] = bits[of]
            bits[copy, evenly[at : at + distance]] ^= 1
    chosen = rng.choice(len(bits), 70, replace=False)
    bits[chosen[:30]] = bits[chosen[0]]
    bits[chosen[30:60]] = bits[chosen[0]] ^ (rng.random(480) < 0.1)
    bits[chosen[60:]] = bits[chosen[0]] ^ (rng.random((10, 480)) < 0.1)
    bits[500:548] = bits[600:648] = bits[:48] ^ np.eye(480, dtype=np.uint8)[::10]
    hashes = [row.tobytes().ljust(64, b"\0") for row in np.packbits(bits, axis=1)]
    groups = rng.choice(["train", "val", "test"], len(bits))
    expected = by_counting_bits(bits, groups)
    assert len(expected) > 70
    with monkeypatch.context() as patch:
        patch.delattr(near_duplicates, "_all_pairs")
        assert list(near_duplicates.near_duplicates(hashes, groups)) == expected
    dense = near_duplicates.near_duplicates([hashes[k] for k in chosen], groups[chosen])
    assert list(dense) == by_counting_bits(bits[chosen], groups[chosen])
