"""YOLOv5's weights as an exported file: in validate, predict, the detector and server of
examples/server."""

import pickle
import re
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cv2
import numpy as np
import onnx
import pytest
import yaml
from fastapi.testclient import TestClient
from made_exports import compare, graphs, images  # noqa: F401 - a fixture
from made_runs import column, read, type_line, until
from shared import published_file, shared  # noqa: F401 - a fixture

from boltbox.detector.commands.export.check import check
from boltbox.detector.commands.export.graph import Decoded
from boltbox.detector.data.images import read_image
from boltbox.detector.inference.formats import load_exported
from boltbox.detector.inference.predictor import Predictor
from boltbox.detector.weights.trained import read_trained
from examples.server import app as server
from examples.server.onnx_detector import OnnxDetector

QUIET = "--data.workers 0 --trainer.enable_progress_bar false --report.enabled false"


@pytest.fixture(scope="module")
def photos():
    return sorted((shared("data/coco128_val128") / "images/val").iterdir())


@pytest.fixture(scope="module")
def dynamic(tmp_path_factory):
    """An ONNX file of any size, whose own is 320."""
    path = tmp_path_factory.mktemp("exported") / "dynamic.onnx"
    weights = shared("weights/yolov5n.pt")
    type_line(f"export --ckpt_path {weights} --dynamic true --image_size 320 --out {path}")
    return path


@pytest.fixture
def coco(photos, tmp_path):
    """The data.yaml of sixteen real images to train on, four of them to validate on."""
    data = shared("data/coco128_val128")
    content = read(data / "data.yaml") | {"path": str(data)}
    for name, count in {"train": 16, "val": 4}.items():
        content[name] = str(tmp_path / f"{name}.txt")
        Path(content[name]).write_text("\n".join(map(str, photos[:count])))
    (tmp_path / "coco.yaml").write_text(yaml.safe_dump(content))
    return tmp_path / "coco.yaml"


def test_validate_and_predict_take_the_file(published, dynamic, photos, coco, here):
    """On four real images, at their own shapes: the figures are PyTorch's."""
    exported = load_exported(dynamic)
    for seen in (images(3, 64, 96), images(2, 128, 128)):
        compare(exported, Decoded(read_trained(published).network), seen, 5e-3)
    metrics = []
    for given in (f"--model.start.weights {published}", f"--ckpt_path {dynamic}"):
        options = f"--data.dataset {coco} --data.image_size 256 {QUIET} --run {len(metrics)}"
        type_line(f"validate {given} {options}")
        metrics.append(read(f"{len(metrics)}/metrics.json"))
    assert metrics[0]["mAP50"] > 0.3
    for name in ("P", "R", "mAP50", "mAP50-95", "coco/AP"):
        assert metrics[1][name] == pytest.approx(metrics[0][name], abs=1e-3), name
    predictor = Predictor.load(dynamic, device="cpu")
    found = pickle.loads(pickle.dumps(predictor)).predict(photos[0], image_size=256)
    expected = Predictor.load(published, device="cpu").predict(photos[0], image_size=256)
    assert len(expected)
    np.testing.assert_allclose(found.xyxy, expected.xyxy, rtol=0, atol=1e-2)
    np.testing.assert_allclose(found.confidence, expected.confidence, rtol=0, atol=1e-4)


def test_int8_by_onnx_runtime(published, photos, coco, tmp_path):
    """On real images: a network that is trained well loses little."""
    path = tmp_path / "n.onnx"
    options = "--int8 true --dynamic true --image_size 256"
    type_line(f"export --ckpt_path {published} --data {coco} --out {path} {options}")
    graph = onnx.load(path).graph
    kinds = [initial.data_type for initial in graph.initializer if len(initial.dims) == 4]
    convolutions = [node for node in graph.node if node.op_type == "Conv"]
    assert kinds.count(onnx.TensorProto.INT8) == len(convolutions) > 30
    exported = load_exported(path)
    assert exported.metadata.precision == "int8"
    seen = [read_image(file) for file in photos[16:32]]
    difference = check(exported, Decoded(read_trained(published).network), seen)
    found, expected = map(int, re.findall(r"\d+", difference)[:2])
    assert found > 0.8 * expected > 20  # still the same network
    assert float(re.findall(r"([\d.e-]+) in a score", difference)[0]) > 0.001


def test_the_example(published, dynamic, photos, here, monkeypatch):
    photo = photos[0]
    options = "--image_size 320 --nms true --out detector.onnx"
    type_line(f"export --ckpt_path {published} {options}")
    detector = OnnxDetector("detector.onnx")
    image = cv2.imread(str(photo))
    predictor = Predictor.load("detector.onnx", conf=0.25, iou=0.45)
    rows = detector(image)
    found = predictor.predict(photo)
    assert len(found) > 0
    assert rows[:, 5].astype(int).tolist() == found.class_id.tolist()
    np.testing.assert_allclose(rows[:, 4], found.confidence, atol=0.02)
    np.testing.assert_allclose(rows[:, :4], found.xyxy, atol=2)
    odd = cv2.resize(image, (481, 640))
    boxes = predictor.predict(odd[..., ::-1].copy()).xyxy
    np.testing.assert_allclose(detector(odd)[:, :4], boxes, atol=1.01)

    plain = OnnxDetector(dynamic)  # a file without suppression, and the example's own
    assert (plain.height, plain.width) == (320, 320)
    np.testing.assert_allclose(plain(image), rows, atol=1e-2)

    with TestClient(server.app) as client:
        answer = client.post("/detect", content=photo.read_bytes()).json()
        assert column(answer, "name") == [detector.names[int(row[5])] for row in rows]
        np.testing.assert_allclose(column(answer, "box"), rows[:, :4], atol=1e-3)
        bodies = {
            b"": 400,
            b"no image": 400,
            bitmap(30_000, 30_000): 413,
            bitmap(5_000, 5_000): 400,
            bytes(server.MAX_BYTES + 1): 413,
        }
        for body, status in bodies.items():
            assert client.post("/detect", content=body).status_code == status, body[:60]
        parts = iter([bytes(server.MAX_BYTES), b"1"])  # without a Content-Length
        assert client.post("/detect", content=parts).status_code == 413
        busy(client, monkeypatch)


def busy(client, monkeypatch):
    """While images wait, the server says how it is, and refuses more than it can hold."""
    may_end = threading.Event()
    running = []

    def slow(detector, body):
        running.append(body)
        assert len(running) == server.AT_ONCE
        may_end.wait()
        running.remove(body)
        return []

    monkeypatch.setattr(server, "find", slow)
    with ThreadPoolExecutor(server.MAX_REQUESTS) as pool:
        bodies = [str(k) for k in range(server.MAX_REQUESTS)]
        answers = [pool.submit(client.post, "/detect", content=body) for body in bodies]
        until(
            lambda: client.get("/health").json()["requests"] == server.MAX_REQUESTS, "all requests"
        )
        assert client.post("/detect", content="more").status_code == 503
        may_end.set()
        assert {answer.result().status_code for answer in answers} == {200}
    assert client.get("/health").json()["requests"] == 0


def bitmap(width, height):
    """A BMP file that ends after its header of 54 bytes."""
    sizes = struct.pack("<IIiiHHIIiiII", 54, 40, width, height, 1, 24, 0, 0, 0, 0, 0, 0)
    return b"BM" + struct.pack("<IHH", 54, 0, 0) + sizes
