"""Exported files, each format run by its own runtime, all behind one call; and the metadata in
them: enough to feed them images and to read their output. ONNX and OpenVINO files only compute:
nothing in them is executed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from os.path import exists, isdir
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad
from torch.nn.utils.rnn import pad_sequence

from boltbox.detector.data.images import MAX_SIDE
from boltbox.detector.inference.checksum import EMPTY, compare_checksum
from boltbox.detector.model.boxes import xyxy_to_cxcywh
from boltbox.detector.model.origin import Origin
from boltbox.detector.system.errors import InputError, in_one_line, need

ENDINGS = {"onnx": ".onnx", "openvino": "_openvino"}
INPUT, OUTPUT = "images", "output"
Run = Callable[[Tensor], Tensor]  # images of the size and batch that the file takes -> its output


# LAYOUT is raised when a file's output or these fields change their meaning
PROGRAM, LAYOUT = "boltbox", 1
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
    """names: class names · stride: of height and width, in pixels · image_size: (height, width) in
    pixels; of a dynamic file that of the training · batch: images a call, unless dynamic ·
    dynamic: any batch, any height and width that are multiples of the stride · nms: None, or the
    suppression inside · precision: of the weights · strides: of the levels that the rows are
    ordered by, none if they are not · origins: source and licence of what its weights started from
    · thresholds: of each class the confidence of the best F1 in its training's validation."""

    names: list[str]
    stride: int
    image_size: tuple[int, int]
    batch: int
    dynamic: bool
    nms: Suppression | None
    precision: Precision
    strides: list[int]
    origins: list[Origin] = field(default_factory=list)
    thresholds: list[float] | None = None

    def to_strings(self) -> dict[str, str]:
        """Keys and values as they stand in the file; each value is JSON, or a plain word."""
        values = vars(self) | {"layout": LAYOUT, "box": "xyxy" if self.nms else "cxcywh"}
        values["nms"] = self.nms and self.nms._asdict()
        values["origins"] = [origin._asdict() for origin in self.origins]
        strings = {key: json.dumps(value) for key, value in values.items()}
        return {"program": PROGRAM, "task": "detect", **strings, "checksum": EMPTY}

    @classmethod
    def from_strings(cls, strings: Mapping[str, str]) -> Metadata:
        """The opposite of `to_strings`.

        Raises:
            ValueError, TypeError, KeyError, AttributeError: the file is not of this program and
                version, or damaged.
        """
        if strings.get("program") != PROGRAM or json.loads(strings["layout"]) != LAYOUT:
            raise ValueError("not written by this version of `export`")
        values = {key: json.loads(strings[key]) for key in cls.__dataclass_fields__}
        height, width = values["image_size"]
        values["image_size"] = height, width
        values["nms"] = values["nms"] and Suppression(**values["nms"])
        values["origins"] = [Origin(**entry) for entry in values["origins"]]
        metadata = cls(**values)
        sizes = metadata.batch, metadata.stride, height, width, len(metadata.names)
        if min(*sizes, *metadata.strides) < 1:
            raise ValueError("a size below 1")
        if max(height, width) > MAX_SIDE:
            raise ValueError(f"image_size {height}x{width} is more than {MAX_SIDE}")
        return metadata


