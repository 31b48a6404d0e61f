"""Image files of every kind: EXIF, modes and depths; bad, damaged and huge ones, which are named."""

import struct
import zlib
from io import BytesIO
from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_datasets import PAIR, SCENES, as_yolo, bgr, files_of, lay_out, load, picture, save
from made_labels import examine
from made_runs import column
from PIL import Image, ImageFile
from PIL.PngImagePlugin import PngInfo

from boltbox.detector.data.file_list import find_images
from boltbox.detector.data.images import image_size, image_sizes, read_image, rgb
from boltbox.detector.data.inputs.sources import path_or_pixels
from boltbox.detector.model.network import NetworkOptions
from boltbox.detector.system.errors import InputError
from boltbox.detector.training.module import Detector

STORED = np.kron(picture(3, 5, 1), np.ones((8, 8, 1), np.uint8))  # 24 x 40 in even JPEG blocks
GREY = STORED[..., 0]
ALPHA = np.kron(picture(3, 5, 2)[..., 0], np.ones((8, 8), np.uint8))
EXACT = {
    "jpg": {"quality": 100, "subsampling": 0},
    "tiff": {},
    "png": {},
    "webp": {"lossless": True},
}


@pytest.mark.parametrize("how", ["text", "empty", "cut off", "9x60", "60x9", "missing"])
def test_a_bad_image_is_left_out(how, tmp_path):
    """A folder does not know what is missing from it, a list does."""
    as_yolo(tmp_path)
    lines = "".join(f"./images/train/{stem}.png\n" for stem in SCENES)
    lay_out(tmp_path, {"l.txt": lines, "data.yaml": "train: l.txt\n" + PAIR})
    bad = tmp_path / "images/train/b.png"
    if how[0] in "96":
        save(bad, picture(*map(int, how.split("x"))))
    elif how == "missing":
        bad.unlink()
    else:
        bad.write_bytes({"text": b"no image", "empty": b""}.get(how, bad.read_bytes()[:40]))
    save(tmp_path / "images/train/c.png", picture(10, 10))  # is enough
    dataset = load(tmp_path)
    assert files_of(dataset) == ["a.png", "c.png"]
    (lost,) = dataset.faults
    assert (lost.file, lost.where) == (str(bad), "")
    assert lost.kind == "unusable_image"


# The picture as shown, from the picture as stored, by EXIF orientation.
SHOWN = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.transpose(1, 0, 2),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: np.rot90(a, 2).transpose(1, 0, 2),
    8: lambda a: np.rot90(a, 1),
}


