"""Image files of every kind: EXIF, modes and depths, and bad images, which are dropped and
named."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from made_datasets import (
    PAIR,
    SCENES,
    as_coco,
    as_voc,
    as_yolo,
    bgr,
    counts,
    files_of,
    lay_out,
    load,
    picture,
    save,
)
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from boltbox.detector.data.images import find_images, image_size, image_sizes, read_image, rgb
from boltbox.detector.data.inputs.sources import _path_or_pixels
from boltbox.detector.system.errors import InputError


def spoil(path: Path, how: str) -> None:
    if how == "missing":
        path.unlink()
    elif how == "text":
        path.write_text("this is no image")
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "cut off":
        path.write_bytes(path.read_bytes()[:40])
    else:
        save(path, picture(*map(int, how.split("x"))))


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("text", "not a readable image ("),
        ("empty", "not a readable image ("),
        ("cut off", "not a readable image ("),
        ("9x60", "image too small (60x9 px, least 10)"),
        ("60x9", "image too small (9x60 px, least 10)"),
        ("missing", "no such image file"),
    ],
)
@pytest.mark.parametrize("base", [as_yolo, as_voc, as_coco])
def test_bad_image(tmp_path: Path, base: Callable[[Path], None], how: str, why: str) -> None:
    base(tmp_path)
    bad = next(tmp_path.rglob("b.png"))
    spoil(bad, how)
    if base is as_yolo:  # a folder does not know what is missing from it, a list does
        lay_out(
            tmp_path,
            {
                "l.txt": "".join(f"./images/train/{k}.png\n" for k in SCENES),
                "data.yaml": "train: l.txt\n" + PAIR,
            },
        )
    dataset = load(tmp_path)
    assert files_of(dataset) == ["a.png", "c.png"]
    (lost,) = dataset.faults
    assert lost.problem.startswith(why)
    assert (Path(lost.file).stem, lost.where) == ("b", "")
    if base is not as_voc or how != "missing":  # VOC's lists do not say the suffix
        assert Path(lost.file) == bad
    assert counts(dataset) == (2, 1, 1, 0)


def test_ten_pixels_are_enough(tmp_path: Path) -> None:
    assert image_sizes([save(tmp_path / "a.png", picture(10, 10))]) == [(10, 10)]


# The picture as shown, from the picture as stored, by EXIF orientation.
SHOWN: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.transpose(1, 0, 2),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: np.rot90(a, 2).transpose(1, 0, 2),
    8: lambda a: np.rot90(a, 1),
}
STORED = np.kron(picture(3, 5, 1), np.ones((8, 8, 1), np.uint8))  # 24 x 40 in even JPEG blocks
SUFFIXES = {
    "jpg": {"quality": 100, "subsampling": 0},
    "tiff": {},
    "png": {},
    "webp": {"lossless": True},
}


def turned(path: Path, orientation: int, stored: np.ndarray = STORED) -> Path:
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(stored).save(path, exif=exif, **SUFFIXES[path.suffix[1:]])
    return path


@pytest.mark.parametrize("suffix", ["jpg", "webp", "png"])
def test_orientation_of_xmp_is_not_followed(tmp_path: Path, suffix: str) -> None:
    """By neither: boxes in pixels would be scaled by swapped sides."""
    path = tmp_path / f"a.{suffix}"
    info = PngInfo()
    xmp = '<x:xmpmeta><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'
    info.add_itxt("XML:com.adobe.xmp", xmp)
    how = {"pnginfo": info} if suffix == "png" else {"xmp": xmp.encode()}
    Image.fromarray(STORED).save(path, **how, **SUFFIXES[suffix])
    with Image.open(path) as file:
        assert file.getexif()[0x0112] == 6
    assert image_size(path) == read_image(path).shape[:2] == STORED.shape[:2]
    assert _path_or_pixels(path.read_bytes()).shape == STORED.shape  # type: ignore[union-attr]


@pytest.mark.parametrize("orientation", SHOWN)
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_exif_orientation_of_pixels(tmp_path: Path, suffix: str, orientation: int) -> None:
    image = read_image(turned(tmp_path / f"x.{suffix}", orientation))
    expected = SHOWN[orientation](STORED)
    assert image.shape == expected.shape
    assert np.abs(image.astype(int) - expected).max() <= (2 if suffix == "jpg" else 0)


@pytest.mark.parametrize(
    ("suffix", "orientation"),
    [(suffix, o) for suffix in SUFFIXES for o in SHOWN],
)
def test_exif_orientation_of_size(tmp_path: Path, suffix: str, orientation: int) -> None:
    """Four orientations lie on their side: 24 rows of 40 pixels are shown as 40 rows of 24."""
    assert image_size(turned(tmp_path / f"x.{suffix}", orientation)) == (
        (40, 24) if orientation > 4 else (24, 40)
    )


def test_exif_after_the_pixels_of_a_png(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is followed neither for the size nor for the pixels, which are not decoded for it."""
    path = turned(tmp_path / "x.png", 6)
    data = path.read_bytes()
    start = data.index(b"eXIf") - 4
    chunk = data[start : data.index(b"IDAT") - 4]
    path.write_bytes(data[:start] + data[start + len(chunk) : -12] + chunk + data[-12:])
    assert read_image(path).shape == STORED.shape
    monkeypatch.setattr(Image.Image, "load", lambda self: pytest.fail("decoded"))
    assert image_size(path) == STORED.shape[:2]


