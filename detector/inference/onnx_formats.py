"""Formats whose converters take an ONNX model: ONNX itself, OpenVINO, NCNN, TensorRT.

int8 is by the tools of ONNX Runtime and OpenVINO.
"""

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import Module

from boltbox.detector.inference.exported import INPUT, OUTPUT, Metadata, Run
from boltbox.detector.inference.format import Compute, Folder, Format, Images, exported_program
from boltbox.detector.system.errors import need


class Onnx(Format):
    """One ONNX file with its weights inside."""

    name = "onnx"
    ending = ".onnx"
    packages = ("onnx", "onnxscript", "onnxruntime")
    precisions = ("float32", "float16", "int8")
    half_in_graph = True
    flexible = True

    def write(self, graph: Module, metadata: Metadata, path: Path, calibration: Images) -> None:
        """See `Format`."""
        model = onnx_model(graph, metadata)
        if metadata.precision == "int8":
            plain = path.with_name("plain.onnx")
            _save_onnx(model, plain)
            model = _quantised_onnx(plain, calibration)
        need("onnx").helper.set_model_props(model, metadata.to_strings())
        _save_onnx(model, path)

    def run(self, path: Path) -> tuple[Metadata, Run]:
        """See `Format`."""
        runtime = need("onnxruntime")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 4  # its errors are raised too
        session = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        metadata = Metadata.from_strings(session.get_modelmeta().custom_metadata_map)

        def run(images: Tensor) -> Tensor:
            return torch.from_numpy(session.run(None, {INPUT: images.numpy()})[0])

        return metadata, run


