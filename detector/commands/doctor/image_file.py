"""One image file, decoded: is it whole, does training see what its header says, what is special
about it."""

import contextlib
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
from PIL import ExifTags, Image

from boltbox.detector.data.datasets import Fault
from boltbox.detector.data.images import UNREADABLE, image_sizes, read_image
from boltbox.detector.system.errors import InputError

SUFFIXES_OF = {  # by Pillow's name of the format; the first is the one that a repair gives
    "JPEG": (".jpg", ".jpeg", ".mpo"),
    "MPO": (".jpg", ".jpeg", ".mpo"),  # what phones write: a JPEG with further pictures behind it
    "PNG": (".png",),
    "BMP": (".bmp",),
    "TIFF": (".tif", ".tiff", ".dng"),
    "WEBP": (".webp",),
}
LARGE = 25_000_000  # pixels; above what a photo camera gives
NARROW = 3  # longer side over shorter; a photo has 1.5, a film frame 2.4
LOST = {  # kinds of faults for which an image cannot be used
    "missing_image",
    "unreadable_image",
    "truncated_image",
    "damaged_image",
    "too_small_image",
}
END_OF_JPEG = b"\xff\xd9"
# What libjpeg and libpng write to the standard error, and nowhere else, when pixels are lost.
_PIXELS_LOST = ("Corrupt JPEG data", "Premature end of JPEG", "libpng error")
_HASH_SIDE = 16  # pixels
_REDUCED = {  # a JPEG decoded so takes half the time, and all of its data is read
    8: cv2.IMREAD_REDUCED_GRAYSCALE_8,
    4: cv2.IMREAD_REDUCED_GRAYSCALE_4,
    2: cv2.IMREAD_REDUCED_GRAYSCALE_2,
    1: cv2.IMREAD_GRAYSCALE,
}

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
    (size,) = image_sizes([path])
    if isinstance(size, str):  # why training leaves it out
        return ImageFile([("fault", Fault("", "", size).kind, size)])
    data = Path(path).read_bytes()
    with warnings.catch_warnings(), Image.open(path) as file:
        warnings.simplefilter("ignore")  # Pillow's, on EXIF data that is damaged
        kind, remarks = str(file.format), _header_remarks(file, path, *size)

    is_jpeg = kind in ("JPEG", "MPO")
    scale = next(k for k in _REDUCED if k == 1 or (is_jpeg and min(size) >= 4 * k * _HASH_SIDE))
    with standard_error() as written:
        try:
            grey, said = _decode(path, data, is_jpeg, scale), ""
        except (InputError, *UNREADABLE) as e:
            grey, said = None, str(e).removeprefix(f"{path}: ") or "not enough memory"
        said = next((line for line in written() if line.startswith(_PIXELS_LOST)), said)
    if grey is None or said:
        if "truncated" in said or said.startswith("Premature") or "premature end" in said:
            lost = "fault", "truncated_image", "cut off: a part of the picture is missing"
        else:
            lost = "fault", "damaged_image", f"damaged: the decoder says '{said}'"
        return ImageFile([*remarks, lost])
    if is_jpeg and END_OF_JPEG not in data[-1024:]:
        problem = "the JPEG lacks its end marker; all of its pixels are there"
        remarks.append(("warning", "no_end_marker", problem))
    return ImageFile(remarks, sha256(data).hexdigest(), difference_hash(grey))


def _decode(path: str, data: bytes, is_jpeg: bool, scale: int) -> np.ndarray:
    """(H, W) or (H / scale, W / scale) grey pixels, as training sees them."""
    if is_jpeg:  # in memory, with an end: what is complete but for its end marker is no damage
        content = np.frombuffer(data + END_OF_JPEG, np.uint8)
        with contextlib.suppress(cv2.error):  # more pixels than it wants to read
            grey = cv2.imdecode(content, _REDUCED[scale])
            if grey is not None:
                return grey
    with Image.open(path) as file:
        file.load()  # refuses what is cut off, which OpenCV fills up
    if not is_jpeg:
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


def _header_remarks(file: Image.Image, path: str, height: int, width: int) -> list[Remark]:
    """On format, orientation, colours and size."""
    kind, suffix, orientation = str(file.format), Path(path).suffix, 1
    with contextlib.suppress(*UNREADABLE):  # damaged EXIF data is not followed
        orientation = file.getexif().get(ExifTags.Base.Orientation, 1)
    bands, size = file.getbands(), f"{width}x{height} px"
    remarks: list[Remark] = []
    if suffix.lower() not in SUFFIXES_OF.get(kind, ()):
        problem = f"the file is a {kind}, its name says {suffix or 'nothing'}"
        remarks.append(("warning", "wrong_suffix", problem))
    notes = {
        f"exif_rotation: EXIF turns it (orientation {orientation}); boxes are those of the turned"
        " picture": orientation in range(2, 9),
        "grey_image: grey: it is read as three equal colours": bands[0][0] in "1LIF",
        "alpha_channel: it has transparency, which is dropped: what lies under it shows": (
            bands[-1] in ("A", "a") or "transparency" in file.info
        ),
        f"large_image: very large ({size}): smaller copies would train faster, tiles see more": (
            height * width > LARGE
        ),
        f"narrow_image: very narrow ({size}): most of a square input is padding": (
            max(height, width) > NARROW * min(height, width)
        ),
    }
    found = [note.split(": ", 1) for note, applies in notes.items() if applies]
    return [*remarks, *(("note", kind, problem) for kind, problem in found)]
