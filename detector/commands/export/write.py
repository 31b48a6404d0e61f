"""The formats of exported files, one class per format.

torch.export makes an ONNX model, and OpenVINO converts that. int8 is by the tools of ONNX Runtime
and OpenVINO. `boltbox.detector.inference.exported` runs the files.
"""

import contextlib
import logging
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from boltbox.detector.data.dataset_file import DatasetFile
from boltbox.detector.data.images import read_image
from boltbox.detector.data.transforms.letterbox import letterbox
from boltbox.detector.inference.exported import (
    ENDINGS,
    INPUT,
    OUTPUT,
    Metadata,
    files_of,
    write_checksum,
)
from boltbox.detector.system.errors import need


class Format(Protocol):
    """A format of exported files.

    Attributes:
        ending: of the names of its files or folders.
        half_in_graph: float16 is the type of the graph's weights and maps, not of the file only.
    """

    ending: str
    half_in_graph: bool

    def write(
        self,
        graph: nn.Module,
        metadata: Metadata,
        path: Path,
        calibration: Sequence[str],
    ) -> None:
        """Write a file or folder with the metadata.

        Args:
            graph: `Decoded` or `Suppressed`.
            metadata: of the file.
            path: in a folder where further files may be left.
            calibration: image files to measure the ranges of int8 on; none: no int8.

        Raises:
            InputError: a package is not installed.
        """


class Onnx:
    """One ONNX file with its weights inside."""

    ending = ENDINGS["onnx"]
    half_in_graph = True

    def write(
        self,
        graph: nn.Module,
        metadata: Metadata,
        path: Path,
        calibration: Sequence[str],
    ) -> None:
        """See `Format`."""
        model = onnx_model(graph, metadata)
        if calibration:
            plain = path.with_name("plain.onnx")
            _save_onnx(model, plain)
            model = _quantised_onnx(plain, metadata, calibration)
        need("onnx").helper.set_model_props(model, metadata.to_strings())
        _save_onnx(model, path)
        write_checksum(files_of(path))


class OpenVINO:
    """A folder with OpenVINO's model.xml and model.bin."""

    ending = ENDINGS["openvino"]
    half_in_graph = False  # halves the weights on disk, which OpenVINO widens when it computes

    def write(
        self,
        graph: nn.Module,
        metadata: Metadata,
        path: Path,
        calibration: Sequence[str],
    ) -> None:
        """See `Format`."""
        plain = path.with_name("plain.onnx")
        _save_onnx(onnx_model(graph, metadata), plain)
        openvino = need("openvino")
        model = openvino.Core().read_model(plain)
        if calibration:
            nncf = need("nncf")
            model = nncf.quantize(
                model,
                nncf.Dataset(list(batches(calibration, metadata))),
                preset=nncf.QuantizationPreset.MIXED,
                subset_size=len(calibration),
            )
        path.mkdir()
        for key, value in metadata.to_strings().items():
            model.set_rt_info(value, ["boltbox", key])
        is_half = metadata.precision == "float16"
        openvino.save_model(model, path / "model.xml", compress_to_fp16=is_half)
        write_checksum(files_of(path))


FORMATS: dict[str, Format] = {"onnx": Onnx(), "openvino": OpenVINO()}


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without the exporters' warnings about themselves; the check shows what went wrong."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)


def onnx_model(graph: nn.Module, metadata: Metadata) -> Any:
    """Convert a graph to ONNX.

    Args:
        graph: the network.
        metadata: with the shape of its input.

    Returns:
        The onnx.ModelProto, weights inside.

    Raises:
        InputError: a package is not installed.
    """
    need("onnx")
    need("onnxscript")
    shapes = None
    if metadata.dynamic:
        # a batch and sides that cannot be mistaken for constants
        images = torch.rand(2, 3, 4 * metadata.stride, 6 * metadata.stride)
        batch = torch.export.Dim("b", min=1, max=4096)
        height = torch.export.Dim("h", min=2, max=4096)
        width = torch.export.Dim("w", min=2, max=4096)
        shapes = {INPUT: {0: batch, 2: metadata.stride * height, 3: metadata.stride * width}}
    else:
        images = torch.rand(metadata.batch, 3, *metadata.image_size)
    with torch.no_grad():
        program = torch.export.export(graph, (images,), dynamic_shapes=shapes)
        return torch.onnx.export(
            program,
            (),
            dynamo=True,
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
    """The model with quantise-dequantise pairs around the convolutions, weights per channel.

    The rest stays in float32: boxes and scores of the head share a tensor, in which eight bits of a
    box's range would leave nothing of a score.
    """
    onnx = need("onnx")
    need("onnxruntime")
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    feeds = ({INPUT: batch} for batch in batches(calibration, metadata))

    class Reader(quantization.CalibrationDataReader):
        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(feeds, None)

    prepared = plain.with_name("prepared.onnx")
    done = plain.with_name("done.onnx")
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


def training_images(data: str, maximum: int = 300) -> list[str]:
    """Image files spread evenly over the training split of a dataset.

    Args:
        data: the dataset; without a training split, another one is used.
        maximum: number of files.

    Returns:
        Their paths.

    Raises:
        InputError: the dataset cannot be used.
    """
    file = DatasetFile.read(data)
    file.prepare()
    split = next(split for split in ("train", "val", "test") if split in file.splits)
    dataset = file.open(split)
    indices = np.linspace(0, len(dataset) - 1, min(maximum, len(dataset))).astype(int)
    return [dataset.files[i] for i in indices]


def batches(files: Sequence[str], metadata: Metadata) -> Iterator[np.ndarray]:
    """Batches for a runtime; the last one is filled up with its first image.

    Args:
        files: images.
        metadata: with the size and batch of the exported file.

    Yields:
        float32 (B, 3, H, W) in 0..1.
    """
    for start in range(0, len(files), metadata.batch):
        images = [read_image(file) for file in files[start : start + metadata.batch]]
        images += [images[0]] * (metadata.batch - len(images))
        yield letterboxed(images, metadata.image_size)


def letterboxed(images: Sequence[np.ndarray], shape: tuple[int, int]) -> np.ndarray:
    """A batch of images.

    Args:
        images: (H, W, 3) uint8 each.
        shape: (height, width) of the batch.

    Returns:
        float32 (B, 3, height, width) in 0..1.
    """
    stack = np.stack([letterbox(image, shape)[0] for image in images])
    return np.ascontiguousarray(stack.transpose(0, 3, 1, 2), np.float32) / 255
