"""Exported files behind one call, and their metadata. `formats` writes and reads them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from mmap import ACCESS_COPY, mmap
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad
from torch.nn.utils.rnn import pad_sequence

from boltbox.detector.data.inputs.tiles import Tiles, tiles_of
from boltbox.detector.model.boxes import xyxy_to_cxcywh
from boltbox.detector.model.network import Origin
from boltbox.detector.system.errors import InputError, in_one_line

INPUT = "images"
OUTPUT = "output"
METADATA = "metadata.json"  # in a folder whose runtime keeps none
Run = Callable[[Tensor], Tensor]  # images of the file's size and batch -> its output
PROGRAM = "boltbox"
PLAIN = ("program", "task", "checksum")  # strings that are no JSON where all values are strings
# SHA-256 of all bytes of the files, in which the 64 digits of the checksum itself are zeros
NO_CHECKSUM = "sha256:" + "0" * 64  # until `write_checksum` computes it
CHECKSUM = re.compile(rb"sha256:[0-9a-f]{64}")
PIECE = 2**20  # bytes of a file that are read at a time
LAYOUT = 1  # changes with the meaning of a file's output or of the metadata
Precision = Literal["float32", "float16", "int8"]


class Suppression(NamedTuple):
    """Non-maximum suppression within a file: see `boltbox.detector.model.postprocess.nms`; each box
    has its best class only."""

    conf: float
    iou: float
    max_det: int
    agnostic: bool


@dataclass(frozen=True)
class Metadata:
    """What an exported file says of itself.

    Attributes:
        names: Class names.
        stride: Height and width are multiples of it, in pixels.
        image_size: (height, width) in pixels; of a dynamic file that of the training.
        batch: Images per call, unless dynamic.
        dynamic: Any batch, any height and width that are multiples of the stride.
        nms: The suppression inside, if there is one.
        precision: Of the weights.
        origins: Source and licence of the weights that its training started from.
        thresholds: Confidence of the best F1 per class in its training's validation.
        tiles: That it was trained on.
    """

    names: list[str]
    stride: int
    image_size: tuple[int, int]
    batch: int
    dynamic: bool
    nms: Suppression | None
    precision: Precision
    origins: list[Origin] = field(default_factory=list)
    thresholds: list[float] | None = None
    tiles: Tiles | None = None

    def to_values(self) -> dict[str, Any]:
        """Keys and values in the file, as JSON has them."""
        values = dict(vars(self))
        if self.nms:
            values["nms"] = self.nms._asdict()
        values["origins"] = [origin._asdict() for origin in self.origins]
        values["layout"] = LAYOUT
        values["box"] = "xyxy" if self.nms else "cxcywh"
        return values | {"program": PROGRAM, "task": "detect", "checksum": NO_CHECKSUM}

    def to_strings(self) -> dict[str, str]:
        """The same for a file that holds strings only: JSON, or a plain word."""
        strings = {}
        for key, value in self.to_values().items():
            strings[key] = value if key in PLAIN else json.dumps(value)
        return strings

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Metadata:
        """The opposite of `to_values`.

        Raises:
            ValueError, TypeError, KeyError, AttributeError: The file is not of this program and
                version, or damaged.
        """
        if values.get("program") != PROGRAM or values["layout"] != LAYOUT:
            raise ValueError("not written by this version of `export`")
        values = {"tiles": None} | dict(values)  # those of older files
        fields = {key: values[key] for key in cls.__dataclass_fields__}
        fields["tiles"] = tiles_of(fields["tiles"]) if fields["tiles"] else None
        height, width = fields["image_size"]
        fields["image_size"] = (height, width)
        if fields["nms"]:
            fields["nms"] = Suppression(**fields["nms"])
        fields["origins"] = [Origin(**entry) for entry in fields["origins"]]
        return cls(**fields)

    @classmethod
    def from_strings(cls, strings: Mapping[str, str]) -> Metadata:
        """The opposite of `to_strings`; raises as `from_values` does."""
        values = {}
        for key, value in strings.items():
            values[key] = value if key in PLAIN else json.loads(value)
        return cls.from_values(values)


class Exported:
    """An exported file, ready to predict instead of a network.

    Args:
        path: The file or folder.
        metadata: What it says of itself.
        run: float32 (B, 3, H, W) in 0..1, of exactly the file's size and batch -> its output,
            (B, R, 5 + C), or (n, 7) with suppression inside.

    Attributes:
        image_size: Longer side of the input in pixels.
    """

    def __init__(self, path: Path, metadata: Metadata, run: Run) -> None:
        self.path = path
        self.metadata = metadata
        self.run = run
        self.names = metadata.names
        self.image_size = max(metadata.image_size)
        self.max_stride = metadata.stride
        self.thresholds = metadata.thresholds
        self.tiles = metadata.tiles

    def arguments(self) -> dict[str, Any]:
        """Arguments of a Detector for its classes; its network has nothing of the file's."""
        return {"names": self.names}

    def __call__(self, images: Tensor) -> Tensor:
        """Predict as `network.head.decode(network(images))` does.

        The detections of a file with suppression inside become rows that a second, equal
        suppression does not change: the objectness is the score, and the class has 1. Rows of zeros
        fill up to the image with the most.

        Args:
            images: float (B, 3, H, W) in 0..1 on any device.

        Returns:
            (B, R, 5 + C).

        Raises:
            InputError: The runtime fails, as for images of another size, or the output does not fit
                the metadata.
        """
        batch = len(images) if self.metadata.dynamic else self.metadata.batch
        rows: list[Tensor] = []
        for part in images.detach().float().cpu().split(batch):
            rows += self._rows(part)
        return pad_sequence(rows, batch_first=True).to(images.device)

    def _rows(self, images: Tensor) -> list[Tensor]:
        """(R, 5 + C) of each image of at most one batch of the file."""
        output = self._output(images)
        if not self.metadata.nms:
            return list(output[: len(images)])
        image, boxes, scores, classes = output.split((1, 4, 1, 1), 1)
        of_class = one_hot(classes.long().squeeze(1), len(self.names))
        rows = torch.cat((xyxy_to_cxcywh(boxes), scores, of_class), 1)
        return [rows[image[:, 0] == i] for i in range(len(images))]

    def _output(self, images: Tensor) -> Tensor:
        """The output of the runtime, checked against the metadata."""
        metadata = self.metadata
        if not metadata.dynamic:  # grey images fill the batch
            images = pad(images, (0, 0, 0, 0, 0, 0, 0, metadata.batch - len(images)), value=0.5)
        try:
            output = self.run(images.contiguous())
        except Exception as e:  # each runtime has its own exceptions
            raise InputError(f"{self.path}: its runtime fails ({in_one_line(e)[-200:]})") from e
        classes = len(self.names)
        if metadata.nms:
            fits = output.ndim == 2 and output.shape[1] == 7
            fits = fits and output[:, 6].clamp(0, classes - 1).equal(output[:, 6])
        else:
            fits = output.ndim == 3 and output.shape[::2] == (len(images), 5 + classes)
        if not fits:
            raise InputError(
                f"{self.path}: its output, of shape {list(output.shape)}, is not that of {classes}"
                " classes. Export it again"
            )
        if not output.isfinite().all():
            raise InputError(
                f"{self.path}: its output is not finite. Export float32, or another file"
            )
        return output


