"""The page of a review: one HTML file, in which people look at the suspects and decide."""

from __future__ import annotations

import json
from base64 import b64encode
from functools import lru_cache
from hashlib import sha256
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
    shown = sorted(review.suspects[:SHOWN], key=attrgetter("image"))
    content: dict[str, Any] = {**review.content, "kinds": KINDS, "all": len(review.suspects)}
    content["suspects"] = content["suspects"][:SHOWN]
    used = {suspect.image for suspect in shown}
    content["images"] = [e if i in used else None for i, e in enumerate(content["images"])]
    free = PAGE_BYTES - len(json.dumps(content))
    most = free * 3 / 4 / max(len(shown), 1)  # base64 writes 3 bytes as 4
    content["crops"] = {}
    for suspect in shown:  # by image, which is read once
        crop = _crop(review.images[suspect.image], suspect, min(most, CROP_BYTES))
        content["crops"][suspect.id] = crop
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
    write_atomically(path, page)


def _digest(text: str) -> str:
    """Of a script or a style, by which the page's Content-Security-Policy allows it."""
    return b64encode(sha256(text.encode()).digest()).decode()


def _crop(image: ReviewedImage, suspect: Suspect, most: float) -> dict[str, Any]:
    """The surroundings of a suspect: their box, a JPEG of about `most` bytes in base64, and why
    there is none."""
    boxes = [suspect.box]
    if suspect.suggestion:
        boxes.append(suspect.suggestion.box)
    low = np.min(boxes, 0)[:2]
    high = np.max(boxes, 0)[2:]
    half = max((high - low).max() * CROP_CONTEXT, CROP_MIN) / 2
    middle = (low + high) / 2
    around = np.append(middle - half, middle + half)
    around = clip_xyxy(around, image.labels.width, image.labels.height)
    left, top, right, bottom = box = around.round().astype(int).tolist()
    pixels, problem = _pixels(image.file)
    return {"box": box, "jpeg": _jpeg(pixels[top:bottom, left:right], most), "problem": problem}


@lru_cache(1)
def _pixels(file: str) -> tuple[np.ndarray, str]:
    """(H, W, 3) uint8 RGB of an image file; or none, and why."""
    try:
        return read_image(file), ""
    except (InputError, Unreachable) as e:
        return np.zeros((0, 0, 3), np.uint8), f"cannot be shown: {e}"


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
