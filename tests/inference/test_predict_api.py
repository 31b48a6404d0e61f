"""The detector as a Python object: the same numbers as the command's."""

import json
import re
import shutil
import sys
from pathlib import Path

import cv2
import lightning as L
import numpy as np
import pytest
import torch
from made_predictions import NAMES, checkpoint_file, pictures_folder, predict, predict_line  # noqa: F401
from made_runs import code_of, column, load, type_line
from PIL import Image

from boltbox.detector.inference.detections import Detections
from boltbox.detector.inference.predictor import Predictor
from boltbox.detector.system.errors import InputError
from boltbox.detector.training.module import Detector

LEAST = {"device": "cpu", "conf": 0.0005}
WEIGHT = "backbone.stem.conv.weight"


@pytest.mark.parametrize(
    ("typed", "options"),
    [
        ("", {}),
        (
            "--tta true --tile_size 64 --classes [star,0]",
            {"tta": True, "tile_size": 64, "classes": ["star", 0]},
        ),
    ],
)
def test_the_numbers_of_the_command(checkpoint, pictures, typed, options):
    run = predict(checkpoint, "pictures", f"{typed} --images false")
    files = sorted(pictures.iterdir())
    found = Detector.load(checkpoint, "cpu").predict(files, conf=0.0005, max_det=20, **options)
    count = 0
    for file, detections in zip(files, found, strict=True):
        height, width = cv2.imread(str(file)).shape[:2]
        lines = np.loadtxt(run / f"labels/{file.stem}.txt", ndmin=2).reshape(-1, 6)
        low, high = np.split(detections.xyxy / ([width, height] * 2), 2, 1)
        ours = np.column_stack(((low + high) / 2, high - low, detections.confidence))
        np.testing.assert_array_equal(detections.class_id, lines[:, 0])
        np.testing.assert_allclose(ours, lines[:, 1:], rtol=2e-5, atol=1e-6)
        count += len(detections)
    assert count > 20


def test_tiles_of_the_training(checkpoint, here):
    content = load(checkpoint)
    torch.save(content | {"tiles": [48, 0.5]}, "tiled.ckpt")
    type_line("strip tiled.ckpt --out small.ckpt")
    tiled = Predictor.load("small.ckpt", **LEAST)
    assert tiled.inputs().tiles == Detector.load("tiled.ckpt").make_predictor().tiles == (48, 0.5)
    assert tiled.inputs(tile_size=0).tiles is None


def test_options(checkpoint, pictures):
    """A literal run is suppressed with YOLOv5's rounding, as it was validated. On a CPU 16-mixed is
    float32."""
    content = load(checkpoint)
    content["hyper_parameters"]["literal"] = True
    torch.save(content, "literal.ckpt")
    literal = Predictor.load("literal.ckpt", **LEAST)
    assert literal.thresholds["rounded"]
    full = Predictor.load(checkpoint, precision="32-true", **LEAST)
    assert not full.thresholds["rounded"]
    mixed = Predictor.load(checkpoint, **LEAST)
    file = pictures / "0000.jpg"
    np.testing.assert_array_equal(mixed(file).confidence, full(file).confidence)
    assert len(mixed(file, image_size=96)) != len(mixed(file)) > 5
    for options, words in (
        ({"precision": "16"}, "precision is '16'"),
        ({"conf": [0.1, 0.2]}, "conf has 2 numbers"),
        ({"classes": ["disk"]}, "'disk'.*'disc'"),
        ({"classes": [7]}, "no class 7"),
        ({"device": "nowhere"}, "device nowhere"),
    ):
        with pytest.raises(InputError, match=words):
            Predictor.load(checkpoint, **(LEAST | options))
    with pytest.raises(InputError, match=r"nowhere.pt"):
        Predictor.load("nowhere.pt")