def files_of(path: Path) -> list[Path]:
    """The files of an export, the one with the checksum first."""
    if not path.is_dir():
        return [path]
    files: list[Path] = []
    for pattern in (METADATA, "index.html", "page/[!.]*", "model.*", "model.*/**/*"):
        # model.xml, with a checksum inside, before model.bin
        files += sorted(filter(Path.is_file, path.glob(pattern)), reverse=True)
    return files


def write_checksum(path: Path) -> None:
    """Fill in the checksum of an export, which holds NO_CHECKSUM, or an earlier one."""
    place, _, right = _read_checksum(path)
    with open(files_of(path)[0], "r+b") as file:
        file.seek(place)
        file.write(right)


def compare_checksum(path: Path) -> None:
    """Compare an export with the checksum that it holds.

    Raises:
        OSError, ValueError: The files differ from their checksum, or hold none.
    """
    _, held, right = _read_checksum(path)
    if held != right:
        raise ValueError("it differs from its checksum")


def _read_checksum(path: Path) -> tuple[int, bytes, bytes]:
    """Where the first file holds the checksum, the checksum that it holds, that of all files.
    The first one is mapped, the others are read in pieces: an export may have gigabytes."""
    files = files_of(path)
    if not files:
        raise ValueError("it holds no checksum")
    with open(files[0], "rb") as first, mmap(first.fileno(), 0, access=ACCESS_COPY) as content:
        found = CHECKSUM.findall(content)
        if len(found) != 1:
            raise ValueError("it holds no checksum")
        place = content.find(found[0])
        content[place : place + len(NO_CHECKSUM)] = NO_CHECKSUM.encode()  # not in the file
        sha = hashlib.sha256(content)
    for other in files[1:]:
        with open(other, "rb") as file:
            while piece := file.read(PIECE):
                sha.update(piece)
    return place, found[0], f"sha256:{sha.hexdigest()}".encode()
