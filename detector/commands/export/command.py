"""`python cli.py export`: a trained network as a file for other runtimes."""

import os
import shutil
import tempfile
from pathlib import Path

from torch import nn

from boltbox.detector.commands.export.check import MOST, TOLERANCES, check_images, compare
from boltbox.detector.commands.export.formats import (
    ENDINGS,
    FORMATS,
    Format,
    need,
    write_exported_program,
    write_onnx,
    write_openvino,
)
from boltbox.detector.commands.export.graph import Decoded, Suppressed
from boltbox.detector.commands.export.int8 import (
    calibration_files,
    write_int8_onnx,
    write_int8_openvino,
)
from boltbox.detector.commands.export.metadata import (
    MODEL_OPTIONS,
    Metadata,
    Precision,
    Suppression,
)
from boltbox.detector.commands.export.runtime import load_exported
from boltbox.detector.commands.export.source import find_source
from boltbox.detector.data.images import read_image
from boltbox.detector.data.transforms.letterbox import round_up
from boltbox.detector.system import trusted
from boltbox.detector.system.atomic_file import write_atomically
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.rank_zero import rank_zero_print
from boltbox.detector.weights.origins import to_plain

NEEDED = {
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
    "openvino": ("openvino", "onnx", "onnxscript"),
}
MOST_CALIBRATION = 300  # images that int8 ranges are measured on


def export(
    ckpt_path: str = "best",
    format: Format = "onnx",
    out: str | None = None,
    image_size: int | str | None = None,
    batch: int = 1,
    dynamic: bool = False,
    nms: bool = False,
    conf: float = 0.25,
    iou: float = 0.45,
    max_det: int = 300,
    agnostic: bool = False,
    half: bool = False,
    int8: bool = False,
    data: str | None = None,
    opset: int | None = None,
    source: str | None = None,
    run: str | None = None,
    trust_parts: bool = False,
) -> None:
    """Write a trained network as a file for other runtimes, and compare what it says with PyTorch.

    Batch norms are folded into convolutions and boxes are decoded in the file. Afterwards
    `validate` and `predict` take it as --ckpt_path. An earlier export of the same name is replaced,
    nothing else is.

    Args:
        ckpt_path: last, best, a checkpoint, or YOLOv5's published weights (.pt).
        format: onnx, openvino or exported-program.
        out: File to write (openvino: folder); default: beside the checkpoint.
        image_size: Pixels, or HEIGHT,WIDTH; default: that of the training. Of a dynamic file only
            what int8 and the check use.
        batch: Images a call.
        dynamic: Any batch, any height and width that are multiples of the stride.
        nms: Suppress overlapping boxes in the file.
        conf: With nms: least confidence of a detection.
        iou: With nms: overlap above which the less confident of two boxes of a class is dropped.
        max_det: With nms: most detections an image.
        agnostic: With nms: suppress across classes.
        half: Weights and maps in float16; input and output stay float32.
        int8: Weights and maps in eight bits (onnx, openvino).
        data: With int8: data set (data.yaml, VOC folder or demo) whose training images the ranges
            are measured on.
        opset: Of onnx; default: the exporter's.
        source: Image, folder or glob pattern to compare with PyTorch on; default: the demo data
            set, or that of int8.
        run: Run folder of `last` and `best`; default: the most recent fit.
        trust_parts: Import a head of somebody else's that the checkpoint names, whatever it is;
            else only boltbox's.

    Raises:
        InputError: what is asked for does not go together, a package is missing, or the file says
            something else than PyTorch.
    """
    trusted.trust_parts(trust_parts)
    _check_options(format, half, int8, batch, opset)
    need(*NEEDED.get(format, ()), *(["nncf"] if int8 and format == "openvino" else []))
    files = calibration_files(data, MOST_CALIBRATION) if int8 else []
    trained = find_source(ckpt_path, run)
    stride = max(trained.network.max_stride, 32)
    suppression = Suppression(conf, iou, max_det, agnostic) if nms else None
    _check_suppression(suppression)
    precision: Precision = "int8" if int8 else "float16" if half else "float32"
    shape = _shape(image_size or trained.image_size, stride)
    options = {key: value for key, value in trained.options.items() if key in MODEL_OPTIONS}
    origins = to_plain(trained.origins)
    metadata = Metadata(
        trained.names, stride, shape, batch, dynamic, suppression, precision, options, origins
    )
    target = Path(out) if out else _beside(trained.path, format, precision)
    _refuse_others(target, format)

    images = [read_image(f) for f in files[:MOST]] if files and not source else check_images(source)
    decoded = Decoded(trained.network)
    in_file = Decoded(trained.network, half=True) if half and format != "openvino" else decoded
    graph = Suppressed(in_file, suppression) if suppression else in_file
    with _workshop(target) as folder:
        made = Path(folder, f"made{ENDINGS[format]}")
        _write(graph, metadata, format, made, opset, files)
        exported = load_exported(made)
        difference = compare(exported, decoded, images)
        rank_zero_print(str(difference))
        if not difference.within(TOLERANCES[precision]):
            t = TOLERANCES[precision]
            raise InputError(
                f"{target} is not written: a {precision} file may be {t.pixels:g} px, {t.score:g}"
                f" in a score and  {1 - t.share:.0%} of the detections away from PyTorch, and this"
                " one is further"
            )
        _place(made, target)
    _tell(target, format, metadata, data)


