"""Examines the images of a dataset: decodes each file, and compares it with all others."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import chain
from typing import NamedTuple

import cv2
import numpy as np
from PIL import Image
from torch.utils.data import BatchSampler

from boltbox.detector.commands.doctor.finding import Finding
from boltbox.detector.commands.doctor.near_duplicates import near_duplicates
from boltbox.detector.data.datasets import DetectionDataset
from boltbox.detector.data.images import UNREADABLE, ImageContent, rgb
from boltbox.detector.data.loader import make_loader
from boltbox.detector.data.sample import Labels
from boltbox.detector.model.boxes import pairwise_iou_xyxy
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.operating_system import captured_stderr
from boltbox.detector.system.rank_zero import progress

DAMAGED = "damaged_image"  # the kind of fault for which a repair leaves an image out
BATCH = 16  # images that a worker process decodes at a time; fewer need none
SAME_OBJECT = 0.8  # IoU of the boxes that two people draw around an object
# What libjpeg and libpng write to the standard error, and nowhere else, when pixels are lost.
_PIXELS_LOST = ("Corrupt JPEG data", "Premature end of JPEG", "libpng error")
_HASH_SIDE = 16  # pixels


def examine_images(datasets: Mapping[str, DetectionDataset]) -> Iterator[Finding]:
    """Decode every image on all processors and report damage and copies.

    Args:
        datasets: by split, the training split first.

    Yields:
        The findings.
    """
    paths: list[str] = []
    split_of: list[str] = []
    number_of: list[int] = []  # in the split
    for split, dataset in datasets.items():
        paths += dataset.files
        split_of += [split] * len(dataset.files)
        number_of += range(len(dataset.files))
    images = read_images(paths)
    for split, path, image in zip(split_of, paths, images, strict=True):
        if image.damage:
            problem = f"damaged: the decoder says '{image.damage}'"
            yield Finding(DAMAGED, problem, path, split, image=path)
    for i, k in near_duplicates([image.bits for image in images], split_of):
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
        labels = datasets[split_of[i]].labels[number_of[i]]
        if is_same and not same_objects(labels, datasets[split_of[k]].labels[number_of[k]]):
            kind = "different_labels"
            problem += "; with other boxes, of which some are wrong"
        yield Finding(kind, problem, paths[i], split_of[i], image=paths[i], other=paths[k])


def same_objects(a: Labels, b: Labels) -> bool:
    """Whether two images have equally many objects of each class, and each object has one of its
    class in the other image at an IoU of at least SAME_OBJECT.

    Args:
        a: of one image.
        b: of the other, in the same pixels.
    """
    if sorted(a.classes.tolist()) != sorted(b.classes.tolist()):
        return False
    overlaps = pairwise_iou_xyxy(a.boxes.astype(float), b.boxes.astype(float))
    overlaps[a.classes[:, None] != b.classes] = 0
    of_a = overlaps.max(1, initial=0)
    of_b = overlaps.max(0, initial=0)
    return bool((of_a >= SAME_OBJECT).all() and (of_b >= SAME_OBJECT).all())


class ImageFile(NamedTuple):
    """What the doctor knows of an image file.

    Attributes:
        damage: what the decoder says of a damaged file, else "".
        digest: SHA-256 of the file, 32 bytes; empty if it is damaged.
        bits: difference hash, 64 bytes; empty if the file is damaged. An image of one colour, which
            resembles all others of one, has the SHA-256 twice, which only its copies have.
    """

    damage: str = ""
    digest: bytes = b""
    bits: bytes = b""


def read_images(paths: Sequence[str]) -> list[ImageFile]:
    """`examine_image` for each of the files, on all processors."""
    batches = BatchSampler(range(len(paths)), BATCH, drop_last=False)
    loader = make_loader(paths, batches, _examine_batch, len(paths) // BATCH)
    return list(progress(chain.from_iterable(loader), "images", len(paths)))


def _examine_batch(paths: Sequence[str]) -> list[ImageFile]:
    return [examine_image(path) for path in paths]


def examine_image(path: str) -> ImageFile:
    """Read and decode an image file.

    Args:
        path: of the file.

    Returns:
        What is known of it.
    """
    with captured_stderr() as captured:
        try:
            content = ImageContent(path)
            bits = difference_hash(_decode(content))
            damage = ""
        except (InputError, *UNREADABLE) as e:
            damage = str(e).removeprefix(f"{path}: ") or "not enough memory"
        for line in captured():
            if line.startswith(_PIXELS_LOST):
                damage = line
    if damage:
        return ImageFile(damage)
    digest = sha256(content.getvalue()).digest()
    if not bits:
        bits = 2 * digest
    return ImageFile("", digest, bits)


def _decode(file: ImageContent) -> np.ndarray:
    """(H, W) grey pixels. A JPEG with a large shorter side is decoded at 1/8 of its size, which
    reads all of its data in half the time."""
    data = file.getvalue()
    with Image.open(file) as image:
        is_large = min(image.size) >= 8 * _HASH_SIDE
        image.verify()  # checksums of a PNG
    if data.startswith(b"\xff\xd8"):  # JPEG
        mode = cv2.IMREAD_REDUCED_GRAYSCALE_8 if is_large else cv2.IMREAD_GRAYSCALE
        content = np.frombuffer(data + b"\xff\xd9", np.uint8)  # a missing end mark is no damage
        with contextlib.suppress(cv2.error):  # above OpenCV's limit of pixels
            grey = cv2.imdecode(content, mode)
            if grey is not None:
                return grey
    with Image.open(file) as image:
        # fails for a truncated file, which OpenCV fills up
        return cv2.cvtColor(rgb(image), cv2.COLOR_RGB2GRAY)


def difference_hash(grey: np.ndarray) -> bytes:
    """Whether each of 16 x 16 pixels is brighter than its left and its upper neighbour.

    Args:
        grey: (H, W) pixels.

    Returns:
        480 bits in 64 bytes; empty for an image of one colour.
    """
    small = cv2.resize(grey, (_HASH_SIDE, _HASH_SIDE), interpolation=cv2.INTER_AREA).astype(int)
    down = np.diff(small, axis=0) > 0
    right = np.diff(small, axis=1) > 0
    bits = np.concatenate((down.ravel(), right.ravel()))
    if bits.mean() <= 0.05:
        return b""
    return np.packbits(bits).tobytes().ljust(64, b"\0")
