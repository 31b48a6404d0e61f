"""What to predict on: images of any kind, and the files, stream or camera that `source` names.

OpenCV and its FFmpeg read videos and streams.
"""

import math
import os
import re
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from itertools import count, islice
from os.path import exists, isdir, isfile
from pathlib import Path
from queue import Empty, Queue
from threading import Event, Thread

import cv2
import numpy as np
import torch
from PIL import Image as PIL
from torch import Tensor

from boltbox.detector.data.file_list import FileList, find_images
from boltbox.detector.data.images import (
    SUFFIXES,
    UNREADABLE,
    decode,
    image_sizes,
    read_image,
    read_lines,
    rgb,
)
from boltbox.detector.data.inputs.evaluation_input import EvaluationInput, unlabelled
from boltbox.detector.data.loader import make_loader
from boltbox.detector.data.sample import Batch, Sample, SourceImage, collate
from boltbox.detector.system.addresses import is_address, to_path
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.rank_zero import common_folder, inside, rank_zero_print

Image = str | Path | bytes | np.ndarray | PIL.Image | Tensor
VIDEOS = {".3gp", ".asf", ".avi", ".flv", ".gif", ".m2ts", ".m4v", ".mkv"}
VIDEOS |= {".mov", ".mp4", ".mpeg", ".mpg", ".mts", ".ts", ".webm", ".wmv"}
_STREAM = re.compile(r"(rtsps?|rtmps?|https?|udp|tcp|srt)://", re.IGNORECASE)
DEFAULT_FPS = 30.0  # if a stream does not say
MOST = 0.9  # of what a header promises, which some formats only estimate

# FFmpeg and OpenCV would print a warning for every irregularity of a file; -8 is FFmpeg's level for
# silence. Errors are raised here.
os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")
cv2.utils.logging.setLogLevel(0)


class PredictionSamples:
    """Images as the network's input, each read when it is indexed: a Sample, or the Batch of its
    windows.

    Args:
        images: see `Predictor.predict`; no folders.
        inputs: how they become the network's input.
        batch_size: maximum images per batch.
        lenient: print the name of a file that cannot be read, and give None for it; else it is an
            error.

    Attributes:
        images: those that can be used, each with its number in `images`.
        batches: of places in that list, of similar aspect ratio.

    Raises:
        InputError: something that is no image.
    """

    def __init__(
        self,
        images: Sequence[Image],
        inputs: EvaluationInput,
        batch_size: int,
        lenient: bool,
    ) -> None:
        self.inputs = inputs
        self.lenient = lenient
        self.images = []
        sizes = []
        files = [path_or_pixels(image) for image in images]
        for number, size in enumerate(image_sizes(files)):
            if isinstance(size, str):
                self._leave_out(f"{files[number]}: {size}")
            else:
                self.images.append((number, files[number]))
                sizes.append(size)
        self.batches, self.shapes = inputs.batches(np.array(sizes).reshape(-1, 2), batch_size)

    def __getitem__(self, index: int) -> Sample | Batch | None:
        number, image = self.images[index]
        height, width = self.shapes[index].tolist()
        try:
            pixels = image if isinstance(image, np.ndarray) else read_image(image)
        except InputError as e:
            self._leave_out(str(e))
            return None
        return self.inputs.sample(unlabelled(pixels, number), (height, width))

    def read(self, workers: int = 0) -> Iterator[Batch]:
        """The batches one by one, without images that could not be read.

        Args:
            workers: maximum processes that read them; 0: this one does.
        """
        batches: Iterable[Batch]
        if workers and len(self.batches) > 1:
            ahead = self.inputs.ahead
            batches = make_loader(self, self.batches, collate, workers, ahead=ahead)
        else:  # without the milliseconds that a loader takes
            batches = (collate([self[i] for i in numbers]) for numbers in self.batches)
        for batch in batches:
            if batch.indices:
                yield batch

    def _leave_out(self, reason: str) -> None:
        if not self.lenient:
            raise InputError(reason)
        rank_zero_print(f"left out: {reason}")


