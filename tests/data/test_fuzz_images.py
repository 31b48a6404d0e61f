"""Damaged image files: each decodes as its header says, without a complaint of a decoder, or is
reported; never a traceback."""

import io
import subprocess
import sys
import zlib
from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_datasets import bgr, picture
from PIL import Image

from boltbox.detector.commands.doctor.images import examine_images
from boltbox.detector.data.images import image_sizes, read_image
from boltbox.detector.system.errors import InputError

ROOT = Path(__file__).parents[2]
SMOOTH = cv2.resize(picture(6, 6, 1), (56, 40), interpolation=cv2.INTER_CUBIC)
# decoded to an eighth
LARGE = cv2.resize(picture(6, 6, 2), (150, 140), interpolation=cv2.INTER_CUBIC)


def encoded(image: np.ndarray, suffix: str, **options: object) -> bytes:
    file = io.BytesIO()
    Image.fromarray(image).save(file, suffix, **options)
    return file.getvalue()


WHOLE = [
    (".jpg", encoded(SMOOTH, "jpeg", quality=90)),
    (".jpg", encoded(SMOOTH, "jpeg", progressive=True)),
    (".jpg", encoded(LARGE, "jpeg", quality=50)),
    (".jpg", encoded(SMOOTH[..., 0], "jpeg")),
    (".png", encoded(SMOOTH, "png")),
    (".png", encoded(LARGE[..., 0], "png")),
    (".png", cv2.imencode(".png", bgr(SMOOTH) * np.uint16(257))[1].tobytes()),
]
NUMBERS = [
    b"\0\0\0\0",
    b"\xff\xff\xff\xff",
    b"\x7f\xff\xff\xff",
    b"\0\0\0\x01",
    b"\xff\xd9",
    b"\xff\xd8\xff",
    b"IEND",
    b"\xff\xc4",
]


@st.composite
def damaged(draw: st.DrawFn) -> tuple[str, bytes]:
    """A file with up to three defects: bytes changed, cut out, put in, repeated; or its end
    missing."""
    suffix, data = draw(st.sampled_from(WHOLE))
    for _ in range(draw(st.integers(1, 3))):
        # half of them are in the header, where they do most
        at = draw(st.one_of(st.integers(0, min(len(data), 700)), st.integers(0, len(data))))
        length = draw(st.integers(1, 8))
        how = draw(st.sampled_from(["flip", "cut", "insert", "repeat", "number", "end"]))
        part = data[at : at + length]
        if how == "flip":
            mask = draw(st.integers(1, 255))
            part = bytes(b ^ mask for b in part[:1]) + part[1:]
        elif how == "cut":
            part = b""
        elif how == "insert":
            part = draw(st.binary(min_size=1, max_size=6)) + part
        elif how == "repeat":
            part = part * 2
        elif how == "number":
            part = draw(st.sampled_from(NUMBERS))
        data = data[:at] + part + (b"" if how == "end" else data[at + length :])
    return suffix, data


LOST_PIXELS = ("Corrupt JPEG data", "Premature end of JPEG", "libpng error")


def decodes(path: Path, capfd: pytest.CaptureFixture[str]) -> bool:
    """The oracle: OpenCV and Pillow, in full, one file at a time, with an eye on what they write to
    the terminal; and the size in the header, read by hand."""
    capfd.readouterr()
    pixels = cv2.imread(str(path), cv2.IMREAD_UNCHANGED | cv2.IMREAD_IGNORE_ORIENTATION)
    said = capfd.readouterr().err
    if pixels is None or any(words in said for words in LOST_PIXELS):
        return False
    try:
        with Image.open(path) as file:
            file.load()
    except (OSError, ValueError, SyntaxError):
        return False
    return pixels.shape[:2] == header_size(path.read_bytes())