def test_kinds_of_images(checkpoint, pictures):
    detector = Detector.load(checkpoint, "cpu")
    file = pictures / "0000.jpg"
    turned = Image.open(file)
    turned.getexif()[0x0112] = 6
    turned.save("turned.png", exif=turned.getexif())
    by_path = detector.predict(str(file), conf=0.0005)
    pixels = cv2.imread(str(file), cv2.IMREAD_COLOR_RGB)
    planes = torch.from_numpy(pixels).permute(2, 0, 1)
    of_bgr = cv2.imread(str(file))[..., ::-1]
    for same in (pixels, of_bgr, Image.fromarray(pixels), planes, planes / 255, file.read_bytes()):
        other = detector.predict(same, conf=0.0005)
        np.testing.assert_array_equal(other.xyxy, by_path.xyxy)
        assert other.path is None
    as_file, as_image = detector.predict(["turned.png", Image.open("turned.png")], conf=0.0005)
    np.testing.assert_array_equal(as_file.xyxy, as_image.xyxy)
    shutil.make_archive("all", "zip", pictures)
    at_address = detector.predict(f"zip://{Path.cwd()}/all.zip/0000.jpg", conf=0.0005)
    np.testing.assert_array_equal(at_address.xyxy, by_path.xyxy)
    Path("cut.jpg").write_bytes(file.read_bytes()[:-300])
    of_file, of_bytes = detector.predict(["cut.jpg", Path("cut.jpg").read_bytes()], conf=0.0005)
    np.testing.assert_array_equal(of_file.xyxy, of_bytes.xyxy)
    assert by_path.names == NAMES
    assert by_path.xyxy.dtype == by_path.confidence.dtype == np.float32
    assert by_path.class_id.dtype == np.int64
    assert detector.predict([]) == []
    assert detector.predict(np.zeros((3, 5000, 3), np.uint8), tile_size=640).path is None
    for wrong in (
        pixels.astype(float),
        pixels[..., :2],
        planes.float(),
        3,
        file.read_bytes()[:300],
        pictures / "nowhere.jpg",
    ):
        with pytest.raises(InputError, match=r"^predict|nowhere.jpg"):
            detector.predict([wrong])


def test_folders_and_broken_photos(checkpoint, pictures, capsys):
    """Sorted; each says of which file it is, and how many of each class it holds. Of a folder a
    broken photo is left out and named; alone, or in a list whose results have to stay in order, it
    is an error."""
    predictor = Predictor.load(checkpoint, **LEAST)
    files = sorted(map(str, pictures.iterdir()))
    (pictures / "0001_broken.jpg").write_bytes(b"no image")
    cut = pictures / "0002_cut.png"  # its header is good
    Image.open(pictures / "0002.jpg").save(cut)
    cut.write_bytes(cut.read_bytes()[:2000])
    found = predictor.predict(pictures)
    assert column(found, "path") == files
    said = capsys.readouterr().out
    assert "0001_broken.jpg" in said
    assert "0002_cut.png" in said
    (first,) = predictor.predict(str(pictures / "000[0].jpg"))
    counts = [f"{n} {name}" for k, name in enumerate(NAMES) if (n := sum(first.class_id == k))]
    assert str(first) == str(found[0]) == ", ".join(counts)
    for wrong in (pictures / "0001_broken.jpg", sorted(pictures.iterdir())):
        with pytest.raises(InputError, match="0001_broken"):
            predictor.predict(wrong)
    for pattern in (str(pictures / "000[12]_*"), "nowhere"):
        with pytest.raises(InputError, match=re.escape(pattern)):
            predictor.predict(pattern)


def test_thresholds_of_its_own(checkpoint, pictures, refused):
    """Per class, as if the others were not there; the command finds the same."""
    told = refused(predict_line(checkpoint, "pictures", "--thresholds own"))
    assert f"thresholds own: {checkpoint}" in told
    content = load(checkpoint)
    content["thresholds"] = own = [0.002, 0.004, 0.001, 0.9, 0.003]
    torch.save(content, "own.ckpt")
    found = Predictor.load("own.ckpt", device="cpu", thresholds="own").predict(pictures)
    every = Predictor.load("own.ckpt", **LEAST).predict(pictures)
    for some, all_of_it in zip(found, every, strict=True):
        kept = all_of_it[all_of_it.confidence > np.array(own)[all_of_it.class_id]]
        np.testing.assert_array_equal(some.xyxy, kept.xyxy)
        assert len(some) < len(all_of_it)
    run = predict("own.ckpt", "pictures", "--thresholds own --max_det 1000")
    lines = sum(len(p.read_text().splitlines()) for p in (run / "labels").iterdir())
    assert lines == sum(map(len, found)) > 0
    assert Detector.load("own.ckpt", "cpu").evaluation.thresholds == own
    content["hyper_parameters"]["names"] = ["a", "a", "b", "c", "d"]
    torch.save(content, "twins.ckpt")
    assert Predictor.load("twins.ckpt", device="cpu", thresholds="own").thresholds["conf"] == own


ROWS = np.array(
    [[2, 4, 20, 30, 0.9, 1], [10, 10, 40, 38, 0.6, 0], [0, 0, 8, 8, 0.3, 1]], np.float32
)


