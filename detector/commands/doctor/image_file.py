"""One image file, decoded: whether it is damaged, and its hash."""

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
from PIL import Image

from boltbox.detector.data.images import UNREADABLE, read_image
from boltbox.detector.system.errors import InputError

# What libjpeg and libpng write to the standard error, and nowhere else, when pixels are lost.
_PIXELS_LOST = ("Corrupt JPEG data", "Premature end of JPEG", "libpng error")
_HASH_SIDE = 16  # pixels


class ImageFile(NamedTuple):
    """What the doctor knows of an image file.

    Attributes:
        damage: what the decoder says of a damaged file, else "".
        digest: SHA-256 of the file, "" if it is damaged.
        bits: difference hash, 64 bytes; empty if the file is damaged or of one colour.
    """

    damage: str = ""
    digest: str = ""
    bits: bytes = b""


def examine_image(path: str) -> ImageFile:
    """Read and decode an image file.

    Args:
        path: of the file.

    Returns:
        What is known of it.
    """
    with captured_stderr() as captured:
        try:
            with Image.open(path) as file:
                side = min(file.size)
            data = Path(path).read_bytes()
            bits = difference_hash(_decode(path, data, side))
            damage = ""
        except (InputError, *UNREADABLE) as e:
            damage = str(e).removeprefix(f"{path}: ") or "not enough memory"
        for line in captured():
            if line.startswith(_PIXELS_LOST):
                damage = line
    if damage:
        return ImageFile(damage)
    return ImageFile("", sha256(data).hexdigest(), bits)


def _decode(path: str, data: bytes, side: int) -> np.ndarray:
    """(H, W) grey pixels. A JPEG with a large shorter side is decoded at 1/4 or 1/8 of its size,
    which reads all of its data in half the time."""
    if data.startswith(b"\xff\xd8"):  # JPEG
        mode = cv2.IMREAD_GRAYSCALE
        if side >= 8 * _HASH_SIDE:
            mode = cv2.IMREAD_REDUCED_GRAYSCALE_8
        elif side >= 4 * _HASH_SIDE:
            mode = cv2.IMREAD_REDUCED_GRAYSCALE_4
        content = np.frombuffer(data + b"\xff\xd9", np.uint8)  # a missing end mark is no damage
        with contextlib.suppress(cv2.error):  # above OpenCV's limit of pixels
            grey = cv2.imdecode(content, mode)
            if grey is not None:
                return grey
    with Image.open(path) as file:
        file.load()  # fails for a truncated file, which OpenCV fills up
    with Image.open(path) as file:
        file.verify()  # checksums of a PNG
    return cv2.cvtColor(read_image(path), cv2.COLOR_RGB2GRAY)


def difference_hash(grey: np.ndarray) -> bytes:
    """Whether each of 16 x 16 pixels is brighter than its left and its upper neighbour.

    Args:
        grey: (H, W) pixels.

    Returns:
        480 bits in 64 bytes; empty for an image of one colour, which resembles all others of one.
    """
    small = cv2.resize(grey, (_HASH_SIDE, _HASH_SIDE), interpolation=cv2.INTER_AREA).astype(int)
    down = np.diff(small, axis=0) > 0
    right = np.diff(small, axis=1) > 0
    bits = np.concatenate((down.ravel(), right.ravel()))
    if bits.mean() <= 0.05:
        return b""
    return np.packbits(bits).tobytes().ljust(64, b"\0")


@contextlib.contextmanager
def captured_stderr() -> Iterator[Callable[[], list[str]]]:
    """Capture what C libraries write to the standard error of this process.

    Yields:
        A function that returns the lines so far.
    """
    before = os.dup(2)
    with tempfile.TemporaryFile() as file:

        def lines() -> list[str]:
            file.seek(0)
            return file.read().decode(errors="replace").splitlines()

        os.dup2(file.fileno(), 2)
        try:
            yield lines
        finally:
            os.dup2(before, 2)
            os.close(before)
