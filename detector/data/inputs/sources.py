"""What is predicted on: images of any kind, and what `source` means: image files, video files, a
stream, a camera."""

import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from os.path import exists, isdir, isfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image as PIL
from torch import Tensor

from boltbox.detector.data.images import (
    SUFFIXES,
    UNREADABLE,
    find_images,
    image_sizes,
    open_image,
    read_image,
    read_lines,
    rgb,
)
from boltbox.detector.data.inputs.evaluation_input import (
    EvaluationInput,
    collate_items,
    unlabelled,
)
from boltbox.detector.data.inputs.video import frame_batches, without_password
from boltbox.detector.data.loader import make_loader
from boltbox.detector.data.sample import Batch, Picture, Sample
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.file_names import common_folder, inside
from boltbox.detector.system.rank_zero import rank_zero_print

Image = str | Path | bytes | np.ndarray | PIL.Image | Tensor
VIDEOS = {
    ".asf",
    ".avi",
    ".gif",
    ".m4v",
    ".mkv",
    ".mov",
    ".mp4",
    ".mpeg",
    ".mpg",
    ".ts",
    ".webm",
    ".wmv",
}
_STREAM = re.compile(r"(rtsps?|rtmps?|https?|udp|tcp|srt)://", re.IGNORECASE)


class Pictures:
    """Images as the network's input; item i is the i-th, read when its turn comes: a Sample, or the
    Batch of its tiles.

    Args:
        images: see `Predictor.predict`; no folders.
        batch_size: most images a batch.
        lenient: name a file that cannot be read and leave it out (its item is None); else it is an
            error.

    Attributes:
        batches: of image numbers, of like aspect ratio.

    Raises:
        InputError: something that is no image.
    """

    def __init__(
        self,
        images: Sequence[Image],
        inputs: EvaluationInput,
        batch_size: int,
        lenient: bool = False,
    ) -> None:
        self.images, self.inputs, self.lenient = [*map(_path_or_pixels, images)], inputs, lenient
        self.shapes = np.zeros((len(images), 2), int)
        files = [image for image in self.images if isinstance(image, str | Path)]
        of_files = iter(image_sizes(files))
        sizes = [i.shape[:2] if isinstance(i, np.ndarray) else next(of_files) for i in self.images]
        usable = []
        for i, size in enumerate(sizes):
            if isinstance(size, str):
                self._leave_out(f"{self.images[i]}: {size}")
            else:
                usable.append(i)
        known = np.array([sizes[i] for i in usable]).reshape(-1, 2)
        batches, self.shapes[usable] = inputs.batches(known, batch_size)
        self.batches = [[usable[i] for i in batch] for batch in batches]

    def __getitem__(self, index: int) -> Sample | Batch | None:
        image, (height, width) = self.images[index], self.shapes[index].tolist()
        try:
            pixels = image if isinstance(image, np.ndarray) else read_image(image)
        except InputError as e:
            self._leave_out(str(e))
            return None
        return self.inputs.sample(unlabelled(pixels, index), (height, width))

    def _leave_out(self, why: str) -> None:
        if not self.lenient:
            raise InputError(why)
        rank_zero_print(f"left out: {why}")


