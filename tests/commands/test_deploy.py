"""The code of docs/deploy.md, as it stands there, gives what boltbox gives."""

import importlib
import re
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from fastapi.testclient import TestClient
from made_predictions import checkpoint_file  # noqa: F401 - a fixture

import cli
from boltbox.detector.data.demo import draw_image
from boltbox.detector.inference.predictor import Predictor

PAGE = (Path(cli.__file__).parent / "docs/deploy.md").read_text()


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    cv2.imwrite(str(tmp_path / "photo.png"), draw_image(np.random.default_rng(0))[0])
    return tmp_path / "photo.png"


@pytest.fixture
def page(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the page's files, and a network that finds much as detector.onnx and
    plain.onnx."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    detector, suppress, server = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    Path("onnx_detector.py").write_text(f"{detector}\n\n{suppress}")
    Path("server.py").write_text(server)
    content = torch.load(checkpoint, weights_only=True)
    for name, tensor in content["state_dict"].items():
        if re.search(r"head\.convs.*bias", name):
            tensor.zero_()
    torch.save(content, "loud.ckpt")
    export = ["export", "--ckpt_path", "loud.ckpt", "--image_size", "128"]
    cli.main([*export, "--nms", "true", "--out", "detector.onnx"])
    cli.main([*export, "--out", "plain.onnx"])
    return tmp_path


def test_the_page(page: Path, photo: Path) -> None:
    module = importlib.import_module("onnx_detector")
    detector, image = module.OnnxDetector("detector.onnx"), cv2.imread(str(photo))
    rows = detector(image)
    found = Predictor.load("plain.onnx", conf=0.25, iou=0.45).predict(photo)
    assert len(found) > 0
    assert rows[:, 5].astype(int).tolist() == found.class_id.tolist()
    np.testing.assert_allclose(rows[:, 4], found.confidence, atol=0.02)
    np.testing.assert_allclose(rows[:, :4], found.xyxy, atol=2)

    # a file without suppression, and the page's own
    plain = module.OnnxDetector("plain.onnx")
    (height, width), shape = (plain.height, plain.width), image.shape[:2]
    assert (height, width) == (128, 128)
    images = np.full((1, 3, height, width), 114 / 255, np.float32)
    gain = min(height / shape[0], width / shape[1])
    h, w = round(shape[0] * gain), round(shape[1] * gain)
    top, left = (height - h) // 2, (width - w) // 2
    small = cv2.resize(image, (w, h), interpolation=cv2.INTER_AREA)[..., ::-1] / np.float32(255)
    images[0, :, top : top + h, left : left + w] = small.transpose(2, 0, 1)
    ours = module.suppress(plain.session.run(None, {"images": images})[0][0])
    inside = detector.session.run(None, {"images": images})[0][:, 1:]
    np.testing.assert_allclose(ours, inside, atol=1e-3)

    client = TestClient(importlib.import_module("server").app)
    answer = client.post("/detect", content=photo.read_bytes()).json()
    assert [entry["name"] for entry in answer] == [detector.names[int(row[5])] for row in rows]
    np.testing.assert_allclose([entry["box"] for entry in answer], rows[:, :4], atol=1e-3)
    assert client.post("/detect", content=b"no image").status_code == 400