def test_boxes_of_a_turned_image(tmp_path: Path) -> None:
    """Stored 100 wide and 50 high, shown 50 wide and 100 high; the label file speaks of what is
    shown."""
    stored = np.zeros((50, 100, 3), np.uint8)
    # turned clockwise by orientation 6: rows 0 to 10, columns 50 - 50 = 0 to 50 - 30 = 20
    stored[30:50, 0:10] = 255
    as_yolo(tmp_path)
    turned(tmp_path / "images/train/a.png", 6, stored)
    lay_out(tmp_path, {"labels/train/a.txt": "0 0.2 0.05 0.4 0.1"})
    sample = load(tmp_path)[0]
    np.testing.assert_allclose(sample.boxes, [[0, 0, 20, 10]], atol=1e-4)
    assert sample.image.shape == (100, 50, 3)
    assert cv2.boundingRect(sample.image[..., 0]) == (0, 0, 20, 10)


GREY = STORED[..., 0]
ALPHA = np.kron(picture(3, 5, 2)[..., 0], np.ones((8, 8), np.uint8))


def of(array: np.ndarray) -> Image.Image:
    return Image.fromarray(array)


@pytest.mark.parametrize(
    ("suffix", "file", "options"),
    [
        ("png", of(STORED), {}),
        ("bmp", of(STORED), {}),
        ("jpg", of(STORED), {"quality": 100, "subsampling": 0}),
        ("mpo", of(STORED), {"quality": 100, "subsampling": 0}),
        ("webp", of(STORED), {"lossless": True}),
        ("tif", of(STORED), {"compression": "tiff_lzw"}),
        ("png", of(GREY), {}),
        ("jpg", of(GREY), {"quality": 100}),
        ("tif", of(GREY), {}),
        ("png", of(GREY > 127), {}),
        ("tif", of(GREY > 127), {}),
        ("png", of(STORED).quantize(8), {}),
        ("png", of(STORED).quantize(8), {"transparency": 3}),
        ("bmp", of(STORED).quantize(8), {}),
        ("jpg", of(STORED).convert("CMYK"), {"quality": 100, "subsampling": 0}),
        ("tif", of(STORED).convert("CMYK"), {}),
        ("png", of(np.dstack((STORED, ALPHA))), {}),
        ("webp", of(np.dstack((STORED, ALPHA))), {"lossless": True, "exact": True}),
        ("png", of(np.dstack((GREY, ALPHA))), {}),
        ("tif", of(np.dstack((STORED, ALPHA))), {}),
    ],
    ids=lambda x: getattr(x, "mode", None),
)
def test_kinds_of_images(
    tmp_path: Path, suffix: str, file: Image.Image, options: dict[str, Any]
) -> None:
    """The oracle is Pillow, on the picture before it went through a file; alpha is dropped, not
    blended."""
    path = tmp_path / f"x.{suffix}"
    file.save(path, **options)
    image = read_image(path)
    assert (image.dtype, image.shape) == (np.uint8, (24, 40, 3))
    expected = np.asarray(file.convert("RGB")).astype(int)
    assert len(np.unique(expected)) > 1
    assert np.abs(image - expected).max() <= (2 if suffix in ("jpg", "mpo") else 0)
    assert image_size(path) == (24, 40)


@pytest.mark.parametrize("suffix", ["png", "tif"])
@pytest.mark.parametrize("stored", [GREY, STORED], ids=["grey", "colour"])
def test_16_bit(tmp_path: Path, suffix: str, stored: np.ndarray) -> None:
    """From 0..65535 to 0..255: 257 v becomes v."""
    path = tmp_path / f"x.{suffix}"
    assert cv2.imwrite(str(path), bgr(stored) * np.uint16(257))
    assert np.array_equal(
        read_image(path), np.broadcast_to(stored.reshape(24, 40, -1), (24, 40, 3))
    )
    assert image_size(path) == (24, 40)
    if stored is GREY:
        with Image.open(path) as file:
            assert np.array_equal(rgb(file), read_image(path)), "Pillow's has the same pixels"


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp"])
@pytest.mark.parametrize(
    "exif",
    [b"garbage!", b"II*\0", b"II*\0\xff\xff\xff\xff", b""],
    ids=["garbage", "cut", "astray", "empty"],
)
def test_damaged_exif_is_not_followed(tmp_path: Path, suffix: str, exif: bytes) -> None:
    """The picture itself is whole."""
    path = tmp_path / f"x.{suffix}"
    Image.fromarray(STORED).save(path, exif=b"Exif\0\0" + exif, **SUFFIXES[suffix])
    assert read_image(path).shape == (24, 40, 3)
    assert image_sizes([path]) == [(24, 40)]


def test_unreadable_image_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.png").write_text("no image")
    with pytest.raises(InputError, match=r"x\.png: this image cannot be decoded"):
        read_image(tmp_path / "x.png")


def test_find_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("b.JPG", "a.png", "deep/c.webp", "notes.txt", "d.jpg.bak"):
        lay_out(tmp_path, {name: ""})
    (tmp_path / "folder.png").mkdir()

    def found(source: str | Path) -> list[str]:
        return [p.name for p in find_images(source)]

    lay_out(tmp_path / "elsewhere", {"e.png": "", ".ipynb_checkpoints/e-checkpoint.png": ""})
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked/folder").symlink_to(tmp_path / "elsewhere")
    assert found(tmp_path / "linked") == ["e.png"], "of a linked folder; nothing hidden"
    shutil.rmtree(tmp_path / "elsewhere")
    assert found(tmp_path) == ["a.png", "b.JPG", "c.webp"]
    assert found(tmp_path / "notes.txt") == ["notes.txt"], "what is named outright is tried"
    assert found(tmp_path / "*.JPG") == ["b.JPG"]
    assert found(tmp_path / "*.txt") == []
    monkeypatch.chdir(tmp_path)
    assert found("deep/*") == ["c.webp"]
    assert found("gone") == []
