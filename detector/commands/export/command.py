"""`python cli.py export`: a trained network as a file for other runtimes."""

import contextlib
import io
import logging
import shlex
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from boltbox.detector.checkpoint.reader import find_trained, newest_checkpoint
from boltbox.detector.commands.export.check import check
from boltbox.detector.commands.export.graph import Decoded, Suppressed
from boltbox.detector.commands.export.images import batches, training_images
from boltbox.detector.commands.yolov5_line import TABLE
from boltbox.detector.data.demo import draw_image
from boltbox.detector.data.images import read_image
from boltbox.detector.data.transforms.letterbox import round_up
from boltbox.detector.inference.exported import (
    Exported,
    Metadata,
    Precision,
    Suppression,
    compare_checksum,
    files_of,
    write_checksum,
)
from boltbox.detector.inference.format import Format
from boltbox.detector.inference.formats import FORMATS, format_of
from boltbox.detector.inference.web_format import Web
from boltbox.detector.system.atomic_file import make_folder, not_fatal, sync_files, sync_folder
from boltbox.detector.system.errors import InputError, in_one_line, nearest, need
from boltbox.detector.system.operating_system import captured_stderr
from boltbox.detector.system.ranges import ClosedUnitInterval, PositiveInt, check_arguments
from boltbox.detector.system.rank_zero import print_fact, program
from boltbox.detector.system.trusted import trusting

COMPARED = 8  # images of a dataset


def export(
    ckpt_path: str | Path | None = None,
    format: str = "onnx",
    out: str | Path | None = None,
    image_size: PositiveInt | tuple[PositiveInt, PositiveInt] | None = None,
    batch: PositiveInt = 1,
    dynamic: bool = False,
    nms: bool = False,
    conf: ClosedUnitInterval | None = None,
    iou: ClosedUnitInterval = 0.45,
    max_det: PositiveInt = 300,
    agnostic: bool = False,
    half: bool = False,
    int8: bool = False,
    data: str | None = None,
    onnxruntime_web: str | Path | None = None,
    trust_parts: bool = False,
) -> Path:
    """Write a trained network as a file for other runtimes, and compare its detections with
    PyTorch's.

    Batch norms are folded into convolutions and boxes are decoded in the file. Afterwards
    `validate` and `predict` take it as --ckpt_path. An earlier export of the same name is replaced,
    nothing else is.

    Args:
        ckpt_path: last, best (both of the most recent fit), a run folder (its best), a checkpoint,
            or YOLOv5's published weights (.pt); default: best.
        format: onnx, openvino, ncnn, litert, executorch, coreml, tensorrt, pt2 or web, a page for
            browsers (docs/export.md).
        out: File to write (all but onnx: folder); default: beside the checkpoint.
        image_size: Pixels, or [HEIGHT,WIDTH]; default: that of the training. Of a dynamic file
            only what int8 and the check use.
        batch: Images per call.
        dynamic: Any batch, any height and width that are multiples of the stride.
        nms: Suppress overlapping boxes in the file.
        conf: With nms: minimum confidence of a detection; default: 0.25, of a page 0.05, where its
            slider ends.
        iou: With nms: overlap above which the less confident of two boxes of a class is dropped.
        max_det: With nms: maximum detections per image.
        agnostic: With nms: suppress across classes.
        half: Weights and maps in float16; input and output stay float32.
        int8: Weights and maps in eight bits.
        data: Dataset (data.yaml, folder or demo) on whose training images the file is compared
            with PyTorch, and with int8 its ranges are measured; default: drawn images, no int8.
        onnxruntime_web: Folder of this npm package, whose files the page gets; default: it loads
            them from the network.
        trust_parts: Import a head that the checkpoint names, whoever wrote it; else only boltbox's.

    Returns:
        The file, or folder.

    Raises:
        InputError: what is asked for does not go together, a package is missing, or the file's
            detections are not PyTorch's.
    """
    check_arguments(export, locals())
    if format not in FORMATS:
        known = TABLE["export"].get(f"include {format}", format).removeprefix("format ")
        raise InputError(f"format {format}: {nearest(known, FORMATS)}")
    writer = FORMATS[format]()
    if onnxruntime_web:
        if not writer.is_page:
            raise InputError(f"format {format} has no page: drop onnxruntime_web")
        writer = Web(onnxruntime_web)
    if writer.is_page:
        dynamic = True
        nms = True
    if conf is None:
        conf = 0.05 if writer.is_page else 0.25
    if half and int8:
        raise InputError("half and int8 exclude each other: give one")
    precision: Precision = "float32"
    suffix = ""
    if int8:
        precision = "int8"
        suffix = "_int8"
    elif half:
        precision = "float16"
        suffix = "_half"
    if precision not in writer.precisions:
        raise InputError(
            f"format {format} has no {precision}: choose {' or '.join(writer.precisions)}"
        )
    if (dynamic or nms) and not writer.flexible:
        raise InputError(f"format {format} has one size and no suppression: drop dynamic and nms")
    if not ckpt_path:
        ckpt_path = newest_checkpoint(None)
    if format_of(ckpt_path):
        raise InputError(
            f"ckpt_path {ckpt_path}: an exported file; give the checkpoint that it was made from"
        )
    if int8 and not data:
        raise InputError(
            "int8 needs images to measure ranges on: give --data FILE, the data.yaml of the"
            " training"
        )
    files = training_images(data) if data else []
    with trusting(everything=trust_parts):
        trained = find_trained(str(ckpt_path), None)
        if trained is None:
            raise InputError("ckpt_path auto is for fit; give `last`, `best` or a file")
        network = trained.network
    print_fact("weights", trained.path)
    stride = max(network.max_stride, 32)
    metadata = Metadata(
        names=trained.names,
        stride=stride,
        image_size=_shape(image_size or trained.image_size, stride),
        batch=batch,
        dynamic=dynamic,
        nms=Suppression(conf, iou, max_det, agnostic) if nms else None,
        precision=precision,
        origins=trained.origins,
        thresholds=trained.thresholds,
        tiles=trained.tiles,
    )
    target = trained.path.with_name(f"{trained.path.stem}{suffix}{writer.ending}")
    if out:
        target = Path(out)
    _refuse_others(target, writer.ending)

    decoded = Decoded(network)
    in_file = Decoded(network, half and writer.half_in_graph)
    graph = Suppressed(in_file, metadata.nms) if metadata.nms else in_file
    images = [read_image(file) for file in files[:COMPARED]]
    if not images:
        images = [draw_image(np.random.default_rng(i))[0][..., ::-1].copy() for i in range(4)]
    make_folder(target.parent)
    # on the same disk, so that the finished file can be moved into place
    with tempfile.TemporaryDirectory(prefix=".export-", dir=target.parent) as folder:
        made = Path(folder, f"made{writer.ending}")
        with _converting(writer, target):
            for package in writer.packages:
                need(package, f"format {format}", "" if writer.apart else format)
            writer.write(graph, metadata, made, batches(files, metadata))
            write_checksum(made)
            difference = f"written; not run here: {format} needs {writer.system}"
            if writer.system in ("", sys.platform):
                difference = check(Exported(target, *writer.run(made)), decoded, images)
        print_fact("check", difference)
        if int8 and max(metadata.image_size) < 640:
            print_fact("int8", "small images lose more, of openvino less: see docs/export.md")
        _place(made, target)
    height, width = metadata.image_size
    shape = "any size" if dynamic else f"{batch}x3x{height}x{width}"
    print_fact("file", f"{target} ({format}, {precision}, {shape})")
    following = ["validate", "--ckpt_path", str(target), "--data.dataset", data or "FILE"]
    if writer.executes:
        following += ["--trust_parts", "true"]
    print_fact("next", f"{program()} {shlex.join(following)}")
    return target