def test_detections(tmp_path, monkeypatch):
    """Some of them, one by one, drawn, as a table."""
    found = Detections.of(ROWS, ["cat", "dog"])
    assert found[-1].xyxy.tolist() == [[0, 0, 8, 8]]
    assert found[:2].confidence.tolist() == pytest.approx([0.9, 0.6])
    assert found[found.confidence > 0.5].class_id.tolist() == [1, 0]
    assert found[np.array([2, 0])].class_id.tolist() == [1, 1]
    assert found[found.class_id == 7].xyxy.shape == (0, 4)
    with pytest.raises(IndexError):
        found[3]
    assert [each.class_names() for each in found] == [["dog"], ["cat"], ["dog"]]
    image = np.full((40, 48, 3), 90, np.uint8)
    drawn = found[1].plot(image)
    assert (image == 90).all()
    changed = (drawn != 90).any(2)
    assert changed[38, 15:40].all()  # the lower edge
    assert not changed[30:36, 20:38].any()
    assert (found[1].plot(image[..., 0]) == drawn).all(), "grey"
    found[1].save(tmp_path / "drawn.png", image)
    saved = cv2.imread(str(tmp_path / "drawn.png"), cv2.IMREAD_COLOR_RGB)
    np.testing.assert_array_equal(saved, drawn)
    found.path = str(tmp_path / "drawn.png")
    assert (found[:0].plot() == drawn).all()
    for nowhere in ("drawn.nothing", "nowhere/drawn.jpg"):
        with pytest.raises(InputError, match=nowhere):
            found.save(tmp_path / nowhere)
    found.path = None
    with pytest.raises(InputError, match="image"):
        found.plot()
    first = json.loads(found.to_json())[0]
    assert first == {"name": "dog", "class_id": 1, "confidence": 0.9, "xyxy": [2, 4, 20, 30]}
    table = found.to_pandas()
    assert list(table) == ["x1", "y1", "x2", "y2", "confidence", "class_id", "name"]
    np.testing.assert_array_equal(table[list(table)[:6]], ROWS)
    assert table["name"].tolist() == ["dog", "cat", "dog"]
    assert len(found[:0].to_pandas()) == len(json.loads(found[:0].to_json())) == 0
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match="pandas"):
        found.to_pandas()


def test_the_page(checkpoint, pictures):
    """The code of docs/predict.md."""
    (code,) = code_of("predict")
    assert code.count("runs/fit-1/checkpoints/best.ckpt") == 1
    code = code.replace("runs/fit-1/checkpoints/best.ckpt", str(checkpoint))
    pictures.rename("photos")
    file = Path("photos/0000.jpg").rename("a.jpg")
    array = cv2.imread(str(file), cv2.IMREAD_COLOR_RGB)
    exec(code, {"array": array, "pil_image": Image.open(file)})
    assert Path("drawn.jpg").is_file()


def test_weights_that_change_are_seen(checkpoint, pictures):
    """Trained on between two predictions: what was made ready before does not count any more."""
    detector = Detector.load(checkpoint, "cpu")
    before = detector.predict(pictures / "0000.jpg", conf=0.0005)
    with torch.no_grad():
        for parameter in detector.evaluated_network().head.parameters():
            parameter.mul_(1.5)
    after = detector.predict(pictures / "0000.jpg", conf=0.0005)
    assert len(before) != len(after) or not np.array_equal(before.confidence, after.confidence)


def test_weights_that_are_not_finite(checkpoint, pictures):
    """In a file, or in memory since."""
    content = load(checkpoint)
    content["state_dict"][f"ema.{WEIGHT}"].fill_(float("nan"))
    torch.save(content, "bad.ckpt")
    for kind in (Predictor, Detector):
        with pytest.raises(InputError, match=f"bad.ckpt: .*{WEIGHT}"):
            kind.load("bad.ckpt", device="cpu")
    detector = Detector.load(checkpoint, "cpu")
    image = pictures / "0000.jpg"
    predictor = detector.make_predictor()
    with torch.no_grad():
        detector.network.backbone.stem.conv.weight.fill_(float("nan"))
    with pytest.raises(InputError, match=WEIGHT):
        detector.predict(image)
    assert predictor.predict(image) is not None  # it has a copy of the weights
    trainer = L.Trainer(accelerator="cpu", logger=False, enable_progress_bar=False)
    with pytest.raises(InputError, match=WEIGHT):
        trainer.predict(detector, torch.utils.data.DataLoader(torch.rand(2, 3, 64, 64)))
