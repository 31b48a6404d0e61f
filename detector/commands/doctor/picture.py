"""One image file, looked at closely: is it whole, does training see what its header says, what is
special about it."""

import struct
import warnings
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from boltbox.detector.commands.doctor.near_duplicates import SIDE, is_paper
from boltbox.detector.data.images import MIN_SIDE, UNREADABLE, TooManyPixels, image_size, read_image
from boltbox.detector.system.errors import InputError

SUFFIXES_OF = {  # by Pillow's name of the format; the first is the one that a repair gives
    "JPEG": (".jpg", ".jpeg", ".mpo"),
    "MPO": (".jpg", ".jpeg", ".mpo"),  # what phones write: a JPEG with further pictures behind it
    "PNG": (".png",),
    "BMP": (".bmp",),
    "TIFF": (".tif", ".tiff", ".dng"),
    "WEBP": (".webp",),
}
_JPEG = ("JPEG", "MPO")
# pixels of the shorter side of what is decoded, else a copy of another size has another thumbnail
LEAST = 64
_REDUCED = {
    8: cv2.IMREAD_REDUCED_GRAYSCALE_8,
    4: cv2.IMREAD_REDUCED_GRAYSCALE_4,
    2: cv2.IMREAD_REDUCED_GRAYSCALE_2,
}
# pixels; above what a photo camera gives, so a scan, a stitched or a satellite image
LARGE = 25_000_000
NARROW = 3  # longer side over shorter; a photo has 1.5, a film frame 2.4
LOST = {  # kinds of faults for which an image cannot be used
    "missing_image",
    "unreadable_image",
    "truncated_image",
    "damaged_image",
    "too_small_image",
    "too_large_image",
    "size_unlike_header",
}
END_OF_JPEG = b"\xff\xd9"
# What libjpeg and libpng say when pixels are lost. They say more, of colour profiles for instance,
# which does no harm.
_PIXELS_LOST = ("Corrupt JPEG data", "Premature end of JPEG", "libpng error")

Remark = tuple[str, str, str]  # severity, kind, problem


class Picture(NamedTuple):
    """What is known of one image file.

    remarks: each thing worth saying · digest: SHA-256 of the file, "" if it cannot be read ·
    thumbnail: (32 x 32) grey levels, row by row, as the picture is shown; empty if it cannot be
    decoded · paper: see `is_paper`.
    """

    remarks: list[Remark]
    digest: str = ""
    thumbnail: bytes = b""
    paper: bool = False