def header_size(data: bytes) -> tuple[int, int] | None:
    """(height, width) of a PNG's IHDR, or of a JPEG's first frame header."""
    if data.startswith(b"\x89PNG"):
        return int.from_bytes(data[20:24], "big"), int.from_bytes(data[16:20], "big")
    at = 2
    while at + 9 < len(data):
        if data[at] != 0xFF:  # stray bytes before a marker
            at += 1
        elif data[at + 1] in (0xC0, 0xC1, 0xC2):
            return int.from_bytes(data[at + 5 : at + 7], "big"), int.from_bytes(
                data[at + 7 : at + 9], "big"
            )
        elif data[at + 1] in (0xFF, 0x00, 0x01, *range(0xD0, 0xD9)):
            at += 1 if data[at + 1] == 0xFF else 2
        else:
            at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return None


@settings(max_examples=20, suppress_health_check=list(HealthCheck))
@given(files=st.lists(damaged(), min_size=12, max_size=12))
def test_damaged_images(
    tmp_path_factory: pytest.TempPathFactory, capfd: pytest.CaptureFixture[str], files: list
) -> None:
    """240 files, twelve at a time, as starting the decoders takes longer than looking at one."""
    folder = tmp_path_factory.mktemp("files")
    paths = [folder / f"{k}{suffix}" for k, (suffix, _) in enumerate(files)]
    for path, (_, data) in zip(paths, files, strict=True):
        path.write_bytes(data)
    findings = examine_images({"train": [str(path) for path in paths]})
    reported = {f.file for f in findings if f.severity == "fault"}
    for path, size in zip(paths, image_sizes(paths), strict=True):
        with_end = path.with_name(f"end{path.suffix}")  # a JPEG that lacks only that is whole
        with_end.write_bytes(path.read_bytes() + (b"\xff\xd9" if path.suffix == ".jpg" else b""))
        whole = decodes(with_end, capfd)
        assert whole or str(path) in reported, f"{path}: silently damaged"
        if isinstance(size, str):  # training leaves it out
            continue
        try:
            pixels = read_image(path)
        except InputError:
            assert str(path) in reported
            continue
        assert (pixels.dtype, pixels.ndim, pixels.shape[2]) == (np.uint8, 3, 3)
        assert pixels.shape[:2] == size or str(path) in reported, "boxes would be misplaced"
        shrunk = read_image(path, shrink=8).shape[:2]
        assert shrunk in (size, tuple(-(-side // 8) for side in size)) or str(path) in reported


def test_the_fuzz_makes_both_kinds(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The oracle accepts every file before it is damaged, and each suffers from losing its second
    half."""
    for k, (suffix, data) in enumerate(WHOLE):
        path = tmp_path / f"{k}{suffix}"
        path.write_bytes(data)
        assert decodes(path, capfd)
        path.write_bytes(data[: len(data) // 2])
        assert not decodes(path, capfd)


def test_headers_that_promise_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """2147483647 x 2147483647 pixels, which the user allows; nobody has the memory."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    data = WHOLE[4][1]
    header = b"IHDR" + b"\x7f\xff\xff\xff" * 2 + data[24:29]
    path = tmp_path / "x.png"
    path.write_bytes(data[:12] + header + zlib.crc32(header).to_bytes(4, "big") + data[33:])
    with pytest.raises(InputError, match=r"x\.png: this image cannot be decoded"):
        read_image(path)
    assert "damaged_image" in {f.kind for f in examine_images({"train": [str(path)]})}


def test_more_pixels_than_opencv_wants_to_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pillow reads what is beyond its limit, which is set when it is loaded."""
    monkeypatch.setenv("OPENCV_IO_MAX_IMAGE_PIXELS", "1000")
    for suffix, data in (WHOLE[0], WHOLE[4]):
        path = tmp_path / f"x{suffix}"
        path.write_bytes(data)
        code = "import sys; from boltbox.detector.data.images import read_image; print(read_image(sys.argv[1]).shape)"
        done = subprocess.run(
            [sys.executable, "-c", code, str(path)],
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
        )
        assert done.stdout == "(40, 56, 3)\n", done.stderr
        assert list(examine_images({"train": [str(path)]})) == []