def _path_or_pixels(image: object) -> str | Path | np.ndarray:
    """A file, or pixels (H, W, 3) uint8 RGB."""
    if isinstance(image, str | Path):
        return image
    try:
        file = open_image(BytesIO(image)) if isinstance(image, bytes) else image
        if isinstance(file, PIL.Image):
            return rgb(file)
    except UNREADABLE:
        raise InputError("predict was given bytes of an image that cannot be decoded") from None
    pixels = image
    if isinstance(image, Tensor) and image.ndim == 3:
        if image.is_floating_point() and ((image >= 0) & (image <= 1)).all():
            image = (image * 255).round().byte()
        if image.dtype == torch.uint8:
            pixels = image.permute(1, 2, 0).cpu().numpy()
    if isinstance(pixels, np.ndarray) and pixels.dtype == np.uint8 and pixels.size:
        pixels = pixels[..., None] if pixels.ndim == 2 else pixels
        if pixels.ndim == 3 and pixels.shape[2] in (1, 3):
            return np.repeat(pixels, 3 // pixels.shape[2], 2)  # in one piece, as OpenCV wants it
    raise InputError(
        "predict takes paths, bytes of image files, PIL images, RGB arrays (H, W, 3) of uint8 and"
        " RGB tensors (3, H, W) of uint8 or floats in 0..1, not"
        f" {type(image).__name__} {[*getattr(image, 'shape', [])]} {getattr(image, 'dtype', '')}"
    )


@dataclass
class Sources:
    """images, videos: files, in order; or one stream, which is an address or the number of a
    camera, in place of a video · folder: that was given, if one was."""

    images: list[str]
    videos: list[str]
    is_stream: bool = False
    folder: str = ""

    @classmethod
    def find(cls, source: str) -> "Sources":
        """
        Args:
            source: an image or a video, a folder (with its subfolders), a glob pattern, a list file
                (.txt, a path a line, from here or from the list's folder), an address (rtsp, http,
                ...), the number of a camera, or `-`: paths from the standard input, one a line.

        Raises:
            InputError: nothing is there.
        """
        if _STREAM.match(source) or (source.isdecimal() and not exists(source)):
            return cls([], [source], is_stream=True)
        if source == "-":
            lines = [line.strip() for line in sys.stdin if line.strip()]
            found = _listed(lines, Path(), "the standard input")
        elif Path(source).suffix.lower() == ".txt" and exists(source):
            found = _listed(read_lines(Path(source)), Path(source).parent, source)
        else:
            found = find_images(source, SUFFIXES | VIDEOS)
        if not found:
            raise InputError(f"source {source}: no image or video file there")
        videos = [str(path) for path in found if path.suffix.lower() in VIDEOS]
        images = [str(path) for path in found if path.suffix.lower() not in VIDEOS]
        return cls(images, videos, folder=source if isdir(source) else "")

    def any_below(self, folder: Path) -> bool:
        """Whether one of the files lies in the folder or below."""
        parents = {Path(file).parent.resolve() for file in (*self.images, *self.videos)}
        return any(folder.resolve() in (parent, *parent.parents) for parent in parents)

    def names(self) -> list[str]:
        """What the output of each image, then of each video, is called; see `output_names`."""
        if not self.is_stream:
            return output_names([*self.images, *self.videos], self.folder)
        (stream,) = self.videos
        address = without_password(stream).partition("://")[2] or f"camera{stream}"
        return [re.sub(r"\W+", "_", address).strip("_") or "stream"]

    def batches(
        self,
        inputs: EvaluationInput,
        batch_size: int,
        workers: int,
        frame_step: int = 1,
    ) -> Iterator[Batch]:
        """The image files in batches, then the frames of the videos or of the stream; each batch
        with its pictures. What cannot be used is named and left out.

        Args:
            workers: processes that read images, at most.
            frame_step: every N frames of a video; a stream gives its newest ones.

        Raises:
            InputError: the only file cannot be used.
        """
        names, several = self.names(), len(self.images) + len(self.videos) > 1
        pictures = Pictures(self.images, inputs, batch_size, lenient=several)
        workers = workers if len(pictures.batches) > 1 else 0
        loader = make_loader(pictures, pictures.batches, collate_items, workers, seed=0)
        for batch in loader if pictures.batches else ():
            if batch.indices:
                yield batch._replace(
                    pictures=[Picture(names[i], self.images[i]) for i in batch.indices]
                )
        for path, name in zip(self.videos, names[len(self.images) :], strict=True):
            try:
                yield from frame_batches(
                    path, name, pictures.inputs, batch_size, frame_step, self.is_stream
                )
            except InputError as e:
                if not several:
                    raise
                rank_zero_print(f"left out: {e}")


def _listed(lines: Sequence[str], beside: Path, where: str) -> list[Path]:
    """Files that a list names; what is not found from here is looked for from the list's folder."""
    found = []
    for number, line in enumerate(lines, 1):
        path = next((p for p in (Path(line), beside / line) if isfile(p)), None)
        if path is None:
            raise InputError(f"source: {where}, line {number}: no such file: {line}")
        found.append(path)
    return found


def output_names(files: Sequence[str], folder: str = "") -> list[str]:
    """Of each file its path below the folder, or below the common folder of all, without suffix;
    those of one name get numbers.

    >>> output_names(["a/x.jpg", "a/b/x.jpg", "a/x.png", "a/x.jpg"])
    ['x', 'b/x', 'x_2', 'x_3']
    """
    paths = [os.path.abspath(file) for file in files]
    folder, names = os.path.abspath(folder) if folder else common_folder(paths), dict[str, None]()
    for path in paths:
        name, number = str(Path(inside(path, folder)).with_suffix("")), 1
        unique = name
        while unique in names:
            number += 1
            unique = f"{name}_{number}"
        names[unique] = None
    return list(names)