def turned(path, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(STORED).save(path, exif=exif, **EXACT[path.suffix[1:]])
    return path


@pytest.mark.parametrize("orientation", SHOWN)
@pytest.mark.parametrize("suffix", EXACT)
def test_exif_orientation(tmp_path, suffix, orientation):
    """Of the pixels and of the size by the header; bytes are read as the file is."""
    path = turned(tmp_path / f"x.{suffix}", orientation)
    expected = SHOWN[orientation](STORED)
    image = read_image(path)
    assert image_size(path) == image.shape[:2] == expected.shape[:2]
    assert np.abs(image.astype(int) - expected).max() <= (2 if suffix == "jpg" else 0)
    pixels = path_or_pixels(path.read_bytes())
    assert np.abs(np.asarray(pixels, int) - image).max() <= (2 if suffix == "jpg" else 0)


@pytest.mark.parametrize("suffix", ["jpg", "webp", "png"])
def test_orientation_that_is_not_followed(tmp_path, suffix):
    """XMP's, with an EXIF that has none too, damaged EXIF's, and after the pixels of a PNG: boxes in pixels would be
    scaled by swapped sides."""
    path = tmp_path / f"a.{suffix}"
    info = PngInfo()
    xmp = '<x:xmpmeta><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'
    info.add_itxt("XML:com.adobe.xmp", xmp)
    ways = [{"pnginfo": info} if suffix == "png" else {"xmp": xmp.encode()}]
    of_a_camera = Image.Exif()
    of_a_camera[0x010F] = "its maker"
    ways.append(ways[0] | {"exif": of_a_camera})
    for exif in (b"garbage!", b"II*\0", b"II*\0\xff\xff\xff\xff", b""):
        ways.append({"exif": b"Exif\0\0" + exif})
    contents = []
    for way in ways:
        Image.fromarray(STORED).save(path, **way, **EXACT[suffix])
        contents.append(path.read_bytes())
    if suffix == "png":
        data = turned(path, 6).read_bytes()
        start = data.index(b"eXIf") - 4
        end = data.index(b"IDAT") - 4
        contents.append(data[:start] + data[end:-12] + data[start:end] + data[-12:])
    for content in contents:
        path.write_bytes(content)
        assert image_sizes([path]) == [read_image(path).shape[:2]] == [STORED.shape[:2]]
        assert np.shape(path_or_pixels(content)) == STORED.shape


def of(array):
    return Image.fromarray(array)


@pytest.mark.parametrize(
    ("suffix", "file", "options"),
    [
        ("bmp", of(STORED), {}),
        ("mpo", of(STORED), EXACT["jpg"]),
        ("tif", of(STORED), {"compression": "tiff_lzw"}),
        ("png", of(GREY), {}),
        ("jpg", of(GREY), {"quality": 100}),
        ("tif", of(GREY > 127), {}),
        ("png", of(STORED).quantize(8), {"transparency": 3}),
        ("jpg", of(STORED).convert("CMYK"), EXACT["jpg"]),
        ("tif", of(STORED).convert("CMYK"), {}),
        ("png", of(np.dstack((STORED, ALPHA))), {}),
        ("webp", of(np.dstack((STORED, ALPHA))), {"lossless": True, "exact": True}),
        ("png", of(np.dstack((GREY, ALPHA))), {}),
        ("tif", of(np.dstack((STORED, ALPHA))), {}),
    ],
    ids=lambda x: getattr(x, "mode", None),
)
def test_kinds_of_images(tmp_path, suffix, file, options):
    """The oracle is Pillow, on the picture before it went through a file; alpha is dropped, not
    blended."""
    path = tmp_path / f"x.{suffix}"
    file.save(path, **options)
    image = read_image(path)
    assert (image.dtype, image.shape) == (np.uint8, (24, 40, 3))
    expected = np.asarray(file.convert("RGB")).astype(int)
    assert np.abs(image - expected).max() <= (2 if suffix in ("jpg", "mpo") else 0)


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_16_bit(tmp_path, suffix):
    """From 0..65535 to 0..255: 257 v becomes v, by Pillow too. Floats are fractions of 255, values of a
    PPM of its maximum, and of more bits none is beyond black or white."""
    path = tmp_path / f"x.{suffix}"
    for stored in (STORED, GREY):
        assert cv2.imwrite(str(path), bgr(stored) * np.uint16(257))
        expected = np.broadcast_to(stored.reshape(24, 40, -1), (24, 40, 3))
        assert np.array_equal(read_image(path), expected)
    with Image.open(path) as file:
        assert np.array_equal(rgb(file), expected)
    of(np.float32(GREY / 255)).save(tmp_path / "x.tif")
    assert np.array_equal(read_image(tmp_path / "x.tif"), expected)
    of(np.int32([[-300, 65535, 70000]])).save(tmp_path / "x.tif")
    assert read_image(tmp_path / "x.tif")[0, :, 0].tolist() == [0, 255, 255]
    path.write_bytes(b"P5 2 1 15 \x03\x0f")
    assert read_image(path)[0, :, 0].tolist() == [51, 255]


def test_find_images(here):
    names = ["b.JPG", "a.png", "deep/c.jfif", "notes.txt", "d.jpg.bak", ".hidden/e.png"]
    lay_out(here, {f"set/{name}": "" for name in names} | {"set/folder.png/": ""})
    (here / "linked").mkdir()
    (here / "set/deep/loop").symlink_to(here / "set")
    (here / "linked/back").symlink_to(here / "linked")
    (here / "set/to_linked").symlink_to(here / "linked")
    (here / "linked/folder").symlink_to(here / "set")
    found = {}
    for source in ("set", "linked", "set/notes.txt", "set/*.JPG", "*/deep/*", "set/*.txt", "gone"):
        found[source] = column(find_images(source), "name")
    images = ["a.png", "b.JPG", "c.jfif"]
    assert sorted({*found.pop("set")}) == sorted({*found.pop("linked")}) == images
    assert list(found.values()) == [["notes.txt"], ["b.JPG"], ["c.jfif"], [], []]


def encoded(image, kind, **options):
    file = BytesIO()
    Image.fromarray(image).save(file, kind, **options)
    return file.getvalue()


def huge(kind):
    """An image file of this format whose header promises 4 to 10 gigapixels."""
    data = bytearray(encoded(STORED, kind))
    if kind == "PNG":
        data[16:24] = struct.pack(">2I", 100_000, 100_000)
        data[29:33] = zlib.crc32(data[12:29]).to_bytes(4, "big")
    elif kind == "BMP":
        data[18:26] = struct.pack("<2i", 100_000, 100_000)
    else:  # start of frame: length, precision, height, width; 16 bits each
        at = data.index(b"\xff\xc0")
        data[at + 5 : at + 9] = struct.pack(">2H", 65_500, 65_500)
    return bytes(data)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "BMP"])
def test_no_decoder_is_called_for_a_huge_image(kind, tmp_path, monkeypatch):
    def decode(*args, **options):
        pytest.fail("a decoder was called")

    monkeypatch.setattr(cv2, "imread", decode)
    monkeypatch.setattr(cv2, "imdecode", decode)
    monkeypatch.setattr(ImageFile.ImageFile, "load", decode)
    path = tmp_path / f"huge.{kind.lower()}"
    path.write_bytes(huge(kind))
    assert "exceeds limit" in str(image_sizes([path])[0])
    for shrink in (1, 8):
        with pytest.raises(InputError, match=f"{path}: .* exceeds limit"):
            read_image(path, shrink)
    assert set(column(examine(train=[path]), "kind")) == {"damaged_image"}
    detector = Detector(["a"], network=NetworkOptions(width_multiple=0.0625)).eval()
    for image in (path, path.read_bytes()):
        with pytest.raises(InputError):
            detector.predict(image)


