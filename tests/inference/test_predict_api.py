"""The detector as a Python object: the same numbers as the command's."""

import json
import re
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from made_predictions import NAMES, checkpoint_file, pictures_folder, predict  # noqa: F401
from PIL import Image
from shared import shared

import cli
from boltbox.detector.inference.detections import Detections
from boltbox.detector.inference.predictor import Predictor
from boltbox.detector.system.errors import InputError
from boltbox.detector.training.module import Detector


@pytest.mark.parametrize(
    "options", [{}, {"tta": True}, {"tile_size": 64, "classes": ["star", 0]}], ids=str
)
def test_the_numbers_of_the_command(options: dict, checkpoint: Path, pictures: Path) -> None:
    typed = []
    for name in options:
        text = {"classes": "[star,0]", "tile_size": "64", "tta": "true"}[name]
        typed += [f"--{name}", text]
    run = predict(checkpoint, "pictures", "--images", "false", *typed)
    files = sorted(pictures.iterdir())
    found = Detector.load(checkpoint, "cpu").predict(files, conf=0.0005, max_det=20, **options)
    assert isinstance(found, list)
    count = 0
    for file, detections in zip(files, found, strict=True):
        height, width = cv2.imread(str(file)).shape[:2]
        lines = np.loadtxt(run / f"labels/{file.stem}.txt", ndmin=2).reshape(-1, 6)
        x1, y1, x2, y2 = detections.xyxy.T
        ours = (
            (x1 + x2) / 2 / width,
            (y1 + y2) / 2 / height,
            (x2 - x1) / width,
            (y2 - y1) / height,
            detections.confidence,
        )
        np.testing.assert_array_equal(detections.class_id, lines[:, 0])
        np.testing.assert_allclose(np.stack(ours, 1), lines[:, 1:], rtol=2e-5, atol=1e-6)
        count += len(detections)
    assert count > 20


def test_precision(checkpoint: Path, pictures: Path) -> None:
    """On a GPU as the command's: 16-mixed unless 32-true is asked for. A CPU computes in float32
    either way."""
    detector = Detector.load(checkpoint, "cpu")
    file = pictures / "0000.jpg"
    mixed, full = (
        detector.predict(file, conf=0.0005, precision=p) for p in ("16-mixed", "32-true")
    )
    assert isinstance(mixed, Detections)
    assert isinstance(full, Detections)
    np.testing.assert_array_equal(mixed.confidence, full.confidence)
    with pytest.raises(InputError, match="precision is '16'; choose 16-mixed"):
        detector.predict(file, precision="16")


def test_a_literal_run_is_suppressed_as_it_was_validated(checkpoint: Path, tmp_path: Path) -> None:
    """With YOLOv5's rounding."""
    content = torch.load(checkpoint, weights_only=True)
    content["hyper_parameters"]["literal"] = True
    torch.save(content, tmp_path / "literal.ckpt")
    assert Predictor.load(tmp_path / "literal.ckpt", device="cpu").thresholds["rounded"]
    assert not Predictor.load(checkpoint, device="cpu").thresholds["rounded"]


def test_paths_arrays_and_pil_images(checkpoint: Path, pictures: Path) -> None:
    detector = Detector.load(checkpoint, "cpu")
    file = pictures / "0000.jpg"
    turned = Image.open(file)
    turned.getexif()[0x0112] = 6
    turned.save(pictures / "turned.png", exif=turned.getexif())
    by_path = detector.predict(str(file), conf=0.0005)
    pixels = cv2.imread(str(file), cv2.IMREAD_COLOR_RGB)
    planes = torch.from_numpy(pixels).permute(2, 0, 1)
    of_bgr = cv2.imread(str(file))[..., ::-1]
    as_given = pixels, of_bgr, Image.fromarray(pixels), planes, planes / 255, file.read_bytes()
    for same in as_given:
        other = detector.predict(same, conf=0.0005)
        np.testing.assert_array_equal(other.xyxy, by_path.xyxy)
        assert other.path is None
    as_file, as_image = (
        detector.predict(x, conf=0.0005)
        for x in (pictures / "turned.png", Image.open(pictures / "turned.png"))
    )
    np.testing.assert_array_equal(as_file.xyxy, as_image.xyxy)
    assert by_path.names == NAMES
    assert by_path.xyxy.dtype == by_path.confidence.dtype == np.float32
    assert by_path.class_id.dtype == np.int64
    assert detector.predict([]) == []
    kinds = {
        "not ndarray .* float64": pixels.astype(float),
        "not ndarray .*, 2] uint8": pixels[..., :2],
        r"not Tensor .* torch.float32": planes.float(),
        "not int": 3,
        "bytes of an image cannot be decoded": file.read_bytes()[:300],
        "nowhere.jpg: no such image file": pictures / "nowhere.jpg",
    }
    for words, wrong in kinds.items():
        with pytest.raises(InputError, match=words):
            detector.predict([wrong])


