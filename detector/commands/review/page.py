"""The page of a review: one HTML file, in which people look at the suspects and decide."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from boltbox.detector.commands.review.suspect import KINDS, Review, ReviewedImage, Suspect
from boltbox.detector.data.images import read_image
from boltbox.detector.inference.detections import encode_jpeg
from boltbox.detector.model.boxes import clip_xyxy
from boltbox.detector.report.html import fill
from boltbox.detector.system.atomic_file import write_atomically
from boltbox.detector.system.errors import InputError, Unreachable

SHOWN = 2000  # suspects, the most probable ones
PAGE_BYTES = 29_000_000
CROP_BYTES = 90_000  # maximum of a picture
CROP_SIDES = (720, 512, 360, 256, 176, 112)  # maximum pixels; the first that makes it small enough
CROP_CONTEXT = 3.0  # side of a crop over the longer side of its suspect
CROP_MIN = 160  # minimum pixels of the file in a crop


def write_page(path: Path, review: Review) -> None:
    """Write the page. It holds a script, pictures and all that decisions.json needs, and loads
    nothing.

    Args:
        path: of the HTML file.
        review: of which the first SHOWN suspects are shown.
    """
    of_image = attrgetter("image")
    shown = sorted(review.suspects[:SHOWN], key=of_image)
    content: dict[str, Any] = {**review.content, "kinds": KINDS, "all": len(review.suspects)}
    content["suspects"] = content["suspects"][:SHOWN]
    used = {suspect.image for suspect in shown}
    content["images"] = [e if i in used else None for i, e in enumerate(content["images"])]
    free = PAGE_BYTES - len(json.dumps(content))
    most = free * 3 / 4 / max(len(shown), 1)  # base64 writes 3 bytes as 4
    content["crops"] = {}
    for image, suspects in groupby(shown, of_image):
        crops = _crops(review.images[image], list(suspects), min(most, CROP_BYTES))
        content["crops"].update(crops)
    here = Path(__file__)
    script = here.with_name("review.js").read_text()
    style = here.with_name("review.css").read_text()
    page = fill(
        here.with_name("review.html"),
        title="/".join(Path(review.dataset.dataset).parts[-2:]),
        suspects=shown,
        content=json.dumps(content).replace("<", "\\u003c"),  # nothing in it ends the script
        script=script,
        style=style,
        digest=_digest,
    )
    write_atomically(path, page.encode("utf-8", "backslashreplace"))  # a title may hold surrogates


def _digest(text: str) -> str:
    """Of a script or a style, by which the page's Content-Security-Policy allows it."""
    return b64encode(sha256(text.encode()).digest()).decode()


def _crops(image: ReviewedImage, suspects: Sequence[Suspect], most: float) -> dict[int, Any]:
    """The surroundings of suspects of an image: by id their box, a JPEG of about `most` bytes in
    base64, and why there is none."""
    pixels = np.zeros((0, 0, 3), np.uint8)
    problem = ""
    try:
        pixels = read_image(image.file)
    except (InputError, Unreachable) as e:
        problem = f"cannot be shown: {e}"
    crops = {}
    for suspect in suspects:
        boxes = np.array([suspect.box])
        if suspect.suggestion:
            boxes = np.array([suspect.box, suspect.suggestion.box])
        low = boxes[:, :2].min(0)
        high = boxes[:, 2:].max(0)
        half = max((high - low).max() * CROP_CONTEXT, CROP_MIN) / 2
        around = np.concatenate(((low + high) / 2 - half, (low + high) / 2 + half))
        around = clip_xyxy(around, image.width, image.height)
        left, top, right, bottom = box = around.round().astype(int).tolist()
        jpeg = _jpeg(pixels[top:bottom, left:right], most)
        crops[suspect.id] = {"box": box, "jpeg": jpeg, "problem": problem}
    return crops


def _jpeg(pixels: np.ndarray, most: float) -> str:
    """(H, W, 3) uint8 RGB as a JPEG in base64, made smaller until it has about `most` bytes."""
    jpeg = b""
    if pixels.size:
        for side in CROP_SIDES:
            scale = min(side / max(pixels.shape), 1)
            small = cv2.resize(pixels, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
            jpeg = encode_jpeg(small, 80)
            if len(jpeg) <= most:
                break
    return b64encode(jpeg).decode()
