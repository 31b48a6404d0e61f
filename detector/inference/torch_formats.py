"""Formats whose converters take the network from PyTorch."""

import io
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.functional import pad

from boltbox.detector.data.transforms.letterbox import GREY
from boltbox.detector.inference.exported import INPUT, OUTPUT, Metadata, Run
from boltbox.detector.inference.format import Compute, Folder, example, exported_program
from boltbox.detector.system.errors import need


class LiteRT(Folder):
    """LiteRT's model.tflite, float16 in the weights of convolutions only."""

    name = "litert"
    ending = "_litert"
    packages = ("litert_torch", "ai_edge_litert")
    apart = True

    def convert(self, graph: Module, metadata: Metadata, folder: Path) -> None:
        """See `Folder`."""
        model = str(folder / "model.tflite")
        need("litert_torch").convert(graph, (example(metadata),)).export(model)
        if metadata.precision == "float16":
            quantizer = need("ai_edge_quantizer.quantizer").Quantizer(model)
            quantizer.load_quantization_recipe([HALF_CONVOLUTIONS])
            quantizer.quantize().export_model(model, overwrite=True)

    def load(self, folder: Path) -> Compute:
        """See `Folder`."""
        interpreter = need("ai_edge_litert.interpreter").Interpreter(
            str(folder / "model.tflite"), num_threads=torch.get_num_threads()
        )
        signature = interpreter.get_signature_runner()
        (given,) = signature.get_input_details()
        (made,) = signature.get_output_details()
        return lambda images: signature(**{given: images.numpy()})[made]


HALF_CONVOLUTIONS = {
    "regex": ".*",
    "operation": "CONV_2D",
    "algorithm_key": "float_casting",
    "op_config": {
        "weight_tensor_config": {"num_bits": 16, "dtype": "FLOAT"},
        "compute_precision": "FLOAT",
        "explicit_dequantize": True,
    },
}


class ExecuTorch(Folder):
    """ExecuTorch's model.pte for XNNPACK."""

    name = "executorch"
    ending = "_executorch"
    packages = ("executorch",)
    precisions = ("float32",)

    def convert(self, graph: Module, metadata: Metadata, folder: Path) -> None:
        """See `Folder`."""
        xnnpack = need("executorch.backends.xnnpack.partition.xnnpack_partitioner")
        lowered = need("executorch.exir").to_edge_transform_and_lower(
            exported_program(graph, metadata), partitioner=[xnnpack.XnnpackPartitioner()]
        )
        (folder / "model.pte").write_bytes(lowered.to_executorch().buffer)

    def load(self, folder: Path) -> Compute:
        """See `Folder`."""
        runtime = need("executorch.runtime").Runtime.get()
        program = runtime.load_program(str(folder / "model.pte"))
        method = program.load_method("forward")
        return lambda images: method.execute([images])[0]


class CoreML(Folder):
    """Core ML's model.mlpackage."""

    name = "coreml"
    ending = "_coreml"
    packages = ("coremltools",)
    precisions = ("float32",)  # in float16 boxes are decoded in halves: up to 4.3 px off
    system = "darwin"

    def convert(self, graph: Module, metadata: Metadata, folder: Path) -> None:
        """See `Folder`."""
        tools = need("coremltools")
        model = tools.convert(
            exported_program(graph, metadata).run_decompositions({}),
            outputs=[tools.TensorType(name=OUTPUT, dtype=np.float32)],
            compute_precision=tools.precision.FLOAT32,
            minimum_deployment_target=tools.target.iOS16,
        )
        model.save(str(folder / "model.mlpackage"))

    def load(self, folder: Path) -> Compute:
        """See `Folder`."""
        model = need("coremltools").models.MLModel(str(folder / "model.mlpackage"))
        return lambda images: model.predict({INPUT: images.numpy()})[OUTPUT]


ASSERTION = torch.ops.aten._assert_scalar.default


class Pt2(Folder):
    """PyTorch's model.pt2 (torch.export). To read one unpickles objects and compiles expressions in
    it."""

    name = "pt2"
    ending = "_pt2"
    packages = ("torch",)
    half_in_graph = True
    flexible = True
    executes = True

    def convert(self, graph: Module, metadata: Metadata, folder: Path) -> None:
        """See `Folder`."""
        program = exported_program(graph, metadata)
        if metadata.nms:  # torchvision says that suppression leaves two boxes or more
            for node in program.graph.find_nodes(op="call_function", target=ASSERTION):
                program.graph.erase_node(node)
        content = io.BytesIO()  # on a full disk, torch's own writing ends the process
        torch.export.save(program, content)
        (folder / "model.pt2").write_bytes(content.getvalue())

    def load(self, folder: Path) -> Compute:
        """See `Folder`."""
        return torch.export.load(folder / "model.pt2").module()

    def run(self, path: Path) -> tuple[Metadata, Run]:
        """See `Format`. torch.export takes no side of a single stride: more grey makes it two."""
        metadata, run = super().run(path)
        least = 2 * metadata.stride

        def run_padded(images: Tensor) -> Tensor:
            height, width = images.shape[2:]
            missing = (0, max(least - width, 0), 0, max(least - height, 0))
            return run(pad(images, missing, value=GREY / 255))

        return metadata, run_padded if metadata.dynamic else run