def test_a_folder_and_a_pattern(checkpoint: Path, pictures: Path) -> None:
    """Sorted; each says of which file it is, and how many of each class it holds."""
    predictor = Predictor.load(checkpoint, device="cpu", conf=0.0005)
    found = predictor.predict(pictures)
    assert [each.path for each in found] == sorted(map(str, pictures.iterdir()))
    first = predictor.predict(str(pictures / "000[0].jpg"))
    assert [str(each) for each in first] == [str(found[0])] != ["nothing"]
    counts = [f"{n} {name}" for k, name in enumerate(NAMES) if (n := sum(found[0].class_id == k))]
    assert str(found[0]) == ", ".join(counts)
    with pytest.raises(InputError, match="nowhere: no image file there"):
        predictor.predict("nowhere")


def test_thresholds_of_its_own(
    checkpoint: Path, pictures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Per class, as if the others were not there; the command finds the same."""
    with pytest.raises(SystemExit):
        predict(checkpoint, "pictures", "--thresholds", "own")
    assert f"thresholds own: {checkpoint} holds none" in capsys.readouterr().err
    content = torch.load(checkpoint, weights_only=True)
    content["thresholds"] = own = [0.002, 0.004, 0.001, 0.9, 0.003]
    torch.save(content, "own.ckpt")
    found = Predictor.load("own.ckpt", device="cpu", thresholds="own").predict(pictures)
    every = Predictor.load("own.ckpt", device="cpu", conf=0.0005).predict(pictures)
    for some, all_of_it in zip(found, every, strict=True):
        kept = all_of_it[all_of_it.confidence > np.array(own)[all_of_it.class_id]]
        np.testing.assert_array_equal(some.xyxy, kept.xyxy)
        assert len(some) < len(all_of_it)
    run = predict(Path("own.ckpt"), "pictures", "--thresholds", "own", "--max_det", "1000")
    lines = sum(len(p.read_text().splitlines()) for p in (run / "labels").iterdir())
    assert lines == sum(map(len, found)) > 0
    assert Detector.load("own.ckpt", "cpu").evaluation.thresholds == own
    twins = {
        "hyper_parameters": {**content["hyper_parameters"], "names": ["a", "a", "b", "c", "d"]}
    }
    torch.save(content | twins, "twins.ckpt")
    assert Predictor.load("twins.ckpt", device="cpu", thresholds="own").thresholds["conf"] == own
    content["thresholds"] = own[:2]
    torch.save(content, "own.ckpt")
    with pytest.raises(InputError, match="conf has 2 numbers, but there are 5 classes"):
        Predictor.load("own.ckpt", device="cpu", thresholds="own")


def same(ours: Detections, theirs: Detections) -> None:
    np.testing.assert_array_equal(ours.xyxy, theirs.xyxy)
    np.testing.assert_array_equal(ours.confidence, theirs.confidence)
    np.testing.assert_array_equal(ours.class_id, theirs.class_id)


def test_options_of_one_call(checkpoint: Path, pictures: Path) -> None:
    """A Predictor is called like a function; the next call has its own options again."""
    file = pictures / "0000.jpg"
    predictor = Predictor.load(checkpoint, device="cpu", conf=0.0005)
    before = predictor(file)
    same(before, predictor.predict(file))
    changed = {"conf": 0.002, "iou": 0.1, "image_size": 96}
    other = Predictor.load(checkpoint, device="cpu", **changed)(file)
    same(predictor(file, **changed), other)
    same(Detector.load(checkpoint, "cpu").predict(file, **changed), other)
    same(predictor(file), before)
    assert len(other) < len(before)


def test_thresholds_by_name(checkpoint: Path, pictures: Path) -> None:
    """The other classes keep the confidence that they have."""
    file = pictures / "0000.jpg"
    some = {"star": 0.5, "disc": 0.002}
    predictor = Predictor.load(checkpoint, device="cpu", conf=0.0005)
    same(predictor(file, conf=some), predictor(file, conf=[0.002, 0.0005, 0.5, 0.0005, 0.0005]))
    of_call = predictor(file, conf={"star": 0.9})
    assert (of_call.class_id != NAMES.index("star")).all()
    assert len(of_call) > 0
    loaded = Predictor.load(checkpoint, device="cpu", conf=some)
    listed = [0.002, 0.25, 0.5, 0.25, 0.25]
    same(loaded(file), predictor(file, conf=listed))
    same(loaded(file, conf={"star": 0.1}), predictor(file, conf=[0.002, 0.25, 0.1, 0.25, 0.25]))
    same(Detector.load(checkpoint, "cpu").predict(file, conf=some), loaded(file))
    with pytest.raises(InputError, match=r"conf: .*'stra'.*'star'"):
        predictor(file, conf={"stra": 0.5})
    with pytest.raises(InputError, match="'stra'"):
        Detector.load(checkpoint, "cpu").predict(file, conf={"stra": 0.5})
    with pytest.raises(InputError, match="conf has 2 numbers"):
        predictor(file, conf=[0.1, 0.2])


def test_detections_as_files_and_tables(
    checkpoint: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    predictor = Predictor.load(checkpoint, device="cpu", conf=0.0005, max_det=5)
    found = predictor(pictures / "0000.jpg")
    pixels = cv2.imread(str(pictures / "0000.jpg"), cv2.IMREAD_COLOR_RGB)
    np.testing.assert_array_equal(found.plot(), found.plot(pixels))
    found.save("drawn.png")
    np.testing.assert_array_equal(cv2.imread("drawn.png", cv2.IMREAD_COLOR_RGB), found.plot())
    of_array = predictor(pixels)
    of_array[:0].save("plain.png", pixels[..., 0])
    plain = cv2.imread("plain.png", cv2.IMREAD_COLOR_RGB)
    np.testing.assert_array_equal(plain, np.repeat(pixels[..., :1], 3, 2))
    with pytest.raises(InputError, match="image"):
        of_array.plot()
    for nowhere in ("drawn.nothing", "nowhere/drawn.jpg"):
        with pytest.raises(InputError, match=nowhere):
            found.save(nowhere)

    objects = json.loads(found.to_json())
    np.testing.assert_allclose([each["xyxy"] for each in objects], found.xyxy, atol=1e-3)
    np.testing.assert_allclose([e["confidence"] for e in objects], found.confidence, atol=1e-5)
    assert [each["name"] for each in objects] == [NAMES[k] for k in found.class_id]
    assert [each["class_id"] for each in objects] == found.class_id.tolist()
    table = found.to_pandas()
    np.testing.assert_array_equal(table[["x1", "y1", "x2", "y2"]], found.xyxy)
    np.testing.assert_array_equal(table["confidence"], found.confidence)
    assert table["name"].tolist() == [NAMES[k] for k in found.class_id]
    assert len(found[:0].to_pandas()) == len(json.loads(found[:0].to_json())) == 0
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match="pip install --upgrade pandas"):
        found.to_pandas()


def test_a_broken_photo(
    checkpoint: Path, pictures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a folder it is left out and named, as by the command; alone, or in a list whose results
    have to stay in order, it is an error."""
    predictor = Predictor.load(checkpoint, device="cpu")
    whole = predictor.predict(pictures)
    (pictures / "0001_broken.jpg").write_bytes(b"no image")
    cut = pictures / "0002_cut.png"  # its header is good
    Image.open(pictures / "0002.jpg").save(cut)
    cut.write_bytes(cut.read_bytes()[:2000])
    capsys.readouterr()
    found = predictor.predict(pictures)
    assert [each.path for each in found] == [each.path for each in whole]
    said = capsys.readouterr().out
    assert "0001_broken.jpg" in said
    assert "0002_cut.png" in said
    for wrong in (pictures / "0001_broken.jpg", sorted(pictures.iterdir())):
        with pytest.raises(InputError, match="0001_broken"):
            predictor.predict(wrong)
    with pytest.raises(InputError, match="none of its images"):
        predictor.predict(str(pictures / "000[12]_*"))


def test_the_page(checkpoint: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code of docs/predict.md."""
    page = (Path(cli.__file__).parent / "docs/predict.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    replaced = {"runs/fit-1/checkpoints/best.ckpt": str(checkpoint), '"cat"': '"star"'}
    for old, new in replaced.items():
        assert code.count(old) == 1
        code = code.replace(old, new)
    pictures.rename("photos")
    file = Path("photos/0000.jpg").rename("a.jpg")
    array = cv2.imread(str(file), cv2.IMREAD_COLOR_RGB)
    exec(code, {"array": array, "pil_image": Image.open(file)})
    assert Path("drawn.jpg").is_file()


def test_supervision_takes_them(checkpoint: Path, pictures: Path) -> None:
    supervision = pytest.importorskip("supervision")
    found = Detector.load(checkpoint, "cpu").predict(pictures / "0000.jpg", conf=0.0005)
    by_hand = supervision.Detections(
        xyxy=found.xyxy, confidence=found.confidence, class_id=found.class_id
    )
    ours = found.to_supervision()
    np.testing.assert_array_equal(ours.xyxy, by_hand.xyxy)
    assert ours.data["class_name"].tolist() == [NAMES[i] for i in found.class_id]
    assert len(ours.with_nms(0.1)) <= len(found)


def test_weights_that_change_are_seen(checkpoint: Path, pictures: Path) -> None:
    """Trained on between two predictions: what was made ready before does not count any more."""
    detector = Detector.load(checkpoint, "cpu")
    before = detector.predict(pictures / "0000.jpg", conf=0.0005)
    with torch.no_grad():
        for parameter in detector.evaluated_network().head.parameters():
            parameter.mul_(1.5)
    after = detector.predict(pictures / "0000.jpg", conf=0.0005)
    assert len(before) != len(after) or not np.array_equal(before.confidence, after.confidence)


def test_published_weights_say_which_size_they_are() -> None:
    path = shared("weights/yolov5n.pt")
    detector = Detector.load(path, "cpu")
    assert (detector.hparams["network"]["size"], len(detector.names)) == ("n", 80)
    # COCO 000000000139: a living room
    image = shared("data/coco128_val128/images/val/000000000139.jpg")
    found = detector.predict(image)
    assert {found.names[i] for i in found.class_id} >= {"person", "tv", "chair"}