def _check_options(format: str, half: bool, int8: bool, batch: int, opset: int | None) -> None:
    if format not in FORMATS:
        raise InputError(f"format '{format}' is not known; choose from {', '.join(FORMATS)}")
    if half and int8:
        raise InputError("half and int8 exclude each other: give one")
    if int8 and format not in ("onnx", "openvino"):
        raise InputError(f"int8 is for onnx and openvino, whose tools can do it, not for {format}")
    if opset is not None and format not in ("onnx", "openvino"):
        raise InputError(f"opset is for onnx, not for {format}")
    if batch < 1:
        raise InputError(f"batch {batch}: give at least 1")


def _check_suppression(options: Suppression | None) -> None:
    if options and not (0 < options.conf < 1 and 0 < options.iou <= 1 and options.max_det >= 1):
        raise InputError(
            "with nms, conf lies between 0 and 1, iou between 0 and 1, and max_det is at least 1"
        )


def _shape(image_size: int | str, stride: int) -> tuple[int, int]:
    """(height, width) in pixels, multiples of the stride; one line says if they had to become
    so."""
    words = str(image_size).replace("x", ",").split(",")
    if len(words) > 2 or not all(word.strip().isdigit() and int(word) for word in words):
        raise InputError(f"image_size {image_size}: give pixels, or HEIGHT,WIDTH like 384,640")
    asked = [int(word) for word in words * (3 - len(words))][:2]
    height, width = (round_up(side, stride) for side in asked)
    if [height, width] != asked:
        rank_zero_print(
            f"image_size {image_size} is rounded up to {height}x{width}, multiples of the network's"
            " stride"
        )
    return height, width


def _beside(checkpoint: Path, format: str, precision: Precision) -> Path:
    mark = {"float32": "", "float16": "_half", "int8": "_int8"}[precision]
    return checkpoint.with_name(f"{checkpoint.stem}{mark}{ENDINGS[format]}")


def _refuse_others(target: Path, format: str) -> None:
    """What is there already must be an earlier export."""
    if not target.name.endswith(ENDINGS[format]):
        raise InputError(
            f"out {target}: the name must end in {ENDINGS[format]}, by which validate and predict"
            " know a file"
        )
    if not target.exists() and not target.is_symlink():
        return
    try:
        load_exported(target)
    except InputError as e:
        raise InputError(
            f"{target} is there already; remove it, or give another --out ({e})"
        ) from None


def _workshop(target: Path) -> tempfile.TemporaryDirectory[str]:
    """A folder on the same disk, so that the finished file can be moved into place."""
    target.parent.mkdir(parents=True, exist_ok=True)
    return tempfile.TemporaryDirectory(prefix=".export-", dir=target.parent)


def _write(
    graph: nn.Module,
    metadata: Metadata,
    format: str,
    path: Path,
    opset: int | None,
    files: list[str],
) -> None:
    if files:
        rank_zero_print(f"measuring ranges on {len(files)} images")
        (write_int8_onnx if format == "onnx" else write_int8_openvino)(
            graph, metadata, path, opset, files
        )
    elif format == "onnx":
        write_onnx(graph, metadata, path, opset)
    elif format == "openvino":
        write_openvino(graph, metadata, path, opset)
    else:
        write_exported_program(graph, metadata, path)


def _place(made: Path, target: Path) -> None:
    """A file takes the older one's place at once. A folder cannot: the older one goes first, and a
    kill between the two leaves none, but never half of one."""
    if made.is_file():
        with open(made, "rb") as source:
            write_atomically(target, lambda file: shutil.copyfileobj(source, file))
        return
    for path in made.iterdir():
        with open(path, "rb") as file:
            os.fsync(file.fileno())
    if target.exists():
        target.rename(made.with_name("older"))
    made.rename(target)


def _tell(target: Path, format: str, metadata: Metadata, data: str | None) -> None:
    files = [p for p in target.iterdir() if p.is_file()] if target.is_dir() else [target]
    size = sum(p.stat().st_size for p in files) / 1e6
    shape = (
        "any size"
        if metadata.dynamic
        else f"{metadata.batch}x3x{metadata.image_size[0]}x{metadata.image_size[1]}"
    )
    output = (
        "(n, 7): image, x1, y1, x2, y2, score, class"
        if metadata.nms
        else "(B, R, 5 + C): cx, cy, w, h, objectness, classes"
    )
    rank_zero_print(
        f"{target}: {format}, {metadata.precision}, {shape}, {size:.1f} MB; output {output}"
    )
    rank_zero_print(
        f"its figures: python cli.py validate --ckpt_path {target} --data.dataset {data or 'FILE'}"
    )