class OpenVINO(Format):
    """A folder with OpenVINO's model.xml and model.bin. OpenVINO widens halves when it computes."""

    name = "openvino"
    ending = "_openvino"
    packages = ("onnx", "onnxscript", "openvino")
    precisions = ("float32", "float16", "int8")
    flexible = True

    def write(self, graph: Module, metadata: Metadata, path: Path, calibration: Images) -> None:
        """See `Format`."""
        plain = path.with_name("plain.onnx")
        _save_onnx(onnx_model(graph, metadata), plain)
        openvino = need("openvino")
        model = openvino.Core().read_model(plain)
        if metadata.precision == "int8":
            nncf = need("nncf")
            images = list(calibration)
            model = nncf.quantize(
                model,
                nncf.Dataset(images),
                preset=nncf.QuantizationPreset.MIXED,
                subset_size=len(images),
            )
        path.mkdir()
        for key, value in metadata.to_strings().items():
            model.set_rt_info(value, ["boltbox", key])
        half = metadata.precision == "float16"
        openvino.save_model(model, path / "model.xml", compress_to_fp16=half)

    def run(self, path: Path) -> tuple[Metadata, Run]:
        """See `Format`."""
        core = need("openvino").Core()
        model = core.read_model(path / "model.xml")
        info = model.get_rt_info("boltbox").astype(dict)
        strings = {key: value.astype(str) for key, value in info.items()}
        # float32 even where the processor computes in bfloat16: its 8 bits are too few for
        # confidences
        options = {
            "INFERENCE_PRECISION_HINT": "f32",
            "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        }
        compiled = core.compile_model(model, "CPU", options)

        def run(images: Tensor) -> Tensor:
            request = compiled.create_infer_request()  # one per call: threads may share the file
            return torch.from_numpy(request.infer([images.numpy()])[0].copy())

        return Metadata.from_strings(strings), run


class NCNN(Folder):
    """NCNN's model.ncnn.param and model.ncnn.bin, float16 in its weights only. pnnx loses part of
    the boxes if it converts the network from PyTorch."""

    name = "ncnn"
    ending = "_ncnn"
    packages = ("onnx", "onnxscript", "pnnx", "ncnn")

    def convert(self, graph: Module, metadata: Metadata, folder: Path) -> None:
        """See `Folder`."""
        here = folder.parent  # pnnx leaves eight files where it runs
        metadata = replace(metadata, batch=1)  # NCNN has no batches
        _save_onnx(onnx_model(graph, metadata), here / "model.onnx")
        shape = [1, 3, *metadata.image_size]
        half = int(metadata.precision == "float16")
        line = [need("pnnx").EXEC_PATH, "model.onnx", f"inputshape={shape}", f"fp16={half}"]
        subprocess.run(line, cwd=here, check=True, stdout=2)  # `export` captures standard error
        for name in ("model.ncnn.param", "model.ncnn.bin"):
            (here / name).rename(folder / name)

    def load(self, folder: Path) -> Compute:
        """See `Folder`."""
        ncnn = need("ncnn")
        net = ncnn.Net()
        net.opt.num_threads = torch.get_num_threads()
        for option in ("fp16_packed", "fp16_storage", "fp16_arithmetic", "bf16_storage"):
            setattr(net.opt, f"use_{option}", False)
        graph = str(folder / "model.ncnn.param")
        weights = str(folder / "model.ncnn.bin")
        if net.load_param(graph) or net.load_model(weights):  # 0: it is loaded
            raise ValueError("ncnn lacks an operator of it")

        def compute(images: Tensor) -> np.ndarray:
            rows = []
            for image in images.numpy():
                with net.create_extractor() as extractor:
                    extractor.input("in0", ncnn.Mat(image).clone())
                    rows.append(np.array(extractor.extract("out0")[1]))
            return np.stack(rows)

        return compute


class TensorRT(Folder):
    """TensorRT's model.engine, for the kind of GPU that wrote it, with code for that."""

    name = "tensorrt"
    ending = "_tensorrt"
    packages = ("onnx", "onnxscript", "tensorrt")
    half_in_graph = True
    executes = True

    def convert(self, graph: Module, metadata: Metadata, folder: Path) -> None:
        """See `Folder`."""
        trt = need("tensorrt")
        logger = trt.Logger(trt.Logger.ERROR)
        builder = trt.Builder(logger)
        typed = trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED  # always so since TensorRT 11
        network = builder.create_network(1 << int(typed))
        parser = trt.OnnxParser(network, logger)
        if not parser.parse(onnx_model(graph, metadata).SerializeToString()):
            raise ValueError(parser.get_error(0))
        engine = builder.build_serialized_network(network, builder.create_builder_config())
        (folder / "model.engine").write_bytes(engine)

    def load(self, folder: Path) -> Compute:
        """See `Folder`."""
        trt = need("tensorrt")
        runtime = trt.Runtime(trt.Logger(trt.Logger.ERROR))
        engine = runtime.deserialize_cuda_engine((folder / "model.engine").read_bytes())
        context = engine.create_execution_context()

        def compute(images: Tensor) -> Tensor:
            given = images.cuda()
            output = given.new_empty(tuple(engine.get_tensor_shape(OUTPUT)))
            context.set_tensor_address(INPUT, given.data_ptr())
            context.set_tensor_address(OUTPUT, output.data_ptr())
            context.execute_async_v3(torch.cuda.current_stream().cuda_stream)
            return output.cpu()

        return compute


def onnx_model(graph: Module, metadata: Metadata) -> Any:
    """Convert a graph to ONNX.

    Args:
        graph: the network.
        metadata: with the shape of its input.

    Returns:
        The onnx.ModelProto, weights inside.
    """
    return torch.onnx.export(
        exported_program(graph, metadata),
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


def _quantised_onnx(plain: Path, calibration: Images) -> Any:
    """The model with quantise-dequantise pairs around the convolutions, weights per channel.

    The rest stays in float32: boxes and scores of the head share a tensor, in which eight bits of a
    box's range would leave nothing of a score.
    """
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    feeds = ({INPUT: batch} for batch in calibration)

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
        op_types_to_quantize=["Conv"],
        per_channel=True,
        activation_type=quantization.QuantType.QUInt8,
        # int8 of 7 bits: a product of 8 and 8 overflows where two are added in 16 (AVX2)
        reduce_range=True,
        extra_options={"CalibMovingAverage": True},
    )
    return need("onnx").load(done)
