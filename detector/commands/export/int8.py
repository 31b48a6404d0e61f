"""Eight-bit weights and maps, by the tools of ONNX Runtime and OpenVINO, with ranges measured on
images of a data set."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from torch import nn

from boltbox.detector.commands.export.formats import (
    INPUT,
    need,
    quiet,
    save_onnx,
    save_openvino,
    write_onnx,
)
from boltbox.detector.commands.export.metadata import Metadata
from boltbox.detector.data.dataset_file import DatasetFile
from boltbox.detector.data.images import read_image
from boltbox.detector.data.transforms.letterbox import letterbox
from boltbox.detector.system.errors import InputError


def calibration_files(data: str | None, most: int) -> list[str]:
    """Images spread evenly over the training split of a data set, or over what split it has.

    Raises:
        InputError: no data set, or one that cannot be used.
    """
    if data is None:
        raise InputError(
            "int8 needs images to measure ranges on: give --data FILE, the data.yaml of the"
            " training"
        )
    file = DatasetFile.read(data)
    file.draw_demo()
    dataset = file.open(next(split for split in ("train", "val", "test") if split in file.splits))
    return [
        dataset.files[i]
        for i in np.linspace(0, len(dataset) - 1, min(most, len(dataset))).astype(int)
    ]


def batches(files: list[str], metadata: Metadata) -> Iterator[np.ndarray]:
    """The files letterboxed to the file's size, in batches of its number; the last is filled up
    with its own first image."""
    size = metadata.batch
    for start in range(0, len(files), size):
        images = [
            letterbox(read_image(f), metadata.image_size)[0] for f in files[start : start + size]
        ]
        images += [images[0]] * (size - len(images))
        yield np.ascontiguousarray(np.stack(images).transpose(0, 3, 1, 2), np.float32) / 255


def write_int8_onnx(
    graph: nn.Module, metadata: Metadata, path: Path, opset: int | None, files: list[str]
) -> None:
    """ONNX with quantise-dequantise pairs around the convolutions, weights by channel. All else
    stays in float32: boxes and scores of the head share a tensor, in which eight bits of a box's
    range would leave nothing of a score."""
    onnx, _ = need("onnx", "onnxruntime")
    from onnxruntime.quantization import (
        CalibrationDataReader,
        CalibrationMethod,
        QuantFormat,
        QuantType,
        quantize_static,
    )
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.batches = batches(files, metadata)

        def get_next(self) -> dict[str, np.ndarray] | None:
            batch = next(self.batches, None)
            return None if batch is None else {INPUT: batch}

    with tempfile.TemporaryDirectory(dir=path.parent) as folder, quiet():
        plain, prepared, done = (
            Path(folder, f"{name}.onnx") for name in ("plain", "prepared", "done")
        )
        write_onnx(graph, metadata, plain, opset)
        quant_pre_process(plain, prepared, skip_symbolic_shape=True)
        quantize_static(
            prepared,
            done,
            Reader(),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=["Conv"],
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            # 7 bits: a product of 8 and 8 overflows in processors that add two of them in 16 (AVX2)
            reduce_range=True,
            calibrate_method=CalibrationMethod.MinMax,
            extra_options={"CalibMovingAverage": True},
        )
        save_onnx(onnx.load(done), metadata, path)


def write_int8_openvino(
    graph: nn.Module, metadata: Metadata, path: Path, opset: int | None, files: list[str]
) -> None:
    """OpenVINO's folder, quantised by NNCF: convolutions and what lies between them, not the
    decoding of boxes."""
    openvino, nncf = need("openvino", "nncf")
    path.mkdir(parents=True)
    plain = path / "model.onnx"
    write_onnx(graph, metadata, plain, opset)
    model = openvino.Core().read_model(plain)
    with quiet():
        quantised = nncf.quantize(
            model,
            nncf.Dataset(list(batches(files, metadata))),
            preset=nncf.QuantizationPreset.MIXED,
            subset_size=len(files),
        )
    save_openvino(quantised, metadata, path)
    plain.unlink()