def path_or_pixels(image: object) -> str | Path | np.ndarray:
    """A path as it is; of all else a copy of the pixels, (H, W, 3) uint8 RGB.

    Raises:
        InputError: It is no image.
    """
    if isinstance(image, str | Path):
        return image
    try:
        if isinstance(image, bytes):
            return decode(BytesIO(image))
        if isinstance(image, PIL.Image):
            return rgb(image)
    except UNREADABLE:
        raise InputError("predict: these bytes of an image cannot be decoded") from None
    pixels = image
    if isinstance(pixels, Tensor) and pixels.ndim == 3:
        if pixels.is_floating_point() and ((pixels >= 0) & (pixels <= 1)).all():
            pixels = (pixels * 255).round().byte()
        if pixels.dtype == torch.uint8:
            pixels = pixels.permute(1, 2, 0).cpu().numpy()
    if isinstance(pixels, np.ndarray) and pixels.dtype == np.uint8 and pixels.size:
        if pixels.ndim == 2:
            pixels = pixels[..., None]
        if pixels.ndim == 3 and pixels.shape[2] in (1, 3):
            return np.repeat(pixels, 3 // pixels.shape[2], 2)  # contiguous, for OpenCV
    shape = list(getattr(image, "shape", []))
    raise InputError(
        "predict takes paths, bytes of image files, PIL images, RGB arrays (H, W, 3) of uint8 and"
        " RGB tensors (3, H, W) of uint8 or floats in 0..1, not"
        f" {type(image).__name__} {shape} {getattr(image, 'dtype', '')}"
    )


@dataclass
class Sources:
    """The inputs of one prediction.

    Attributes:
        images: files, in order.
        videos: files, in order; or one stream: its address or the number of a camera.
        is_stream: whether `videos` is a stream.
        folder: `source`, if it is a folder.
    """

    images: list[str]
    videos: list[str]
    is_stream: bool = False
    folder: str = ""

    @classmethod
    def find(cls, source: str) -> "Sources":
        """Find the files.

        Args:
            source: an image or a video, a folder (with its subfolders), a glob pattern, a list file
                (.txt, one path per line, relative to here or to the list's folder), the address of
                a stream (rtsp, http, ...) or of images (s3, ...; docs/remote.md), or the number of
                a camera.

        Raises:
            InputError: there is no image or video.
        """
        if _STREAM.match(source) or (source.isdecimal() and not exists(source)):
            return cls([], [source], is_stream=True)
        if Path(source).suffix.lower() == ".txt" and exists(source):
            files = _listed(Path(source))
        elif is_address(source):
            files = list(map(to_path, sorted(FileList().images(source)) or [source]))
        else:
            files = find_images(source, SUFFIXES | VIDEOS)
        if not files:
            raise InputError(f"source {source}: no image or video file there")
        sources = cls([], [], folder=source if isdir(source) else "")
        for file in files:
            if file.suffix.lower() in VIDEOS:
                sources.videos.append(str(file))
            else:
                sources.images.append(str(file))
        return sources

    def any_below(self, folder: Path) -> bool:
        """Whether one of the files is in the folder or below it."""
        parents = {Path(file).parent for file in self.images + self.videos}
        return any(parent.resolve().is_relative_to(folder.resolve()) for parent in parents)

    def names(self) -> list[str]:
        """The names of the outputs of the images, then of the videos; see `output_names`."""
        if not self.is_stream:
            return output_names(self.images + self.videos, self.folder)
        (stream,) = self.videos
        address = f"camera{stream}"
        if not stream.isdecimal():
            address = without_password(stream).partition("://")[2]
        return [re.sub(r"\W+", "_", address).strip("_") or "stream"]

    def batches(
        self,
        inputs: EvaluationInput,
        batch_size: int,
        workers: int,
        frame_step: int = 1,
    ) -> Iterator[Batch]:
        """The image files in batches, then the frames of the videos or of the stream, with their
        `sources`. The names of unusable files are printed.

        Args:
            inputs: how they become the network's input.
            batch_size: maximum images per batch.
            workers: maximum processes that read images.
            frame_step: every N-th frame of a video; a stream gives its newest ones.

        Raises:
            InputError: the only file cannot be used.
        """
        names = self.names()
        several = len(names) > 1
        samples = PredictionSamples(self.images, inputs, batch_size, lenient=several)
        for batch in samples.read(workers):
            images = [SourceImage(names[i], self.images[i]) for i in batch.indices]
            yield batch._replace(sources=images)
        for path, name in zip(self.videos, names[len(self.images) :], strict=True):
            try:
                yield from frame_batches(path, name, inputs, batch_size, frame_step, self.is_stream)
            except InputError as e:
                if not several:
                    raise
                rank_zero_print(f"left out: {e}")


def _listed(source: Path) -> list[Path]:
    """The files of a list: relative to the working folder, or else to the list's folder."""
    files = []
    for number, line in enumerate(read_lines(source), 1):
        path = Path(line) if isfile(line) else source.parent / line
        if not isfile(path):
            raise InputError(f"source: no such file: {line} ({source}, line {number})")
        files.append(path)
    return files


def output_names(files: Sequence[str], folder: str = "") -> list[str]:
    """Of each file the path without suffix, relative to the folder, or else to the common folder of
    all. Equal names get numbers, and so does a video after an image that is named like its frames.

    >>> output_names(["a/x.jpg", "a/b/x.jpg", "a/x.png", "a/x.jpg"])
    ['x', 'b/x', 'x_2', 'x_3']
    >>> output_names(["film_000012.jpg", "film.mp4"])
    ['film_000012', 'film_2']
    """
    paths = [os.path.abspath(file) for file in files]
    folder = os.path.abspath(folder) if folder else common_folder(paths)
    names: dict[str, None] = {}  # in order
    named_like_frames: set[str] = set()  # names of images without the number at the end
    for path in paths:
        is_video = Path(path).suffix.lower() in VIDEOS
        name = str(Path(inside(path, folder)).with_suffix(""))
        unique = name
        number = 1
        while unique in names or (is_video and unique in named_like_frames):
            number += 1
            unique = f"{name}_{number}"
        names[unique] = None
        if not is_video:
            named_like_frames.add(re.sub("_[0-9]{6,}$", "", unique))
    return list(names)


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
        self._is_file = isfile(source)
        if self._is_file:  # of 12:30.mp4 FFmpeg would take `12` for a protocol
            source = os.path.abspath(source)
        source = source.encode(errors="replace").decode()  # OpenCV crashes on other names
        self._capture = cv2.VideoCapture(int(source) if source.isdecimal() else source)
        if not self._capture.isOpened():
            raise InputError(
                f"source {self.source}: not a video, stream or camera that can be opened (empty,"
                " damaged, cut short, in use, out of reach, or a codec is missing)"
            )
        self.frames = max(int(self._capture.get(cv2.CAP_PROP_FRAME_COUNT)), 0)
        self.newest = newest and self.frames == 0  # an address of a file has a count, and can wait
        fps = self._capture.get(cv2.CAP_PROP_FPS)
        self._rate = fps  # of the header
        self._seen = 0.0  # frames, or their time at that rate
        if not 0 < fps <= 1000:
            fps = DEFAULT_FPS
        self.fps = fps if self.newest else fps / step

    def __iter__(self) -> Iterator[tuple[int, np.ndarray]]:
        """(number from 0, (H, W, 3) uint8 RGB) of each frame; the file is closed afterwards.

        Raises:
            InputError: there is no frame at all; or a live stream ends, or a file on a server long
                before its last frame. (FFmpeg ends what has not answered for 30 s.)
        """
        frames = _newest(self._capture) if self.newest else self._all()
        first: np.ndarray | None = None
        is_still = True  # so far
        try:
            for number, frame in frames:
                if first is None:
                    first = frame
                elif is_still:
                    is_still = np.array_equal(frame, first)
                yield number, cv2.cvtColor(frame, cv2.COLOR_BGR2RGB)
        finally:
            frames.close()  # the thread of a stream reads no more
            self._capture.release()
        if first is None:
            raise InputError(
                f"source {self.source}: no frame could be decoded (damaged, or a codec is missing)"
            )
        if is_still and number > 0:  # OpenCV 5.0 is silent when FFmpeg refuses to convert
            rank_zero_print(
                f"warning: {self.source}: all its frames are the same. If it is interlaced, OpenCV"
                " cannot convert it, and gave black or stale pixels. Predict on a copy, made by"
                " ffmpeg -i VIDEO -vf yadif progressive.mp4"
            )
        is_cut = self._seen < MOST * self.frames
        if self.newest:  # a live stream, or an image on a server, which has no number of frames
            suffix = Path(self.source.partition("?")[0]).suffix.lower()
            is_cut = suffix not in SUFFIXES | {".gif"}
        if is_cut and not self._is_file:
            raise InputError(
                f"source {self.source}: it ended, or no longer answers, after frame {number}. Check"
                " the camera or the server, and start again"
            )

    def _all(self) -> Generator[tuple[int, np.ndarray]]:
        for number in count():
            if not self._capture.grab():
                return
            seconds = self._capture.get(cv2.CAP_PROP_POS_MSEC) / 1000
            self._seen = max(number + 1, seconds * self._rate)
            if number % self._step == 0:
                decoded, frame = self._capture.retrieve()
                if decoded:
                    yield number, frame


def _newest(capture: cv2.VideoCapture) -> Generator[tuple[int, np.ndarray]]:
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
    if live or inputs.tiles:
        batch_size = 1
    frames = iter(video)
    while chunk := list(islice(frames, batch_size)):
        samples = [unlabelled(pixels, i) for i, (_, pixels) in enumerate(chunk)]
        images = []
        for number, pixels in chunk:
            images.append(SourceImage(name, video.source, number, pixels, video.fps, expected))
        yield inputs.batch(samples)._replace(sources=images)
