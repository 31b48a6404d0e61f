"""The table of the formats of exported files."""

import copyreg
from pathlib import Path
from typing import Any

from boltbox.detector.inference.exported import Exported, compare_checksum, files_of
from boltbox.detector.inference.format import Format
from boltbox.detector.inference.onnx_formats import NCNN, Onnx, OpenVINO, TensorRT
from boltbox.detector.inference.torch_formats import CoreML, ExecuTorch, LiteRT, Pt2
from boltbox.detector.inference.web_format import Web
from boltbox.detector.system.errors import InputError, in_one_line, need
from boltbox.detector.system.trusted import ALL, trusted

CLASSES = (Onnx, OpenVINO, NCNN, LiteRT, ExecuTorch, CoreML, TensorRT, Pt2, Web)
FORMATS: dict[str, Format] = {each.name: each() for each in CLASSES}


def format_of(path: str | Path) -> Format | None:
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
        compare_checksum(files_of(path))
        metadata, run = kind.run(path)
    except Exception as e:  # each runtime has its own exceptions
        raise InputError(
            f"{path}: not an intact file of `export` ({in_one_line(e)[-200:]}). Export it again"
        ) from e
    return Exported(path, metadata, run)


def _reading(exported: Exported) -> tuple[Any, ...]:
    """What makes the same in another process: a runtime cannot be pickled."""
    return load_exported, (exported.path.absolute(),)


copyreg.pickle(Exported, _reading)
