"""Image files: which ones, how large, their pixels."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cv2
import numpy as np
from PIL import Image, ImageOps

from detector.errors import InputError

SUFFIXES = {".bmp", ".dng", ".jpeg", ".jpg", ".mpo", ".pfm", ".png", ".tif", ".tiff", ".webp"}
MIN_SIDE = 10  # pixels; smaller files are no pictures
_ORIENTATION, _ON_ITS_SIDE = 0x0112, {5, 6, 7, 8}

cv2.setNumThreads(0)  # a loader's parallelism is its workers
Image.MAX_IMAGE_PIXELS = None  # scans and satellite images are large on purpose


def read_image(path: str | Path) -> np.ndarray:
    """Pixels (H, W, 3) uint8 RGB, turned as EXIF says; grey, palette, 16-bit images are converted, alpha is dropped."""
    image = cv2.imread(str(path), cv2.IMREAD_COLOR_RGB)
    if image is not None:
        return image
    try:  # formats and variants that OpenCV refuses
        with Image.open(path) as file:
            return np.asarray(ImageOps.exif_transpose(file).convert("RGB"))
    except (OSError, ValueError, SyntaxError) as e:
        raise InputError(f"{path}: this image cannot be decoded ({e}); remove or repair it") from None


def image_size(path: str | Path) -> tuple[int, int]:
    """(height, width) in pixels as `read_image` gives them, from the file's header.

    Raises:
        OSError, ValueError, SyntaxError: the header cannot be read.
    """
    with Image.open(path) as file:
        width, height = file.size
        on_its_side = file.getexif().get(_ORIENTATION) in _ON_ITS_SIDE
    return (width, height) if on_its_side else (height, width)


def image_sizes(paths: Sequence[str | Path]) -> list[tuple[int, int] | str]:
    """For each path `image_size`, or a few words on why the file cannot be used."""

    def probe(path: str | Path) -> tuple[int, int] | str:
        try:
            size = image_size(path)
        except FileNotFoundError:
            return "no such image file"
        except (OSError, ValueError, SyntaxError) as e:
            return f"not a readable image ({e})"
        return size if min(size) >= MIN_SIDE else f"image too small ({size[1]}x{size[0]} px, least {MIN_SIDE})"

    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(probe, paths, chunksize=16))


def find_images(source: str | Path) -> list[Path]:
    """Image files of a file, a folder (with its subfolders) or a glob pattern, sorted."""
    path = Path(source)
    if path.is_dir():
        found = [p for p in path.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file()]
    elif path.is_file():
        found = [path]
    else:
        anchor = Path(path.anchor or ".")
        found = [p for p in anchor.glob(str(path.relative_to(path.anchor))) if p.suffix.lower() in SUFFIXES]
    return sorted(found)