@dataclass(frozen=True)
class Exported:
    """An exported file, ready to predict in a network's place.

    path: the file or folder · metadata: what it says of itself · run: float32 (B, 3, H, W) in 0..1
    of exactly the size and batch that the file takes -> its output, (B, R, 5 + C) or with
    suppression inside (n, 7).
    """

    path: Path
    metadata: Metadata
    run: Run

    @property
    def names(self) -> list[str]:
        return self.metadata.names

    @property
    def image_size(self) -> int:
        """Longer side of the input in pixels."""
        return max(self.metadata.image_size)

    @property
    def max_stride(self) -> int:
        return self.metadata.stride

    @property
    def thresholds(self) -> list[float] | None:
        return self.metadata.thresholds

    def arguments(self) -> dict[str, Any]:
        """Arguments of a Detector for its classes, whose network is none of the file's."""
        return {"names": self.names}

    def takes(self) -> str:
        height, width = self.metadata.image_size
        return f"{self.path} takes images of {height}x{width} px"

    def rows_per_level(self, height: int, width: int) -> list[int]:
        """As `Head.rows_per_level` of a head with a box a cell: the shares of the levels."""
        return [(height // stride) * (width // stride) for stride in self.metadata.strides]

    def __call__(self, images: Tensor) -> Tensor:
        """float (B, 3, H, W) in 0..1 on any device -> (B, R, 5 + C) as `decode` gives it.

        What a file with suppression inside found is given as rows that a second, equal suppression
        leaves as they are: the objectness is its score, and its class has 1. Rows of zeros fill up
        to the image with the most.
        """
        takes, (height, width) = self.metadata, images.shape[2:]
        if not takes.dynamic and (height, width) != takes.image_size:
            raise InputError(f"{self.takes()}, not {height}x{width}")
        parts = images.detach().float().cpu().split(len(images) if takes.dynamic else takes.batch)
        rows = [of_image for part in parts for of_image in self._rows(part)]
        return pad_sequence(rows, batch_first=True).to(images.device)

    def _rows(self, images: Tensor) -> Iterable[Tensor]:
        """Of each of the images, at most as many as the file takes at once: (R, 5 + C)."""
        b = len(images)
        output = self._output(images)
        if not self.metadata.nms:
            return output[:b]
        image, boxes, scores, classes = output.split((1, 4, 1, 1), 1)
        of_class = one_hot(classes.long().squeeze(1), len(self.names))
        rows = torch.cat((xyxy_to_cxcywh(boxes), scores, of_class), 1)
        return [rows[image[:, 0] == i] for i in range(b)]

    def _output(self, images: Tensor) -> Tensor:
        """The output of the runtime, as the metadata describe it."""
        takes, b, classes = self.metadata, len(images), len(self.names)
        try:
            if not takes.dynamic:  # grey ones up to the number that the file takes
                images = pad(images, (*(0,) * 7, takes.batch - b), value=0.5)
            output = self.run(images.contiguous())
        except Exception as e:  # each runtime has exceptions of its own
            raise InputError(f"{self.path}: its runtime fails ({in_one_line(e)[-200:]})") from e
        shape = [*output.shape]
        wanted = [*shape[:1], 7] if takes.nms else [len(images), *shape[1:2], 5 + classes]
        if shape != wanted:
            raise InputError(
                f"{self.path}: its output, of shape {shape}, is not that of {classes} classes;"
                " export it again"
            )
        if not output.isfinite().all():
            raise InputError(
                f"{self.path}: its output is not finite; export float32, or another file"
            )
        if takes.nms and not output[:, 6].clamp(0, classes - 1).equal(output[:, 6]):
            raise InputError(
                f"{self.path}: its output has other classes than the {classes} of its metadata;"
                " export it again"
            )
        return output


def shape_for(members: Iterable[object], image_size: int) -> tuple[int, int] | None:
    """(height, width) in pixels of the only images that all of them take; None: any multiples of
    the stride.

    Raises:
        InputError: an exported file among them takes no images of this size.
    """
    fixed = None
    for member in members:
        if isinstance(member, Exported) and not member.metadata.dynamic:
            if image_size != member.image_size:
                raise InputError(f"{member.takes()}, not of {image_size} px")
            fixed = member.metadata.image_size
    return fixed


def format_of(path: str | Path) -> str | None:
    """Which format a path means by its name; None: no exported file."""
    path = Path(path)
    if path.suffix == ".xml" or (isdir(path) and (path / "model.xml").is_file()):
        return "openvino"
    return next((kind for kind, ending in ENDINGS.items() if path.name.endswith(ending)), None)


def files_of(path: Path) -> list[Path]:
    """The files of an export, the one with the metadata first."""
    return [path / "model.xml", path / "model.bin"] if path.suffix != ".onnx" else [path]


def load_exported(path: str | Path) -> Exported:
    """Read an exported file, ready to run on the CPU with as many threads as torch has.

    Raises:
        InputError: no such file, damaged, of another program, or its runtime is not installed.
    """
    kind, path = format_of(path), Path(path)
    path = path.parent if path.suffix == ".xml" else path
    if kind is None or not exists(path):
        raise InputError(
            f"{path}: no such exported file; give one of {', '.join(ENDINGS.values())}"
        )
    runtime = need("onnxruntime" if kind == "onnx" else "openvino")
    try:
        strings, shape, run = (_onnx if kind == "onnx" else _openvino)(runtime, path)
        metadata = Metadata.from_strings(strings)
        fixed = [metadata.batch, 3, *metadata.image_size]
        if not metadata.dynamic and shape != fixed:
            raise ValueError(f"its input has the shape {shape}, in the metadata {fixed}")
        return Exported(path, metadata, run)
    except Exception as e:  # each runtime has exceptions of its own
        raise InputError(
            f"{path}: not an intact file of `export` ({in_one_line(e)[-200:]}); export it again"
        ) from e


def _onnx(runtime: Any, path: Path) -> tuple[dict[str, str], list[Any], Run]:
    """Metadata, shape of the input, and the call."""
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 4  # its errors are raised too
    content = compare_checksum(files_of(path))
    session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    strings = session.get_modelmeta().custom_metadata_map
    shape = session.get_inputs()[0].shape

    def run(images: Tensor) -> Tensor:
        return torch.from_numpy(session.run(None, {INPUT: images.numpy()})[0])

    return strings, shape, run


def _openvino(runtime: Any, path: Path) -> tuple[dict[str, str], list[Any], Run]:
    """The same."""
    core, files = runtime.Core(), files_of(path)
    compare_checksum(files)
    model = core.read_model(files[0])
    info = model.get_rt_info("boltbox").astype(dict)
    # float32 even where the processor computes in bfloat16: its 8 bits are too few for confidences
    options = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": torch.get_num_threads()}
    compiled = core.compile_model(model, "CPU", options)
    strings = {key: value.astype(str) for key, value in info.items()}
    sides = model.input().get_partial_shape()
    shape = [side.get_length() if side.is_static else None for side in sides]

    def run(images: Tensor) -> Tensor:
        request = compiled.create_infer_request()  # one a call: threads may share the file
        return torch.from_numpy(request.infer([images.numpy()])[0].copy())

    return strings, shape, run
