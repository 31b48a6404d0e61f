"""The server: an image in, its objects out, one image at a time.

DETECTOR=detector.onnx uvicorn examples.server.app:app
curl --data-binary @photo.jpg localhost:8000/detect
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from io import BytesIO
from typing import Annotated, Any

import cv2
import numpy as np
from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.concurrency import run_in_threadpool
from PIL import Image
from starlette.requests import ClientDisconnect

from .onnx_detector import OnnxDetector

MAX_BYTES = 20_000_000
MAX_PIXELS = 50_000_000  # 150 MB in memory
MAX_SECONDS = 30.0  # for a body to arrive
MAX_REQUESTS = 16  # that are read, wait or run; further ones are refused
AT_ONCE = 1  # that run: on a CPU, more would only share its cores


@asynccontextmanager
async def load(app: FastAPI) -> AsyncIterator[None]:
    app.state.detector = OnnxDetector(
        os.environ.get("DETECTOR", "detector.onnx"), int(os.environ.get("THREADS", "0"))
    )
    app.state.free = asyncio.Semaphore(AT_ONCE)
    app.state.requests = 0
    yield


app = FastAPI(lifespan=load)


async def admit(request: Request) -> AsyncIterator[None]:
    """Refuse a request before its body takes memory."""
    state = request.app.state
    if state.requests >= MAX_REQUESTS:
        raise HTTPException(503, "too many requests", {"Retry-After": "1"})
    state.requests += 1
    try:
        yield
    finally:
        state.requests -= 1


async def read_body(request: Request, _: Annotated[None, Depends(admit)]) -> bytes:
    body = bytearray()
    try:
        async with asyncio.timeout(MAX_SECONDS):
            async for part in request.stream():
                body += part
                if len(body) > MAX_BYTES:
                    raise HTTPException(413, f"the body has more than {MAX_BYTES} bytes")
    except (TimeoutError, ClientDisconnect):
        raise HTTPException(408, f"the body did not arrive within {MAX_SECONDS} s") from None
    return bytes(body)


def decode(body: bytes) -> np.ndarray:
    """The bytes of an image file -> (H, W, 3) uint8 BGR."""
    try:
        with Image.open(BytesIO(body)) as header:  # a small file may claim billions of pixels
            width, height = header.size
    except Image.DecompressionBombError:
        raise HTTPException(413, "the image is too large") from None
    except Exception:  # Pillow raises errors of many kinds
        raise HTTPException(400, "the body is not an image") from None
    if width * height > MAX_PIXELS:
        raise HTTPException(413, "the image is too large")
    try:
        image = cv2.imdecode(np.frombuffer(body, np.uint8), cv2.IMREAD_COLOR)
    except cv2.error:
        image = None
    if image is None:
        raise HTTPException(400, "the image cannot be decoded")
    return image


def find(detector: OnnxDetector, body: bytes) -> list[dict[str, Any]]:
    found = []
    for *box, confidence, number in detector(decode(body)).tolist():
        found.append({"box": box, "confidence": confidence, "name": detector.names[int(number)]})
    return found


@app.post("/detect")
async def detect(
    request: Request, body: Annotated[bytes, Depends(read_body)]
) -> list[dict[str, Any]]:
    """Box x1, y1, x2, y2 in pixels of the image, confidence and name of each object, best first."""
    state = request.app.state
    async with state.free:
        # in a thread, so that the server answers others meanwhile
        return await run_in_threadpool(find, state.detector, body)


@app.get("/health")
async def health(request: Request) -> dict[str, Any]:
    state = request.app.state
    return {"classes": len(state.detector.names), "requests": state.requests}