def test_a_program_is_not_run(tmp_path, monkeypatch):
    """An image in PostScript, which Pillow gives to the first `gs` that it finds."""
    program = tmp_path / "gs"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    path = tmp_path / "photo.jpg"
    Image.new("RGB", (30, 20)).save(path, "EPS")
    with pytest.raises(InputError, match=f"{path}: .*Ghostscript"):
        read_image(path)
    assert not (tmp_path / "ran").exists()


SMOOTH = cv2.resize(picture(6, 6, 1), (56, 40), interpolation=cv2.INTER_CUBIC)
LARGE = cv2.resize(picture(6, 6, 2), (150, 140), interpolation=cv2.INTER_CUBIC)
WHOLE = [
    encoded(SMOOTH, "jpeg", quality=90),
    encoded(SMOOTH, "jpeg", progressive=True),
    encoded(LARGE, "jpeg", quality=50),  # decoded to an eighth
    encoded(SMOOTH[..., 0], "jpeg"),
    encoded(SMOOTH, "png"),
    cv2.imencode(".png", bgr(SMOOTH) * np.uint16(257))[1].tobytes(),
]


def reported(paths):
    return {Path(f.file) for f in examine(train=paths) if f.severity == "fault"}


NUMBERS = [b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\xff\xd9", b"\xff\xd8", b"IEND"]


@st.composite
def damaged(draw):
    """A file with up to three defects: bytes changed, cut out, put in, repeated; or its end
    missing."""
    data = draw(st.sampled_from(WHOLE))
    for _ in range(draw(st.integers(1, 3))):
        # half of them are in the header, where they do most
        at = draw(st.one_of(st.integers(0, min(len(data), 700)), st.integers(0, len(data))))
        end = at + draw(st.integers(1, 8))
        part = draw(st.sampled_from(NUMBERS + [b"", data[at:end] * 2]) | st.binary(max_size=6))
        data = data[:at] + part + (data[end:] if draw(st.integers(0, 5)) else b"")
    return data


def is_whole(path, capfd):
    """By OpenCV, in full, and what libjpeg and libpng write to the terminal. A JPEG that lacks only
    its end mark is whole."""
    with_end = path.with_name(f"end{path.suffix}")
    with_end.write_bytes(path.read_bytes() + b"\xff\xd9")
    capfd.readouterr()
    pixels = cv2.imread(str(with_end), cv2.IMREAD_UNCHANGED)
    said = capfd.readouterr().err
    lost = ("Corrupt JPEG data", "Premature end of JPEG", "libpng error")
    return pixels is not None and not any(words in said for words in lost)


@settings(max_examples=6, suppress_health_check=list(HealthCheck))
@given(files=st.lists(damaged(), min_size=24, max_size=24))
def test_damaged_images(tmp_path_factory, capfd, files):
    """Each decodes as its header says, in full, or is reported; never a traceback. 24 at a
    time, as starting the decoders takes longer than reading one."""
    folder = tmp_path_factory.mktemp("files")
    paths = []
    for k, data in enumerate(files + WHOLE):
        paths.append(folder / f"{k}.{'png' if data[1:4] == b'PNG' else 'jpg'}")
        paths[-1].write_bytes(data)
    bad = reported(paths)
    assert not bad.intersection(paths[len(files) :])
    for path, size in zip(paths, image_sizes(paths), strict=True):
        assert path in bad or is_whole(path, capfd), "silently damaged"
        if isinstance(size, str):  # training leaves it out
            continue
        try:
            shapes = [read_image(path).shape, read_image(path, shrink=8).shape]
        except InputError:
            assert path in bad
            continue
        eighth = tuple(-(-side // 8) for side in size)
        fits = shapes[0] == (*size, 3) and shapes[1][:2] in (size, eighth)
        assert fits or path in bad, "boxes would be misplaced"


def test_what_is_lost_of_a_file(tmp_path):
    """A JPEG that was cut off is read, as OpenCV reads a file; only lost pixels are reported, not a lost end mark. A PNG
    that differs from its checksum is too."""
    for data in WHOLE[:4]:
        paths = list(map(tmp_path.joinpath, ("whole.jpg", "end.jpg", "pixels.jpg")))
        for path, lost in zip(paths, (0, 2, 40), strict=True):
            path.write_bytes(data[: len(data) - lost])
        whole, end, pixels = map(read_image, paths)
        assert np.array_equal(end, whole)
        assert pixels.shape == whole.shape
        assert reported(paths) == {paths[2]}
    path = tmp_path / "x.png"
    content = bytearray(WHOLE[4])
    content[-13] ^= 1  # the end of the checksum of the pixels; IEND takes 12 bytes
    path.write_bytes(content)
    assert reported([path]) == {path}
