"""From a graph to a file: torch.export, then ONNX, then OpenVINO; eight bits by the tools of ONNX
Runtime and OpenVINO."""

import contextlib
import logging
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from boltbox.detector.data.dataset_file import DatasetFile
from boltbox.detector.data.images import read_image
from boltbox.detector.data.transforms.letterbox import letterbox
from boltbox.detector.inference.checksum import write_checksum
from boltbox.detector.inference.exported import INPUT, OUTPUT, Metadata, files_of
from boltbox.detector.system.errors import InputError, need


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without the exporters' warnings about themselves; running the file shows what went wrong."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)


def write(
    graph: nn.Module,
    metadata: Metadata,
    format: str,
    path: Path,
    opset: int | None,
    calibration: Sequence[str],
) -> None:
    """Write an ONNX file, or the folder of OpenVINO's model.xml and model.bin, with the metadata.

    Args:
        path: in a folder where further files may be left.
        calibration: image files that the ranges of int8 are measured on; none: no int8.

    Raises:
        InputError: a package is not installed, or the exporter does not know the opset.
    """
    with quiet():
        model, plain = onnx_model(graph, metadata, opset), path.with_name("plain.onnx")
        _save_onnx(model, plain)
        if format == "onnx":
            if calibration:
                model = _quantised_onnx(plain, metadata, calibration)
            need("onnx").helper.set_model_props(model, metadata.to_strings())
            _save_onnx(model, path)
            write_checksum(files_of(path))
            return
        openvino = need("openvino")
        converted = openvino.Core().read_model(plain)
        if calibration:
            nncf = need("nncf")
            converted = nncf.quantize(
                converted,
                nncf.Dataset(list(batches(calibration, metadata))),
                preset=nncf.QuantizationPreset.MIXED,
                subset_size=len(calibration),
            )
        path.mkdir()
        for key, value in metadata.to_strings().items():
            converted.set_rt_info(value, ["boltbox", key])
        # float16 halves the weights on disk, which OpenVINO widens when it computes
        halves = metadata.precision == "float16"
        openvino.save_model(converted, path / "model.xml", compress_to_fp16=halves)
        write_checksum(files_of(path))


def onnx_model(graph: nn.Module, metadata: Metadata, opset: int | None) -> Any:
    """The onnx.ModelProto of a graph, weights inside."""
    onnx = need("onnx")
    need("onnxscript")
    newest = onnx.defs.onnx_opset_version()
    if opset is not None and not 18 <= opset <= newest:
        raise InputError(f"opset {opset}: torch and the installed onnx know 18 to {newest}")
    images, shapes = torch.rand(metadata.batch, 3, *metadata.image_size), None
    if metadata.dynamic:
        # sides and a batch that cannot be taken for constants
        images = torch.rand(2, 3, 4 * metadata.stride, 6 * metadata.stride)
        batch = torch.export.Dim("b", min=1, max=4096)
        height, width = (torch.export.Dim(name, min=2, max=4096) for name in ("h", "w"))
        shapes = {INPUT: {0: batch, 2: metadata.stride * height, 3: metadata.stride * width}}
    with torch.no_grad():
        return torch.onnx.export(
            torch.export.export(graph, (images,), dynamic_shapes=shapes),
            (),
            dynamo=True,
            opset_version=opset,
            input_names=[INPUT],
            output_names=[OUTPUT],
            verbose=False,
        ).model_proto


def _save_onnx(model: Any, path: Path) -> None:
    """Without torch's metadata: those name files of this machine."""
    for node in model.graph.node:
        del node.metadata_props[:]
    need("onnx").save(model, path)


def _quantised_onnx(plain: Path, metadata: Metadata, calibration: Sequence[str]) -> Any:
    """A file's model with quantise-dequantise pairs around the convolutions, weights by channel.
    All else stays in float32: boxes and scores of the head share a tensor, in which eight bits of a
    box's range would leave nothing of a score."""
    onnx, _ = need("onnx"), need("onnxruntime")
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    feeds = ({INPUT: batch} for batch in batches(calibration, metadata))

    class Reader(quantization.CalibrationDataReader):
        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(feeds, None)

    prepared, done = plain.with_name("prepared.onnx"), plain.with_name("done.onnx")
    quant_pre_process(plain, prepared, skip_symbolic_shape=True)
    quantization.quantize_static(
        prepared,
        done,
        Reader(),
        quant_format=quantization.QuantFormat.QDQ,
        op_types_to_quantize=["Conv"],
        per_channel=True,
        activation_type=quantization.QuantType.QUInt8,
        weight_type=quantization.QuantType.QInt8,
        # 7 bits: a product of 8 and 8 overflows in processors that add two of them in 16 (AVX2)
        reduce_range=True,
        calibrate_method=quantization.CalibrationMethod.MinMax,
        extra_options={"CalibMovingAverage": True},
    )
    return onnx.load(done)


def training_images(data: str, most: int = 300) -> list[str]:
    """Image files spread evenly over the training split of a data set, or over what split it has.

    Raises:
        InputError: it cannot be used.
    """
    file = DatasetFile.read(data)
    file.prepare()
    dataset = file.open(next(split for split in ("train", "val", "test") if split in file.splits))
    chosen = np.linspace(0, len(dataset) - 1, min(most, len(dataset))).astype(int)
    return [dataset.files[i] for i in chosen]


def batches(files: Sequence[str], metadata: Metadata) -> Iterator[np.ndarray]:
    """float32 (B, 3, H, W) in 0..1: the files letterboxed to the exported size, B as many as it
    takes; the last batch is filled up with its own first image."""
    for start in range(0, len(files), metadata.batch):
        own = files[start : start + metadata.batch]
        own = [*own, *[own[0]] * (metadata.batch - len(own))]
        yield letterboxed([read_image(file) for file in own], metadata.image_size)


def letterboxed(images: Sequence[np.ndarray], shape: tuple[int, int]) -> np.ndarray:
    """(H, W, 3) uint8 -> float32 (B, 3, height, width) in 0..1."""
    stack = np.stack([letterbox(image, shape)[0] for image in images])
    return np.ascontiguousarray(stack.transpose(0, 3, 1, 2), np.float32) / 255
