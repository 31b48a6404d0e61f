"""Files that predict: a table of the formats of exported ones, and how any is read."""

import copyreg
from pathlib import Path
from typing import Any

import torch

from boltbox.detector.checkpoint.reader import find_trained
from boltbox.detector.inference.exported import Exported, compare_checksum
from boltbox.detector.inference.format import Format
from boltbox.detector.inference.onnx_formats import NCNN, Onnx, OpenVINO, TensorRT
from boltbox.detector.inference.torch_formats import CoreML, ExecuTorch, LiteRT, Pt2
from boltbox.detector.inference.web_format import Web
from boltbox.detector.model.network import YOLOv5
from boltbox.detector.system.errors import InputError, in_one_line, need
from boltbox.detector.system.trusted import ALL, trusted
from boltbox.detector.weights.trained import Trained

CLASSES = (Onnx, OpenVINO, NCNN, LiteRT, ExecuTorch, CoreML, TensorRT, Pt2, Web)
FORMATS: dict[str, type[Format]] = {each.name: each for each in CLASSES}


def format_of(path: str | Path) -> type[Format] | None:
    """The format that a path means by its name; None: no exported file."""
    path = Path(path)
    name = path.name
    if (path / "checkpoints").is_dir():  # a run folder, as cats_web
        return None
    if path.suffix == ".xml" or (path / "model.xml").is_file():
        name = OpenVINO.ending
    return next((each for each in FORMATS.values() if name.endswith(each.ending)), None)


def load_exported(path: str | Path) -> Exported:
    """Read an exported file, ready to run.

    Raises:
        InputError: There is no such file, it is damaged or of another program, or its runtime is
            not installed.
    """
    kind = format_of(path)
    path = Path(path)
    if kind is None or not path.exists():
        endings = ", ".join(each.ending for each in FORMATS.values())
        raise InputError(f"{path}: no such exported file. Give one of {endings}")
    if path.suffix == ".xml":
        path = path.parent
    need(kind.packages[-1], str(path), kind.name)
    if kind.executes and ALL not in trusted:
        raise InputError(
            f"{path}: the runtime of {kind.name} may run code that a file holds. Give the"
            " checkpoint, or if you trust the file, add --trust_parts true"
        )
    try:
        compare_checksum(path)
        metadata, run = kind().run(path)
    except Exception as e:  # each runtime has its own exceptions
        raise InputError(
            f"{path}: not an intact file of `export` ({in_one_line(e)[-200:]}). Export it again"
        ) from e
    return Exported(path, metadata, run)


def load_member(
    path: str | Path, device: torch.device, run: Path | None = None
) -> tuple[Trained | Exported, YOLOv5 | Exported]:
    """Read a file that predicts.

    Args:
        path: See `Predictor.load`.
        device: Of a network.
        run: Folder of `last` and `best`.

    Returns:
        What the file says, and what predicts: its network, or the exported file itself.

    Raises:
        InputError: There is no such file, or it is no detector.
    """
    if format_of(path):
        file = load_exported(path)
        return file, file
    trained = find_trained(str(path), run)
    if trained is None:
        raise InputError("ckpt_path auto is for fit. Give `last`, `best` or a file")
    return trained, trained.network.to(device).to(memory_format=torch.channels_last).eval()


def _reading(exported: Exported) -> tuple[Any, ...]:
    """What makes the same in another process: a runtime cannot be pickled."""
    return load_exported, (exported.path.absolute(),)


copyreg.pickle(Exported, _reading)
