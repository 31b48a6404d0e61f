"""Files of a few bytes whose headers promise 10 gigapixels: refused before a decoder is called,
wherever images are read."""

import struct
import zlib
from io import BytesIO
from pathlib import Path
from typing import Any

import cv2
import pytest
from made_datasets import picture
from made_predictions import checkpoint_file, pictures_folder, predict  # noqa: F401
from PIL import Image, ImageFile

import cli
from boltbox.detector.commands.doctor.images import examine_image
from boltbox.detector.data.images import image_sizes, read_image
from boltbox.detector.model.network import NetworkOptions
from boltbox.detector.system.errors import InputError
from boltbox.detector.training.module import Detector

SIDE = 100_000


def encoded(kind: str) -> bytearray:
    file = BytesIO()
    Image.fromarray(picture(24, 40)).save(file, kind)
    return bytearray(file.getvalue())


def huge(folder: Path, kind: str) -> tuple[Path, int]:
    """An image file of this format whose header promises a square, and the side of that."""
    data = encoded(kind)
    side = SIDE
    if kind == "PNG":
        data[16:24] = struct.pack(">2I", side, side)
        data[29:33] = zlib.crc32(data[12:29]).to_bytes(4, "big")
    elif kind == "BMP":
        data[18:26] = struct.pack("<2i", side, side)
    elif kind == "JPEG":
        # start of frame: length, precision, height, width; 16 bits each
        side = 65_500
        at = data.index(b"\xff\xc0")
        data[at + 5 : at + 9] = struct.pack(">2H", side, side)
    elif kind == "TIFF":  # little-endian; entries of 12 bytes: tag, type (4: 32 bits), count, value
        first = struct.unpack_from("<I", data, 4)[0]
        for k in range(struct.unpack_from("<H", data, first)[0]):
            at = first + 2 + 12 * k
            # width, height, rows a strip
            if struct.unpack_from("<H", data, at)[0] in (256, 257, 278):
                data[at + 2 : at + 12] = struct.pack("<HII", 4, 1, side)
    path = folder / f"huge.{ {'JPEG': 'jpg', 'TIFF': 'tif'}.get(kind, kind.lower()) }"
    path.write_bytes(data)
    return path, side


@pytest.fixture
def no_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any decoder that is called fails the test."""

    def decode(*args: Any, **options: Any) -> Any:
        pytest.fail("a decoder was called")

    monkeypatch.setattr(cv2, "imread", decode)
    monkeypatch.setattr(cv2, "imdecode", decode)
    monkeypatch.setattr(ImageFile.ImageFile, "load", decode)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "BMP", "TIFF"])
def test_no_decoder_is_called(kind: str, tmp_path: Path, no_decoding: None) -> None:
    path, side = huge(tmp_path, kind)
    (said,) = image_sizes([path])
    assert f"({side * side} pixels) exceeds limit of 536870912 pixels" in str(said)
    for shrink in (1, 8):
        with pytest.raises(InputError, match=f"{path}: .* exceeds limit"):
            read_image(path, shrink)
    assert "exceeds limit of 536870912 pixels" in examine_image(str(path)).damage
    detector = Detector(["a"], network=NetworkOptions(width_multiple=0.0625)).eval()
    for tile_size in (None, 640):
        with pytest.raises(InputError, match="exceeds limit"):
            detector.predict(path, tile_size=tile_size)


def test_predict_and_doctor_name_it(
    checkpoint: Path,
    pictures: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    huge(pictures, "PNG")
    run = predict(checkpoint, "pictures", "--images", "false")
    assert "huge.png: not a readable image (Image size" in capsys.readouterr().out
    assert len(list(run.glob("labels/*.txt"))) == len(list(pictures.glob("*.jpg"))) > 0
    Path("labels").mkdir()
    for file in pictures.iterdir():
        Path("labels", f"{file.stem}.txt").write_text("0 .5 .5 .2 .2\n")
    pictures.rename("images")
    Path("data.yaml").write_text("train: images\nval: images\nnames: [a]\n")
    with pytest.raises(SystemExit) as leaving:
        cli.main(["doctor", "--data.dataset", "data.yaml"])
    assert leaving.value.code == 1
    assert "unusable_image" in capsys.readouterr().out
