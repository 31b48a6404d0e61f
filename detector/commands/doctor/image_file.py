"""One image file, decoded: is it whole, and what is special about it."""

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
from PIL import ExifTags, Image

from boltbox.detector.data.images import UNREADABLE, open_image, read_image
from boltbox.detector.system.errors import InputError

LARGE = 25_000_000  # pixels; above what a photo camera gives
NARROW = 3  # longer side over shorter; a photo has 1.5, a film frame 2.4
DAMAGED = "damaged_image"  # the kind of fault for which a repair leaves an image out
# What libjpeg and libpng write to the standard error, and nowhere else, when pixels are lost.
_PIXELS_LOST = ("Corrupt JPEG data", "Premature end of JPEG", "libpng error")
_HASH_SIDE = 16  # pixels
# A JPEG decoded so takes half the time, and all of its data is read.
_REDUCED = {8: cv2.IMREAD_REDUCED_GRAYSCALE_8, 4: cv2.IMREAD_REDUCED_GRAYSCALE_4}

Remark = tuple[str, str, str]  # severity, kind, problem


class ImageFile(NamedTuple):
    """What is known of one image file.

    remarks: each thing worth reporting · digest: SHA-256 of the file, "" if it cannot be decoded ·
    bits: its difference hash, 64 bytes; empty if it cannot be decoded or is of one colour.
    """

    remarks: list[Remark]
    digest: str = ""
    bits: bytes = b""


def look_at(path: str) -> ImageFile:
    """Read and decode an image file."""
    remarks: list[Remark] = []
    said = ""
    with standard_error() as written:
        try:
            with open_image(path) as file:
                side = min(file.size)
                remarks += _header_remarks(file)
            data = Path(path).read_bytes()
            bits = difference_hash(_decode(path, data, side))
        except (InputError, *UNREADABLE) as e:
            said = str(e).removeprefix(f"{path}: ") or "not enough memory"
        said = next((line for line in written() if line.startswith(_PIXELS_LOST)), said)
    if said:
        return ImageFile([*remarks, ("fault", DAMAGED, f"damaged: the decoder says '{said}'")])
    return ImageFile(remarks, sha256(data).hexdigest(), bits)


def _decode(path: str, data: bytes, side: int) -> np.ndarray:
    """(H, W) grey pixels as training sees them; of a large JPEG, with this shorter side, 1/4 or 1/8
    of them."""
    if data.startswith(b"\xff\xd8"):  # with an end: a JPEG that lacks only that is no damage
        content = np.frombuffer(data + b"\xff\xd9", np.uint8)
        with contextlib.suppress(cv2.error):  # more pixels than it wants to read
            modes = (mode for scale, mode in _REDUCED.items() if side >= 4 * scale * _HASH_SIDE)
            grey = cv2.imdecode(content, next(modes, cv2.IMREAD_GRAYSCALE))
            if grey is not None:
                return grey
    with Image.open(path) as file:
        file.load()  # refuses what is cut off, which OpenCV fills up
    with Image.open(path) as file:
        file.verify()  # checksums of a PNG
    return cv2.cvtColor(read_image(path), cv2.COLOR_RGB2GRAY)


def difference_hash(grey: np.ndarray) -> bytes:
    """Whether each of 16 x 16 pixels is brighter than its left and its upper neighbour: 480 bits,
    in 64 bytes; empty for an image of one colour, which is like all others of one colour."""
    small = cv2.resize(grey, (_HASH_SIDE, _HASH_SIDE), interpolation=cv2.INTER_AREA).astype(int)
    bits = np.concatenate([(np.diff(small, axis=axis) > 0).ravel() for axis in (0, 1)])
    return np.packbits(bits).tobytes().ljust(64, b"\0") if bits.mean() > 0.05 else b""


@contextlib.contextmanager
def standard_error() -> Iterator[Callable[[], list[str]]]:
    """Gives a function that returns the lines that C libraries have written to the standard error,
    which shows nothing of them. Of the whole process: for one with a single thread."""
    before = os.dup(2)
    with tempfile.TemporaryFile() as file:

        def written() -> list[str]:
            file.seek(0)
            return file.read().decode(errors="replace").splitlines()

        os.dup2(file.fileno(), 2)
        try:
            yield written
        finally:
            os.dup2(before, 2)
            os.close(before)


def _header_remarks(file: Image.Image) -> Iterator[Remark]:
    """On orientation, colours and size."""
    bands, (width, height), orientation = file.getbands(), file.size, 1
    with contextlib.suppress(*UNREADABLE):  # damaged EXIF data is not followed
        orientation = file.getexif().get(ExifTags.Base.Orientation, 1)
    notes = {
        f"exif_rotation: EXIF turns it (orientation {orientation}); boxes are those of the turned"
        " picture": orientation in range(2, 9),
        "grey_image: grey: it is read as three equal colours": bands[0][0] in "1LIF",
        "alpha_channel: it has transparency, which is dropped: what lies under it shows": (
            bands[-1] in ("A", "a") or "transparency" in file.info
        ),
        f"large_image: very large ({width}x{height} px): smaller copies would train faster, tiles"
        " see more": height * width > LARGE,
        f"narrow_image: very narrow ({width}x{height} px): most of a square input is padding": (
            max(height, width) > NARROW * min(height, width)
        ),
    }
    for note, applies in notes.items():
        if applies:
            kind, problem = note.split(": ", 1)
            yield "note", kind, problem
