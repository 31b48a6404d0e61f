"""Image files: which ones, how large, their pixels."""

import os
import struct
import warnings
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from glob import escape, glob
from os.path import exists, isdir, isfile
from pathlib import Path
from typing import IO

import cv2
import numpy as np
from PIL import Image, ImageOps

from boltbox.detector.system.errors import InputError
from boltbox.detector.system.text_file import read_text

SUFFIXES = {".bmp", ".dng", ".jpeg", ".jpg", ".mpo", ".png", ".tif", ".tiff", ".webp"}
MIN_SIDE = 10  # pixels; smaller files are no pictures
MAX_SIDE = 2**15  # pixels of an input: a file that says more is damaged
UNREADABLE = (  # what Pillow raises
    *(OSError, ValueError, SyntaxError, struct.error, MemoryError),
    Image.DecompressionBombError,
)
ORIENTATION, ON_ITS_SIDE = 0x0112, {5, 6, 7, 8}

cv2.setNumThreads(0)  # a loader's parallelism is its workers
# A file of a few bytes can promise any size. Pillow opens none of more than twice this: 23,170 x
# 23,170, 1.6 GB as RGB, beyond what a camera or a scanner gives. Its warning comes at half of that.
Image.MAX_IMAGE_PIXELS = 2**28
warnings.simplefilter("ignore", Image.DecompressionBombWarning)


def read_image(path: str | Path, shrink: int = 1) -> np.ndarray:
    """Pixels (H, W, 3) uint8 RGB, turned as EXIF says; grey, palette, 16-bit images are converted,
    alpha is dropped.

    Args:
        shrink: 2, 4 or 8: sides of 1/2, 1/4, 1/8, rounded up, if the format can be decoded so
            (JPEG: fewer frequencies of each block go into its pixels, the others cost nothing);
            else the whole image all the same.

    Raises:
        InputError: it cannot be decoded, or promises more pixels than Pillow opens.
    """
    try:
        # OpenCV, which reads more formats, would believe any header
        with open_image(path) as file:
            kind, bands, image = file.format, file.getbands(), None
        if kind != "TIFF" or "A" not in bands:  # OpenCV multiplies a TIFF's colours by its alpha
            # None for what OpenCV refuses: other formats, more pixels than it likes, names that are
            # not UTF-8, which would crash it (they hold lone surrogates)
            with suppress(cv2.error, UnicodeEncodeError):
                str(path).encode()
                flags = shrink // 2 * 16 if kind in ("JPEG", "MPO") else 0  # IMREAD_REDUCED_*
                image = cv2.imread(str(path), flags | cv2.IMREAD_COLOR_RGB)
        if image is None:  # formats and variants that OpenCV refuses
            with open_image(path) as file:
                image = rgb(file)
        return image
    except UNREADABLE as e:
        raise InputError(
            f"{path}: this image cannot be decoded ({e or 'not enough memory'}); remove or"
            " repair it"
        ) from None


def open_image(path: str | Path | IO[bytes]) -> Image.Image:
    """Pillow's image, of which EXIF alone says the orientation: OpenCV reads no XMP."""
    file = Image.open(path)
    for key in ("xmp", "XML:com.adobe.xmp"):
        file.info.pop(key, None)
    return file


def rgb(file: Image.Image) -> np.ndarray:
    """(H, W, 3) uint8 of Pillow's image, as `read_image` gives it."""
    image = ImageOps.exif_transpose(file)
    if image.mode.startswith("I"):  # 16 bits, which Pillow would limit to 255
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    return np.asarray(image.convert("RGB"))


def image_size(path: str | Path) -> tuple[int, int]:
    """(height, width) in pixels as `read_image` gives them, from the file's header.

    Raises:
        UNREADABLE: the header cannot be read, or promises too many pixels.
    """
    with open_image(path) as file:
        width, height = file.size
        try:
            exif = (
                _png_exif(path)
                if file.format == "PNG" and "exif" not in file.info
                else file.getexif()
            )
            orientation = exif.get(ORIENTATION)
        except UNREADABLE:  # damaged EXIF is not followed
            orientation = None
        # Pillow has turned a TIFF's size already
        on_its_side = orientation in ON_ITS_SIDE and file.format != "TIFF"
    return (width, height) if on_its_side else (height, width)


def _png_exif(path: str | Path) -> Image.Exif:
    """EXIF that comes after the pixels, for which Pillow would decode them."""
    exif = Image.Exif()
    with open(path, "rb") as file:
        file.seek(8)
        while len(head := file.read(8)) == 8:
            length, kind = struct.unpack(">I4s", head)
            if kind == b"eXIf":
                exif.load(file.read(length))
                break
            file.seek(length + 4, os.SEEK_CUR)
    return exif


def image_sizes(paths: Sequence[str | Path]) -> list[tuple[int, int] | str]:
    """For each path `image_size`, or a few words on why the file cannot be used."""

    def probe(path: str | Path) -> tuple[int, int] | str:
        try:
            if not isfile(path):
                return "no regular file" if exists(path) else "no such image file"
            size = image_size(path)
        except UNREADABLE as e:
            return f"not a readable image ({e})"
        small = f"image too small ({size[1]}x{size[0]} px, least {MIN_SIDE})"
        return size if min(size) >= MIN_SIDE else small

    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(probe, paths, chunksize=16))


def find_images(source: str | Path, suffixes: Collection[str] = SUFFIXES) -> list[Path]:
    """Image files of a file, a folder (with its subfolders) or a glob pattern, sorted. suffixes:
    those that count."""
    if isfile(source):
        return [Path(source)]
    pattern = os.path.join(escape(str(source)), "**") if isdir(source) else str(source)
    found = glob(pattern, recursive=True)
    chosen = (f for f in found if os.path.splitext(f)[1].lower() in suffixes and isfile(f))
    return [*map(Path, sorted(chosen))]


def read_lines(source: Path) -> list[str]:
    """The lines of a text file that are not empty, like a list of images; InputError if it is no
    text."""
    return [line.strip() for line in read_text(source).splitlines() if line.strip()]
