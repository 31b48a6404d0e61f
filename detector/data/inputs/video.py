"""Frames of a video file, a stream or a camera, via OpenCV and its FFmpeg."""

import math
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import count, islice
from queue import Empty, Queue
from threading import Event, Thread

import cv2
import numpy as np

from boltbox.detector.data.inputs.evaluation_input import EvaluationInput, unlabelled
from boltbox.detector.data.sample import Batch, SourceImage
from boltbox.detector.system.errors import InputError

DEFAULT_FPS = 30.0  # if a stream does not say

# FFmpeg and OpenCV would print a warning for every irregularity of a file; -8 is FFmpeg's level for
# silence. Errors are raised here.
os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")
cv2.utils.logging.setLogLevel(0)


def without_password(address: str) -> str:
    """An address to print and to write.

    >>> without_password("rtsp://me:secret@camera.local:554/live")
    'rtsp://camera.local:554/live'
    >>> without_password("rtsp://cam/user=me&password=secret&channel=1")
    'rtsp://cam/user=me&channel=1'
    """
    return re.sub(r"(?<=://)[^/]*@|(?i:pass|password|passwd|pwd)=[^&]*&?", "", address)


class Video:
    """An open video or stream.

    Args:
        source: file, address, or number of a camera.
        step: yield every step-th frame, from the first on.
        newest: of a live stream: yield the newest frame each time, and skip those in between.

    Attributes:
        fps: frames/s, skipped ones by `step` not counted.
        frames: number of frames by the header; 0: unknown.

    Raises:
        InputError: it cannot be opened.
    """

    def __init__(self, source: str, step: int = 1, newest: bool = False) -> None:
        self.source = without_password(source)
        self._step = step
        self._capture = cv2.VideoCapture(int(source) if source.isdecimal() else source)
        if not self._capture.isOpened():
            raise InputError(
                f"source {self.source}: not a video, stream or camera that can be opened (empty,"
                " damaged, cut short, in use, out of reach, or a codec is missing)"
            )
        self.frames = max(int(self._capture.get(cv2.CAP_PROP_FRAME_COUNT)), 0)
        self.newest = newest and self.frames == 0  # an address of a file has a count, and can wait
        fps = self._capture.get(cv2.CAP_PROP_FPS)
        if not 0 < fps <= 1000:
            fps = DEFAULT_FPS
        self.fps = fps if self.newest else fps / step

    def __iter__(self) -> Iterator[tuple[int, np.ndarray]]:
        """(number from 0, (H, W, 3) uint8 RGB) of each frame; the file is closed afterwards.

        Raises:
            InputError: there is no frame at all.
        """
        frames = _newest(self._capture) if self.newest else self._all()
        number = -1
        try:
            for number, frame in frames:
                yield number, cv2.cvtColor(frame, cv2.COLOR_BGR2RGB)
        finally:
            self._capture.release()
        if number < 0:
            raise InputError(
                f"source {self.source}: no frame could be decoded (damaged, or a codec is missing)"
            )

    def _all(self) -> Iterator[tuple[int, np.ndarray]]:
        for number in count():
            if not self._capture.grab():
                return
            if number % self._step == 0:
                decoded, frame = self._capture.retrieve()
                if decoded:
                    yield number, frame


def _newest(capture: cv2.VideoCapture) -> Iterator[tuple[int, np.ndarray]]:
    """A thread reads every frame when it arrives; the caller gets the newest one."""
    latest: Queue[tuple[int, np.ndarray] | None] = Queue(1)  # None: the end
    stopped = Event()

    def read() -> None:
        for number in count():
            decoded, frame = capture.read()
            if decoded:  # replace a frame that the caller did not take
                with suppress(Empty):
                    latest.get_nowait()
            latest.put((number, frame) if decoded else None)
            if stopped.is_set() or not decoded:
                return

    thread = Thread(target=read, daemon=True)
    thread.start()
    try:
        yield from iter(latest.get, None)
    finally:
        stopped.set()
        with suppress(Empty):
            latest.get_nowait()
        thread.join(timeout=5)


def frame_batches(
    source: str, name: str, inputs: EvaluationInput, batch_size: int, step: int, live: bool
) -> Iterator[Batch]:
    """The frames of a video or stream in batches with their `sources`.

    Args:
        source: file, address, or number of a camera.
        name: of its output.
        inputs: how frames become the network's input.
        batch_size: maximum frames per batch; the windows of a frame are one batch.
        step: every N-th frame.
        live: one frame per batch, the newest each time.
    """
    video = Video(source, step, live)
    expected = math.ceil(video.frames / step)
    if live or inputs.tile:
        batch_size = 1
    frames = iter(video)
    while chunk := list(islice(frames, batch_size)):
        samples = [unlabelled(pixels, i) for i, (_, pixels) in enumerate(chunk)]
        images = []
        for number, pixels in chunk:
            images.append(SourceImage(name, video.source, number, pixels, video.fps, expected))
        yield inputs.batch(samples)._replace(sources=images)
