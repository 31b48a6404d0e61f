"""Frames of a video file, a stream or a camera, through OpenCV and the FFmpeg within it."""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import count, groupby, islice
from queue import Empty, Queue
from threading import Event, Thread

import cv2
import numpy as np

from boltbox.detector.data.inputs.evaluation_input import EvaluationInput, unlabelled
from boltbox.detector.data.sample import Batch, Picture
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.rank_zero import rank_zero_print

USUAL_FPS = 30.0  # where a stream does not say

# FFmpeg and OpenCV print a warning for every irregularity of a file; errors are raised here. -8 is
# FFmpeg's level for silence.
os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")
cv2.utils.logging.setLogLevel(0)


def without_password(address: str) -> str:
    """An address as it may be shown and written.

    >>> without_password("rtsp://me:secret@camera.local:554/live")
    'rtsp://camera.local:554/live'
    >>> without_password("rtsp://cam/user=me&password=secret&channel=1")
    'rtsp://cam/user=me&channel=1'
    """
    return re.sub(r"(?<=://)[^/]*@|(?i:pass|password|passwd|pwd)=[^&]*&?", "", address)


class Video:
    """A video or stream that has been opened.

    Args:
        source: file, address, or number of a camera.
        step: every step-th frame is given, from the first on.
        newest: of a live stream: the newest frame each time, those in between are left out.

    Attributes:
        fps: frames/s, those left out by `step` not counted. frames: how many its header promises;
            0: it does not say.

    Raises:
        InputError: it cannot be opened.
    """

    def __init__(self, source: str, step: int = 1, newest: bool = False) -> None:
        self.source, self.step = without_password(source), step
        self._capture = cv2.VideoCapture(int(source) if source.isdecimal() else source)
        if not self._capture.isOpened():
            raise InputError(
                f"source {self.source}: not a video, stream or camera that can be opened (empty,"
                " damaged, cut short, in use, out of reach, or a codec is missing)"
            )
        fps = self._capture.get(cv2.CAP_PROP_FPS)
        self.frames = max(int(self._capture.get(cv2.CAP_PROP_FRAME_COUNT)), 0)
        self.newest = newest and not self.frames  # an address may be that of a file, which can wait
        self.fps = (fps if 0 < fps <= 1000 else USUAL_FPS) / (1 if self.newest else step)

    def __iter__(self) -> Iterator[tuple[int, np.ndarray]]:
        """(number from 0, (H, W, 3) uint8 RGB) of each frame; the file is closed afterwards.

        Raises:
            InputError: there is no frame at all.
        """
        number = -1
        try:
            for number, frame in _newest(self._capture) if self.newest else self._all():
                yield number, cv2.cvtColor(frame, cv2.COLOR_BGR2RGB)
        finally:
            self._capture.release()
        if number < 0:
            raise InputError(
                f"source {self.source}: no frame could be decoded (damaged, or a codec is missing)"
            )
        # Headers of some formats only estimate the number of frames.
        if self.frames > number + self.step + 2:
            rank_zero_print(
                f"warning: {self.source} ends after {number + 1} frames, but its header promises"
                f" {self.frames}: it is cut short or damaged; what came before is kept"
            )

    def _all(self) -> Iterator[tuple[int, np.ndarray]]:
        for number in count():
            if not self._capture.grab():
                return
            if number % self.step == 0:
                decoded, frame = self._capture.retrieve()
                if decoded:
                    yield number, frame


def _newest(capture: cv2.VideoCapture) -> Iterator[tuple[int, np.ndarray]]:
    """A thread takes every frame as it comes; who asks gets the last one."""
    latest, left = Queue[tuple[int, np.ndarray] | None](1), Event()

    def take() -> None:
        for number in count():
            decoded, frame = capture.read()
            if decoded:  # instead of one that nobody has asked for
                with suppress(Empty):
                    latest.get_nowait()
            latest.put((number, frame) if decoded else None)
            if left.is_set() or not decoded:
                return

    thread = Thread(target=take, daemon=True)
    thread.start()
    try:
        yield from iter(latest.get, None)
    finally:
        left.set()
        with suppress(Empty):
            latest.get_nowait()
        thread.join(timeout=5)


def frame_batches(
    source: str, name: str, inputs: EvaluationInput, most: int, step: int, live: bool
) -> Iterator[Batch]:
    """The frames of a video or stream in batches, each with its pictures.

    Args:
        name: what its output is called.
        most: frames a batch; tiles of a frame are one.
        step: every N frames. live: the newest frame each time, one a batch.
    """
    video = Video(source, step, live)
    for _, frames in groupby(video, lambda frame: frame[1].shape):
        while chunk := list(islice(frames, 1 if live or inputs.tile else most)):
            batch = inputs.batch([unlabelled(pixels, i) for i, (_, pixels) in enumerate(chunk)])
            about = video.fps, -(-video.frames // step)
            pictures = [Picture(name, video.source, *frame, *about) for frame in chunk]
            yield batch._replace(pictures=pictures)
