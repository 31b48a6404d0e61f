"""`export --format web`: in Chromium, its page finds what `predict` finds."""

import os

import cv2
import numpy as np
import pytest
import servers
from chromium import chromium
from made_runs import column, type_line
from PIL import Image
from shared import published_file, shared  # noqa: F401 - a fixture

from boltbox.detector.inference.predictor import Predictor

# It shows what the page shows, at another size.
CAMERA = """navigator.mediaDevices.getUserMedia = async () => {
  const canvas = Object.assign(document.createElement("canvas"), { width: 200, height: 120 });
  const context = canvas.getContext("2d");
  const photo = await createImageBitmap(document.getElementById("view"));
  setInterval(() => context.drawImage(photo, 0, 0, 200, 120), 20);
  return canvas.captureStream();
}; 0"""


@pytest.fixture
def photos(tmp_path):
    """One that is shrunk, on its side by EXIF, and one that is enlarged."""
    files = sorted((shared("data/coco128_val128") / "images/val").iterdir())
    with Image.open(files[2]) as photo:
        exif = photo.getexif()
        exif[0x0112] = 6
        photo.rotate(90, expand=True).save(tmp_path / "turned.jpg", exif=exif, quality=90)
    small = cv2.resize(cv2.imread(str(files[9])), (241, 187), interpolation=cv2.INTER_AREA)
    cv2.imwrite(str(tmp_path / "small.png"), small)
    return [tmp_path / "turned.jpg", tmp_path / "small.png"]


@pytest.mark.skipif(
    "ONNXRUNTIME_WEB" not in os.environ,
    reason="set ONNXRUNTIME_WEB to a folder of the npm package onnxruntime-web",
)
def test_the_page(published, photos, tmp_path):
    """Photos are dropped; then the camera runs until another is chosen. Nothing comes from
    elsewhere, nothing breaks the security policy."""
    line = f"export --ckpt_path {published} --format web --image_size 320"
    type_line(f"{line} --onnxruntime_web {os.environ['ONNXRUNTIME_WEB']} --out {tmp_path}/n_web")
    predictor = Predictor.load(published, device="cpu", conf=0.05)
    with servers.http(tmp_path) as server, chromium(tmp_path / "chromium") as browser:

        def found():
            return browser.wait("window.detections.length && window.detections")

        browser.open(f"{server.address}/n_web/")
        browser.wait("!document.querySelector('#file').disabled")
        for photo in photos:
            browser.evaluate("window.detections = []; 0")
            browser.drop("#stage", photo)
            expected = predictor.predict(photo, image_size=320)
            assert len(expected) > 5
            assert column(found(), "k") == expected.class_id.tolist()
            np.testing.assert_allclose(column(found(), "score"), expected.confidence, atol=0.01)
            np.testing.assert_allclose(column(found(), "box"), expected.xyxy, atol=1)
        shown = "[...document.querySelectorAll('#objects li')].map((entry) => entry.textContent)"
        counts = [int(text.rpartition(" ")[2]) for text in browser.evaluate(shown)]
        assert sum(counts) == (expected.confidence >= 0.25).sum()
        browser.evaluate(f"window.detections = []; {CAMERA}")
        browser.screen(390, 844, touch=True)
        assert browser.evaluate("document.documentElement.scrollWidth") == 390
        browser.click("#camera")
        assert np.max(column(found(), "box")) <= 200
        browser.choose("#file", photos[1])
        browser.wait(f"window.detections.length === {len(expected)}")
        assert browser.errors == []