def _shape(image_size: int | tuple[int, int], stride: int) -> tuple[int, int]:
    """(height, width) in pixels, rounded up to multiples of the stride."""
    if isinstance(image_size, int):
        image_size = (image_size, image_size)
    return round_up(image_size[0], stride), round_up(image_size[1], stride)


@contextlib.contextmanager
def _converting(writer: Format, target: Path) -> Iterator[None]:
    """Print nothing of converters. If one fails, a log beside the target has it."""
    printed = io.StringIO()
    logging.disable(logging.WARNING)
    with (
        captured_stderr() as written,
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(printed),
        warnings.catch_warnings(action="ignore"),
        trusting(everything=True),  # the file is ours
    ):
        try:
            yield
        except Exception as e:  # each converter has its own exceptions
            cause: BaseException = e
            while cause.__cause__:
                cause = cause.__cause__
            if isinstance(cause, InputError):
                raise
            log = Path(f"{target}.log")
            lines = [printed.getvalue(), *written(), traceback.format_exc()]
            with not_fatal(log), open(log, "a") as file:
                file.write("\n".join(lines))
            raise InputError(
                f"no file is written: converting to {writer.name} fails"
                f" ({in_one_line(cause)[:300]}). See {log}"
            ) from e
        finally:
            logging.disable(logging.NOTSET)


def _refuse_others(target: Path, ending: str) -> None:
    """Replace only an earlier export."""
    if not target.name.endswith(ending):
        raise InputError(f"out {target}: the name must end in {ending}")
    if target.exists() or target.is_symlink():
        try:
            compare_checksum(target)
        except (OSError, ValueError) as e:
            raise InputError(
                f"{target} exists and is no export: remove it, or give another --out ({e})"
            ) from None
        ours = files_of(target)
        for file in target.rglob("*"):
            if file.is_file() and file not in ours:
                raise InputError(f"{file} is no part of an export: move it, or give another --out")


def _place(made: Path, target: Path) -> None:
    """Replace an earlier export: a file atomically; a folder is removed first, so that a kill
    between the two leaves none, but never half of one."""
    sync_files([made, *made.rglob("*")])
    if target.is_dir():
        target.rename(made.with_name("older"))
    made.replace(target)
    sync_folder(target.parent)
