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

from boltbox.detector.data.images import UNREADABLE, image_sizes, read_image
from boltbox.detector.data.report import Fault
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

Remark = tuple[str, str, str]  # severity, kind, problem


class ImageFile(NamedTuple):
    """What is known of one image file.

    remarks: each thing worth reporting · digest: SHA-256 of the file, "" if it cannot be decoded.
    """

    remarks: list[Remark]
    digest: str = ""


def look_at(path: str) -> ImageFile:
    """Read and decode an image file."""
    (size,) = image_sizes([path])
    if isinstance(size, str):  # why training leaves it out
        return ImageFile([("fault", Fault("", "", size).kind, size)])
    data = Path(path).read_bytes()
    with warnings.catch_warnings(), Image.open(path) as file:
        warnings.simplefilter("ignore")  # Pillow's, on EXIF data that is damaged
        kind, remarks = str(file.format), _header_remarks(file, path, *size)

    is_jpeg, said = kind in ("JPEG", "MPO"), ""
    with standard_error() as written:
        try:
            _decode(path, data, is_jpeg)
        except (InputError, *UNREADABLE) as e:
            said = str(e).removeprefix(f"{path}: ") or "not enough memory"
        said = next((line for line in written() if line.startswith(_PIXELS_LOST)), said)
    if said:
        if "truncated" in said or said.startswith("Premature") or "premature end" in said:
            lost = "fault", "truncated_image", "cut off: a part of the picture is missing"
        else:
            lost = "fault", "damaged_image", f"damaged: the decoder says '{said}'"
        return ImageFile([*remarks, lost])
    if is_jpeg and END_OF_JPEG not in data[-1024:]:
        problem = "the JPEG lacks its end marker; all of its pixels are there"
        remarks.append(("warning", "no_end_marker", problem))
    return ImageFile(remarks, sha256(data).hexdigest())


def _decode(path: str, data: bytes, is_jpeg: bool) -> None:
    """Raises an error if training cannot see all pixels, unless libraries only write of it."""
    if is_jpeg:  # in memory, with an end: what is complete but for its end marker is no damage
        content = np.frombuffer(data + END_OF_JPEG, np.uint8)
        with contextlib.suppress(cv2.error):  # more pixels than it wants to read
            # in half the time, and all of its data is read
            if cv2.imdecode(content, cv2.IMREAD_REDUCED_GRAYSCALE_8) is not None:
                return
    with Image.open(path) as file:
        file.load()  # refuses what is cut off, which OpenCV fills up
    if not is_jpeg:
        with Image.open(path) as file:
            file.verify()  # checksums of a PNG
    read_image(path)


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
