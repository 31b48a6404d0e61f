"""The three formats: how a graph becomes a file. Each function writes `path`, metadata included."""

import contextlib
import importlib
import json
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from boltbox.detector.commands.export.metadata import Metadata
from boltbox.detector.system.errors import InputError

Format = Literal["onnx", "openvino", "exported-program"]
FORMATS: tuple[str, ...] = get_args(Format)
ENDINGS = {"onnx": ".onnx", "openvino": "_openvino", "exported-program": ".pt2"}
METADATA_FILE = "metadata.json"  # within .pt2
INPUT, OUTPUT = "images", "output"


def need(*packages: str) -> list[Any]:
    """The packages, imported; one sentence if one is not installed."""
    try:
        return [importlib.import_module(package) for package in packages]
    except ModuleNotFoundError as e:
        missing = e.name or packages[0]
        raise InputError(
            f"{missing.split('.')[0]} is not installed; this needs: pip install"
            f" {' '.join(packages)}"
        ) from None


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without the exporters' warnings of their own insides; what goes wrong is found by running the
    file."""
    loggers = [
        logging.getLogger(name)
        for name in ("torch.onnx", "torch.export", "torch.__trace", "onnxscript", "onnx_ir")
    ]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def example(metadata: Metadata) -> Tensor:
    """Images to trace with. A dynamic graph must not see sides or a batch that could be taken for
    constants."""
    if metadata.dynamic:
        return torch.rand(2, 3, 4 * metadata.stride, 6 * metadata.stride)
    return torch.rand(metadata.batch, 3, *metadata.image_size)


def exported_program(graph: nn.Module, metadata: Metadata) -> torch.export.ExportedProgram:
    """The graph as torch.export sees it."""
    shapes = None
    if metadata.dynamic:
        batch, height, width = (
            torch.export.Dim(name, min=least, max=4096)
            for name, least in (("b", 1), ("h", 2), ("w", 2))
        )
        shapes = {"images": {0: batch, 2: metadata.stride * height, 3: metadata.stride * width}}
    with torch.no_grad(), quiet():
        return torch.export.export(graph, (example(metadata),), dynamic_shapes=shapes)


def write_exported_program(graph: nn.Module, metadata: Metadata, path: Path) -> None:
    """torch.export's archive, a .pt2 file."""
    with quiet():
        program = exported_program(graph, metadata)
        program.example_inputs = None  # random images would be kept with the file
        torch.export.save(
            program, path, extra_files={METADATA_FILE: json.dumps(metadata.to_strings())}
        )


def write_onnx(graph: nn.Module, metadata: Metadata, path: Path, opset: int | None = None) -> None:
    """ONNX with the weights inside.

    Raises:
        InputError: the exporter has no such opset.
    """
    onnx, _ = need("onnx", "onnxscript")
    newest = onnx.defs.onnx_opset_version()
    if opset is not None and not 18 <= opset <= newest:
        raise InputError(
            f"opset {opset}: torch's exporter and the installed onnx know 18 to {newest}"
        )
    with quiet():
        program = torch.onnx.export(
            exported_program(graph, metadata),
            (),
            dynamo=True,
            opset_version=opset,
            input_names=[INPUT],
            output_names=[OUTPUT],
            verbose=False,
        )
    assert program is not None
    model = program.model_proto
    written = next(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
    if opset not in (None, written):
        raise InputError(f"opset {opset}: this network could only be written with opset {written}")
    save_onnx(model, metadata, path)


def save_onnx(model: Any, metadata: Metadata, path: Path) -> None:
    """An onnx.ModelProto with our metadata, and with no others of torch's: those name files of this
    machine."""
    onnx = importlib.import_module("onnx")
    for node in model.graph.node:
        del node.metadata_props[:]
    onnx.helper.set_model_props(model, metadata.to_strings())
    onnx.save(model, path)


def write_openvino(
    graph: nn.Module, metadata: Metadata, path: Path, opset: int | None = None
) -> None:
    """A folder with OpenVINO's model.xml and model.bin, made from ONNX."""
    (openvino,) = need("openvino")
    path.mkdir(parents=True)
    onnx = path / "model.onnx"
    write_onnx(graph, metadata, onnx, opset)
    model = openvino.Core().read_model(onnx)
    save_openvino(model, metadata, path)
    onnx.unlink()


def save_openvino(model: Any, metadata: Metadata, path: Path) -> None:
    """An openvino.Model with our metadata; float16 halves the weights on disk, which OpenVINO
    widens when it computes."""
    (openvino,) = need("openvino")
    for key, value in metadata.to_strings().items():
        model.set_rt_info(value, ["boltbox", key])
    openvino.save_model(model, path / "model.xml", compress_to_fp16=metadata.precision == "float16")
