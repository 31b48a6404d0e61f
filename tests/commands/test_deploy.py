"""The code of docs/deploy.md, as it stands there, gives what boltbox gives."""

import importlib
import inspect
import re
import struct
from pathlib import Path

import cv2
import numpy as np
import pytest
from fastapi.testclient import TestClient
from made_runs import ROOT, column, type_line
from shared import published_file, shared  # noqa: F401 - a fixture

from boltbox.detector.commands.export.images import letterboxed
from boltbox.detector.inference.predictor import Predictor

PAGE = (ROOT / "docs/deploy.md").read_text()


@pytest.fixture
def photo():
    return sorted((shared("data/coco128_val128") / "images/val").iterdir())[0]


@pytest.fixture
def page(published, tmp_path, monkeypatch):
    """A folder with the page's files, and the published weights as detector.onnx and plain.onnx."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    detector, suppress, server = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    Path("onnx_detector.py").write_text(f"{detector}\n\n{suppress}")
    Path("server.py").write_text(server)
    export = f"export --ckpt_path {published} --image_size 320"
    type_line(f"{export} --nms true --out detector.onnx")
    type_line(f"{export} --out plain.onnx")
    return tmp_path


def test_the_page(page, photo):
    module = importlib.import_module("onnx_detector")
    detector = module.OnnxDetector("detector.onnx")
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

    # a file without suppression, and the page's own
    plain = module.OnnxDetector("plain.onnx")
    assert (plain.height, plain.width) == (320, 320)
    images = letterboxed([image[..., ::-1]], (320, 320))
    ours = module.suppress(plain.session.run(None, {"images": images})[0][0])
    inside = detector.session.run(None, {"images": images})[0][:, 1:]
    np.testing.assert_allclose(ours, inside, atol=1e-3)

    server = importlib.import_module("server")
    client = TestClient(server.app)
    assert not inspect.iscoroutinefunction(server.detect)  # or it would keep the event loop
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


def bitmap(width, height):
    """A BMP file that ends after its header of 54 bytes."""
    sizes = struct.pack("<IIiiHHIIiiII", 54, 40, width, height, 1, 24, 0, 0, 0, 0, 0, 0)
    return b"BM" + struct.pack("<IHH", 54, 0, 0) + sizes
