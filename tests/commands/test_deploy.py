"""The detector and the server of examples/server give what boltbox gives."""

import struct
import threading
from concurrent.futures import ThreadPoolExecutor

import cv2
import numpy as np
from fastapi.testclient import TestClient
from made_runs import column, type_line, until
from shared import published_file, shared  # noqa: F401 - a fixture

from boltbox.detector.inference.predictor import Predictor
from examples.server import app as server
from examples.server.onnx_detector import OnnxDetector


def test_the_example(published, tmp_path, monkeypatch):
    photo = min((shared("data/coco128_val128") / "images/val").iterdir())
    monkeypatch.chdir(tmp_path)
    export = f"export --ckpt_path {published} --image_size 320"
    type_line(f"{export} --nms true --out detector.onnx")
    type_line(f"{export} --out plain.onnx")
    detector = OnnxDetector("detector.onnx")
    image = cv2.imread(str(photo))
    predictor = Predictor.load("plain.onnx", conf=0.25, iou=0.45)
    rows = detector(image)
    found = predictor.predict(photo)
    assert len(found) > 0
    assert rows[:, 5].astype(int).tolist() == found.class_id.tolist()
    np.testing.assert_allclose(rows[:, 4], found.confidence, atol=0.02)
    np.testing.assert_allclose(rows[:, :4], found.xyxy, atol=2)
    odd = cv2.resize(image, (481, 640))
    boxes = predictor.predict(odd[..., ::-1].copy()).xyxy
    np.testing.assert_allclose(detector(odd)[:, :4], boxes, atol=1.01)

    plain = OnnxDetector("plain.onnx")  # a file without suppression, and the example's own
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