def look_at(path: str, complaints: Callable[[], str]) -> Picture:
    """Read and decode an image file. A JPEG is decoded to an eighth of its size (a quarter or half,
    if it is small), which reads all of its data in half the time.

    Args:
        complaints: what the decoders have written to the standard error since the last call.
    """
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError:
        return Picture([("fault", "missing_image", "no such image file")])
    except OSError as e:
        return Picture([("fault", "unreadable_image", f"the file cannot be read ({e.strerror})")])
    digest = sha256(data).hexdigest()
    try:
        height, width = image_size(path)
        with Image.open(path) as file:
            remarks = _peculiarities(file, data, Path(path).suffix, height, width)
            kind = file.format
    except UnidentifiedImageError:
        problem = "its content is no image of a known format" if data else "the file is empty"
        return Picture([("fault", "unreadable_image", problem)], digest)
    except TooManyPixels as e:
        return Picture([("fault", "too_large_image", str(e))], digest)
    except UNREADABLE as e:
        return Picture([("fault", "unreadable_image", f"not a readable image ({e})")], digest)
    if min(height, width) < MIN_SIDE:
        problem = f"image too small ({width}x{height} px, least {MIN_SIDE})"
        return Picture([*remarks, ("fault", "too_small_image", problem)], digest)

    scale = next((k for k in _REDUCED if kind in _JPEG and min(height, width) >= k * LEAST), 1)
    grey, remark = _decode(path, data, str(kind), scale, complaints)
    remarks += [remark] if remark else []
    if grey is None:  # a PNG's EXIF data may lie behind its pixels, then it is lost with them
        return Picture([r for r in remarks if r[1] != "damaged_exif"], digest)
    if grey.shape != (-(-height // scale), -(-width // scale)):
        sizes = (
            f"{grey.shape[1] * scale}x{grey.shape[0] * scale} px, its header says {width}x{height}"
        )
        remarks.append(
            ("fault", "size_unlike_header", f"decodes to {sizes}: boxes would be misplaced")
        )
    thumbnail = cv2.resize(grey, (SIDE, SIDE), interpolation=cv2.INTER_AREA)
    return Picture(remarks, digest, thumbnail.tobytes(), is_paper(grey))


def _decode(
    path: str, data: bytes, kind: str, scale: int, complaints: Callable[[], str]
) -> tuple[np.ndarray | None, Remark | None]:
    """(H / scale, W / scale) grey pixels, None if some are lost; what is to be said of them."""
    if kind not in (*_JPEG, "PNG"):
        return _decode_twice(path)
    grey, said = _opencv(data, scale, complaints)
    if grey is not None and not said.startswith(_PIXELS_LOST):
        return grey, ("note", "decoder_remark", f"the decoder says '{said}'") if said else None
    # Pillow would take what libpng refuses, and never look at its checksums
    if kind == "PNG" and said:
        return None, _broken(said, cut=b"IEND" not in data)
    if said.startswith(_PIXELS_LOST):
        return None, _broken(said, cut=said.startswith("Premature"))
    try:  # as training does with what OpenCV does not take
        with Image.open(path) as file:
            return np.asarray(ImageOps.exif_transpose(file).convert("L").reduce(scale)), None
    except UNREADABLE as e:
        said = f"{e}" or "not enough memory"
    if kind in _JPEG and "truncated" in said:
        grey, still = _opencv(data + END_OF_JPEG, scale, complaints)
        if grey is not None and not still:
            return grey, (
                "warning",
                "no_end_marker",
                "the JPEG lacks its end marker; all of its pixels are there",
            )
    return None, _broken(said, cut="truncated" in said)


def _decode_twice(path: str) -> tuple[np.ndarray | None, Remark | None]:
    """`_decode` for other formats, whose decoders do not tell on the standard error: all of Pillow
    and of training agree."""
    try:
        with Image.open(path) as file:
            file.load()
        return cv2.cvtColor(read_image(path), cv2.COLOR_RGB2GRAY), None
    except (InputError, *UNREADABLE) as e:
        said = f"{e}".removeprefix(f"{path}: ") or "not enough memory"
        return None, _broken(said, cut="truncated" in said)


def _opencv(
    data: bytes, scale: int, complaints: Callable[[], str]
) -> tuple[np.ndarray | None, str]:
    """OpenCV's pixels (None if it refuses) and the gravest thing that it had to say."""
    complaints()
    try:
        pixels = cv2.imdecode(
            np.frombuffer(data, np.uint8), _REDUCED.get(scale, cv2.IMREAD_GRAYSCALE)
        )
    except cv2.error:  # more pixels than it wants to read
        return None, ""
    said = [line.strip() for line in complaints().splitlines() if line.strip()]
    return pixels, next(
        (line for line in said if line.startswith(_PIXELS_LOST)), said[0] if said else ""
    )


def _broken(said: str, cut: bool) -> Remark:
    """For a file whose pixels are not all there."""
    if cut:
        return "fault", "truncated_image", "cut off: a part of the picture is missing"
    return "fault", "damaged_image", f"damaged: the decoder says '{said}'"


def _peculiarities(
    file: Image.Image, data: bytes, suffix: str, height: int, width: int
) -> list[Remark]:
    """Remarks on what the header tells: format, orientation, colours, size."""
    remarks: list[Remark] = []
    kind = str(file.format)
    if suffix.lower() not in SUFFIXES_OF.get(kind, ()):
        remarks.append(
            (
                "warning",
                "wrong_suffix",
                f"the file is a {kind}, its name says {suffix or 'nothing'}",
            )
        )
    orientation = _orientation(file, data)
    if orientation is None:
        remarks.append(("note", "damaged_exif", "its EXIF data is damaged and not followed"))
    elif orientation in range(2, 9):
        words = f"EXIF turns it (orientation {orientation}); boxes are those of the turned picture"
        remarks.append(("note", "exif_rotation", words))
    bands = file.getbands()
    if bands[0] in ("1", "L", "I", "F") or bands[0].startswith("I;"):
        remarks.append(("note", "grey_image", "grey: it is read as three equal colours"))
    if bands[-1] in ("A", "a") or "transparency" in file.info:
        remarks.append(
            (
                "note",
                "alpha_channel",
                "it has transparency, which is dropped: what lies under it shows",
            )
        )
    if bands == ("C", "M", "Y", "K"):
        remarks.append(("note", "cmyk_image", "CMYK, made for print: it is converted to RGB"))
    if _bits(file, data) > 8:
        remarks.append(("note", "deep_colours", f"{_bits(file, data)} bits a colour: 8 are used"))
    if height * width > LARGE:
        words = (
            f"very large ({width}x{height} px): it is decoded again for each use; smaller copies"
            " would train faster"
        )
        remarks.append(("note", "large_image", words))
    if max(height, width) > NARROW * min(height, width):
        remarks.append(
            (
                "note",
                "narrow_image",
                f"very narrow ({width}x{height} px): most of a square input is padding",
            )
        )
    return remarks


def _orientation(file: Image.Image, data: bytes) -> int | None:
    """EXIF's orientation; None if there is EXIF data that makes no sense."""
    # Pillow would look for it behind the pixels
    if file.format == "PNG" and b"eXIf" not in data and b"exif" not in data:
        return 1
    try:
        with warnings.catch_warnings(record=True) as doubts:
            warnings.simplefilter("always")
            tags = file.getexif()
    except UNREADABLE:
        return 1 if _says_nothing(file.info.get("exif", b"")) else None
    block = file.info.get("exif", b"")
    if not tags and _says_nothing(block):
        return 1
    if doubts or (block and not tags):
        return None
    orientation = tags.get(ExifTags.Base.Orientation, 1)
    return orientation if isinstance(orientation, int) else None


def _says_nothing(exif: bytes) -> bool:
    """Whether EXIF data is a well-formed block without entries, or was overwritten with zeros:
    editors leave such."""
    block = exif.removeprefix(b"Exif\0\0")
    if not any(block):
        return True
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(block[:4])
    if order is None or len(block) < 8:
        return False
    (start,) = struct.unpack_from(f"{order}I", block, 4)
    entries = block[start : start + 2]  # their number
    return start >= 8 and not any(entries) and (len(entries) == 2 or len(block) == 8)


def _bits(file: Image.Image, data: bytes) -> int:
    """Bits a colour; Pillow's mode does not tell for RGB."""
    if file.format == "PNG":
        return data[24]  # of the header chunk
    if file.format == "TIFF":
        return max(file.tag_v2.get(258, (8,)))  # type: ignore[attr-defined]
    return 8
