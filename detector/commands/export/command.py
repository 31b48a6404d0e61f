"""`python cli.py export`: a trained network as a file for other runtimes."""

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from boltbox.detector.checkpoint.reader import find_trained, newest_checkpoint
from boltbox.detector.commands.export.check import check
from boltbox.detector.commands.export.graph import Decoded, Suppressed
from boltbox.detector.commands.export.write import training_images, write
from boltbox.detector.data.demo import draw_image
from boltbox.detector.data.images import read_image
from boltbox.detector.data.transforms.letterbox import round_up
from boltbox.detector.inference.exported import (
    ENDINGS,
    Metadata,
    Precision,
    Suppression,
    format_of,
    load_exported,
)
from boltbox.detector.system.atomic_file import make_folder, sync_files, sync_folder
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.ranges import ClosedUnitInterval, PositiveInt
from boltbox.detector.system.rank_zero import print_fact, program, rank_zero_print
from boltbox.detector.system.trusted import trusting

COMPARED = 8  # images of a data set


def export(
    ckpt_path: str | None = None,
    format: str = "onnx",
    out: str | None = None,
    image_size: PositiveInt | tuple[PositiveInt, PositiveInt] | None = None,
    batch: PositiveInt = 1,
    dynamic: bool = False,
    nms: bool = False,
    conf: ClosedUnitInterval = 0.25,
    iou: ClosedUnitInterval = 0.45,
    max_det: PositiveInt = 300,
    agnostic: bool = False,
    half: bool = False,
    int8: bool = False,
    data: str | None = None,
    opset: int | None = None,
    run: str | None = None,
    trust_parts: bool = False,
) -> Path:
    """Write a trained network as a file for other runtimes, and compare its detections with
    PyTorch's.

    Batch norms are folded into convolutions and boxes are decoded in the file. Afterwards
    `validate` and `predict` take it as --ckpt_path. An earlier export of the same name is replaced,
    nothing else is.

    Args:
        ckpt_path: last, best (both of the most recent fit, or of --run), a run folder (its best), a
            checkpoint, or YOLOv5's published weights (.pt); default: best.
        format: onnx or openvino; for TensorRT, LiteRT, NCNN, CoreML see docs/deploy.md.
        out: File to write (openvino: folder); default: beside the checkpoint.
        image_size: Pixels, or [HEIGHT,WIDTH]; default: that of the training. Of a dynamic file
            only what int8 and the check use.
        batch: Images per call.
        dynamic: Any batch, any height and width that are multiples of the stride.
        nms: Suppress overlapping boxes in the file.
        conf: With nms: minimum confidence of a detection.
        iou: With nms: overlap above which the less confident of two boxes of a class is dropped.
        max_det: With nms: maximum detections per image.
        agnostic: With nms: suppress across classes.
        half: Weights and maps in float16; input and output stay float32.
        int8: Weights and maps in eight bits.
        data: Data set (data.yaml, folder or demo) on whose training images the file is compared
            with PyTorch, and with int8 its ranges are measured; default: drawn images, no int8.
        opset: Of ONNX; default: the exporter's.
        run: Run folder of `last` and `best`; default: the most recent fit.
        trust_parts: Import a head that the checkpoint names, whoever wrote it; else only boltbox's.

    Returns:
        The file, or folder.

    Raises:
        InputError: what is asked for does not go together, a package is missing, or the file's
            detections are not PyTorch's.
    """
    if format not in ENDINGS:
        raise InputError(
            f"format {format}: choose {' or '.join(ENDINGS)}; for TensorRT, LiteRT, NCNN, CoreML"
            " see docs/deploy.md"
        )
    if half and int8:
        raise InputError("half and int8 exclude each other: give one")
    home = Path(run) if run else None
    ckpt_path = ckpt_path or newest_checkpoint(home)
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
        trained = find_trained(ckpt_path, home)
        if trained is None:
            raise InputError("ckpt_path auto is for fit; give `last`, `best` or a file")
        network = trained.network
    print_fact("weights", trained.path)
    stride = max(network.max_stride, 32)
    precision: Precision = "int8" if int8 else "float16" if half else "float32"
    metadata = Metadata(
        trained.names,
        stride,
        _shape(image_size or trained.image_size, stride),
        batch,
        dynamic,
        Suppression(conf, iou, max_det, agnostic) if nms else None,
        precision,
        network.strides if network.head.rows_per_level(stride, stride) else [],
        trained.origins,
        trained.thresholds,
    )
    mark = "_int8" if int8 else "_half" if half else ""
    usual = trained.path.with_name(f"{trained.path.stem}{mark}{ENDINGS[format]}")
    target = Path(out) if out else usual
    _refuse_others(target, format)

    decoded = Decoded(network)
    in_file = Decoded(network, half=True) if half and format == "onnx" else decoded
    graph = Suppressed(in_file, metadata.nms) if metadata.nms else in_file
    images = [read_image(file) for file in files[:COMPARED]]
    images = images or [draw_image(np.random.default_rng(i))[0][..., ::-1].copy() for i in range(4)]
    make_folder(target.parent)
    # on the same disk, so that the finished file can be moved into place
    with tempfile.TemporaryDirectory(prefix=".export-", dir=target.parent) as folder:
        made = Path(folder, f"made{ENDINGS[format]}")
        write(graph, metadata, format, made, opset, files if int8 else [])
        exported = replace(load_exported(made), path=target)
        print_fact("check", check(exported, decoded, images))
        _place(made, target)
    shape = "any size" if dynamic else "x".join(map(str, (batch, 3, *metadata.image_size)))
    rows = "image, x1, y1, x2, y2, score, class" if nms else "cx, cy, w, h, objectness, classes"
    print_fact("file", f"{target} ({format}, {precision}, {shape})")
    print_fact("output", f"per row {rows}")
    print_fact("next", f"{program()} validate --ckpt_path {target} --data.dataset {data or 'FILE'}")
    return target


def _shape(image_size: int | tuple[int, int], stride: int) -> tuple[int, int]:
    """(height, width) in pixels, rounded up to multiples of the stride."""
    asked = (image_size, image_size) if isinstance(image_size, int) else image_size
    height, width = (round_up(side, stride) for side in asked)
    if (height, width) != asked:
        rank_zero_print(f"image_size {image_size} is rounded up to {height}x{width}")
    return height, width


def _refuse_others(target: Path, format: str) -> None:
    """A file of that name must be an earlier export."""
    if not target.name.endswith(ENDINGS[format]):
        raise InputError(f"out {target}: the name must end in {ENDINGS[format]}")
    if target.exists() or target.is_symlink():
        try:
            load_exported(target)
        except InputError as e:
            raise InputError(
                f"{target} exists and is no export: remove it, or give another --out ({e})"
            ) from None
        if others := [file for file in target.glob("*") if file.stem != "model"]:
            raise InputError(f"{others[0]} is no part of an export: move it, or give another --out")


def _place(made: Path, target: Path) -> None:
    """A file takes the older one's place at once. A folder cannot: the older one goes first, and a
    kill between the two leaves none, but never half of one."""
    sync_files([made, *made.glob("*")])
    if target.is_dir():
        target.rename(made.with_name("older"))
    made.replace(target)
    sync_folder(target.parent)
