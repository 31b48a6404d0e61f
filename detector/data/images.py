"""Image files: which ones, how large, their pixels."""

import struct
import warnings
from collections.abc import Sequence
from contextlib import suppress
from io import BytesIO
from os.path import exists, isfile
from pathlib import Path

import cv2
import numpy as np
from PIL import EpsImagePlugin, Image, ImageOps

from boltbox.detector.system.addresses import is_address, many, read_bytes
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.text_file import read_text

SUFFIXES = {
    ".bmp",
    ".dng",
    ".jfif",
    ".jpeg",
    ".jpg",
    ".mpo",
    ".png",
    ".ppm",
    ".tif",
    ".tiff",
    ".webp",
}
HEADER = 2**15  # bytes, in which most headers end
MIN_SIDE = 10  # pixels; smaller files are no pictures
MAX_SIDE = 2**15  # pixels of an input: a file that says more is damaged
UNREADABLE = (  # what Pillow raises
    OSError,
    ValueError,
    SyntaxError,
    struct.error,
    MemoryError,
    Image.DecompressionBombError,
)
ORIENTATION = 0x0112  # an EXIF tag
ON_ITS_SIDE = (5, 6, 7, 8)  # its values for images that are shown transposed
MIRRORED = {2: 1, 3: -1, 4: 0, 6: 1, 7: -1, 8: 0}  # then flipped, by OpenCV's code

cv2.setNumThreads(0)  # a loader's parallelism is its workers
# A file of a few bytes can promise any size. Pillow opens none of more than twice this: 23,170 x
# 23,170, 1.6 GB as RGB, beyond what a camera or a scanner gives. Its warning comes at half of that.
Image.MAX_IMAGE_PIXELS = 2**28
warnings.simplefilter("ignore", Image.DecompressionBombWarning)
# an image in PostScript is a program: else Pillow has Ghostscript run it, whatever it is called
EpsImagePlugin.gs_binary = False


class ImageContent(BytesIO):
    """The content of an image file; Pillow's messages name its path.

    Args:
        path: of the file, or its address.
        most: see `read_bytes`.
    """

    def __init__(self, path: str | Path, most: int | None = None) -> None:
        super().__init__(read_bytes(path, most))
        self.path = path

    def __repr__(self) -> str:
        return repr(str(self.path))


def read_image(path: str | Path, shrink: int = 1) -> np.ndarray:
    """The pixels of an image file.

    Args:
        path: of the file, or its address.
        shrink: 2, 4 or 8: decode a JPEG at 1/2, 1/4, 1/8 of its sides, rounded up, from the lower
            frequencies of its blocks only. Other formats keep their size.

    Returns:
        (H, W, 3) uint8 RGB, turned as EXIF says. Grey, palette, 16-bit and float images are
        converted, alpha is dropped. 16-bit values are divided by 256, as OpenCV does.

    Raises:
        InputError: it cannot be decoded, or promises more pixels than Pillow opens.
        Unreachable: its server does not give it.
    """
    try:
        return decode(ImageContent(path), shrink)
    except UNREADABLE as e:
        raise InputError(
            f"{path}: this image cannot be decoded ({e or 'not enough memory'}); remove or"
            " repair it"
        ) from None


def decode(content: BytesIO, shrink: int = 1) -> np.ndarray:
    """As `read_image`, of the content of a file; raises UNREADABLE."""
    # first Pillow: OpenCV, which reads more formats, would believe any header
    with Image.open(content) as file:
        image = _decode_with_opencv(file, content.getvalue(), shrink)
        return rgb(file) if image is None else image


def _decode_with_opencv(file: Image.Image, content: bytes, shrink: int) -> np.ndarray | None:
    """The pixels of a file with this content, or None: OpenCV multiplies the colours of a TIFF by
    its alpha, takes 255 for the maximum of a PPM, and refuses some formats and more pixels than it
    likes."""
    if file.format in ("TIFF", "PPM"):
        return None
    orientation = _orientation(file)
    flags = cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION
    if file.format in ("JPEG", "MPO"):
        content += b"\xff\xd9"  # an end mark, without which OpenCV reads no cut off file
        if shrink > 1:
            flags |= 8 * shrink  # IMREAD_REDUCED_GRAYSCALE_2 is 16, ..._4 is 32, ..._8 is 64
    elif orientation != 1:
        return None
    try:
        image = cv2.imdecode(np.frombuffer(content, np.uint8), flags)
    except cv2.error:
        return None
    if image is not None and orientation in ON_ITS_SIDE:
        image = cv2.transpose(image)
    if image is not None and orientation in MIRRORED:
        image = cv2.flip(image, MIRRORED[orientation])
    return image


def _orientation(file: Image.Image) -> int:
    """By EXIF; 1 if that is damaged, or comes after the pixels of a PNG, which Pillow would decode
    for it. XMP's does not count, as in browsers, where labels are drawn. Pillow turns a TIFF
    itself."""
    with suppress(*UNREADABLE):
        if "exif" in file.info and file.format != "TIFF":
            exif = Image.Exif()
            exif.load(file.info["exif"])
            return exif.get(ORIENTATION, 1)
    return 1


def rgb(file: Image.Image) -> np.ndarray:
    """(H, W, 3) uint8 of Pillow's image, as `read_image` gives it."""
    image = file if _orientation(file) == 1 else ImageOps.exif_transpose(file)
    if image.mode == "F" and not (np.asarray(image) > 1).any():  # fractions of white
        image = Image.fromarray((np.asarray(image) * 255).round())
    if image.mode.startswith("I"):  # 16 bits, which Pillow would limit to 255, or 32
        image = Image.fromarray((np.asarray(image) >> 8).clip(0, 255).astype(np.uint8))
    return np.array(image.convert("RGB"))  # which may be written to


def image_size(path: str | Path) -> tuple[int, int]:
    """(height, width) in pixels as `read_image` gives them, from the file's header.

    Raises:
        UNREADABLE: the header cannot be read, or promises too many pixels.
    """
    if not is_address(path):
        return _size(path)
    with suppress(Exception):  # of many kinds, where the header is longer
        return _size(ImageContent(path, HEADER))
    return _size(ImageContent(path))


def _size(file: str | Path | ImageContent) -> tuple[int, int]:
    with Image.open(file) as image:
        width, height = image.size
        return (width, height) if _orientation(image) in ON_ITS_SIDE else (height, width)


def image_sizes(images: Sequence[str | Path | np.ndarray]) -> list[tuple[int, int] | str]:
    """(height, width) of each image, a file or pixels, or a few words on why the file cannot be
    used."""

    def probe(path: str | Path | np.ndarray) -> tuple[int, int] | str:
        if isinstance(path, np.ndarray):
            return path.shape[:2]
        if not is_address(path) and not isfile(path):
            return "no regular file" if exists(path) else "no such image file"
        try:
            height, width = image_size(path)
        except FileNotFoundError:
            return "no such image file"
        except UNREADABLE as e:
            return f"not a readable image ({e})"
        if min(height, width) < MIN_SIDE:
            return f"image too small ({width}x{height} px, least {MIN_SIDE})"
        return height, width

    return many(probe, images)


def read_lines(source: Path) -> list[str]:
    """The lines of a text file that are not empty, such as a list of images.

    Raises:
        InputError: it is not a text file.
    """
    return list(filter(None, map(str.strip, read_text(source).splitlines())))
