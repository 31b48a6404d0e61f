"""Exported files, each format run by its own runtime, all behind one call. ONNX and OpenVINO files
only compute: nothing in them is executed."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad

from boltbox.detector.inference.export_metadata import Metadata
from boltbox.detector.model.boxes import xyxy_to_cxcywh
from boltbox.detector.model.network_options import empty_network
from boltbox.detector.model.origin import Origin
from boltbox.detector.system.errors import InputError, in_one_line
from boltbox.detector.system.text_file import exists, is_dir

ENDINGS = {"onnx": ".onnx", "openvino": "_openvino"}
INPUT, OUTPUT = "images", "output"
Run = Callable[[Tensor], Tensor]  # images of the size and batch that the file takes -> its output


@dataclass(frozen=True)
class Exported:
    """An exported file, ready to predict in a network's place.

    path: the file or folder · metadata: what it says of itself · run: float32 (B, 3, H, W) in 0..1
    of exactly the size and batch that the file takes -> its output, (B, R, 5 + C) or with
    suppression inside (n, 7).
    """

    path: Path
    metadata: Metadata
    run: Run

    @property
    def names(self) -> list[str]:
        return self.metadata.names

    @property
    def image_size(self) -> int:
        """Longer side of the input in pixels."""
        return max(self.metadata.image_size)

    @property
    def max_stride(self) -> int:
        return self.metadata.stride

    @property
    def origins(self) -> list[Origin]:
        return [Origin(**entry) for entry in self.metadata.origins]

    @property
    def fixed_shape(self) -> tuple[int, int] | None:
        """(height, width) in pixels of the only images it takes; None: any multiples of the
        stride."""
        return None if self.metadata.dynamic else self.metadata.image_size

    def shape_for(self, image_size: int) -> tuple[int, int] | None:
        """`fixed_shape`, if the file takes images of this size.

        Raises:
            InputError: it does not.
        """
        if self.fixed_shape and image_size != self.image_size:
            raise InputError(
                f"{self.path} takes images of {_times(self.fixed_shape)} px: leave image_size out"
            )
        return self.fixed_shape

    def rows_per_level(self, height: int, width: int) -> list[int] | None:
        """See `Head.rows_per_level`; of a head of one's own nothing is known but its levels."""
        network = empty_network(len(self.names), self.metadata.model)
        return network.head.rows_per_level(height, width)

    def __call__(self, images: Tensor) -> Tensor:
        """float (B, 3, H, W) in 0..1 on any device -> (B, R, 5 + C) as `decode` gives it.

        What a file with suppression inside found is given as rows that a second, equal suppression
        leaves as they are: the objectness is 1, and the detection's class has its score. Rows of
        zeros fill up to the image with the most.
        """
        self._check(tuple(images.shape[2:]))
        batch = len(images) if self.metadata.dynamic else self.metadata.batch
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            on_cpu = images.detach().float().cpu().contiguous()
            parts = [self._batch(part, batch) for part in on_cpu.split(batch)]
        rows = max(part.shape[1] for part in parts)
        return torch.cat([pad(p, (0, 0, 0, rows - p.shape[1])) for p in parts]).to(images.device)

    def _check(self, shape: tuple[int, ...]) -> None:
        stride, fixed = self.metadata.stride, self.fixed_shape
        fits = min(shape) >= 2 * stride and not any(side % stride for side in shape)
        if shape != fixed if fixed else not fits:
            takes = _times(fixed) if fixed else f"multiples of {stride} from {2 * stride} on"
            raise InputError(f"{self.path} takes images of {takes} px, not {_times(shape)}")

    def _batch(self, images: Tensor, batch: int) -> Tensor:
        """Images (b, 3, H, W), at most as many as the file takes at once, and grey ones up to that
        number."""
        b = len(images)
        if b < batch:
            images = torch.cat((images, images.new_full((batch - b, *images.shape[1:]), 0.5)))
        output = self.run(images)
        columns = 7 if self.metadata.nms else 5 + len(self.names)
        if output.shape[-1] != columns or output.ndim != (2 if self.metadata.nms else 3):
            raise InputError(
                f"{self.path}: its output is {tuple(output.shape)}, not what its metadata state"
            )
        return self._rows(output, b) if self.metadata.nms else output[:b]

    def _rows(self, found: Tensor, b: int) -> Tensor:
        """(n, 7) image, xyxy, score, class -> (b, R, 5 + C)."""
        per_image = [found[found[:, 0] == i] for i in range(b)]
        rows = found.new_zeros(b, max(1, *(len(p) for p in per_image), 0), 5 + len(self.names))
        for into, p in zip(rows, per_image, strict=True):
            into[: len(p), :4] = xyxy_to_cxcywh(p[:, 1:5])
            into[: len(p), 4] = 1
            into[: len(p), 5:] = one_hot(p[:, 6].long(), len(self.names)) * p[:, 5:6]
        return rows


def format_of(path: str | Path) -> str | None:
    """Which format a path means by its name; None: no exported file."""
    path = Path(path)
    if path.suffix == ".xml":
        return "openvino"
    if is_dir(path):
        is_ours = path.name.endswith(ENDINGS["openvino"]) or (path / "model.xml").is_file()
        return "openvino" if is_ours else None
    return next((kind for kind, ending in ENDINGS.items() if path.name.endswith(ending)), None)


def load_exported(path: str | Path) -> Exported:
    """Read an exported file, ready to run on the CPU with as many threads as torch has.

    Raises:
        InputError: no such file, damaged, of another program, or its runtime is not installed.
    """
    kind, path = format_of(path), Path(path)
    path = path.parent if path.suffix == ".xml" else path
    if kind is None or not exists(path):
        raise InputError(
            f"{path}: no such exported file; give one of {', '.join(ENDINGS.values())}"
        )
    runtime = need("onnxruntime" if kind == "onnx" else "openvino")
    try:
        strings, run = (_onnx if kind == "onnx" else _openvino)(runtime, path)
        return Exported(path, Metadata.from_strings(strings), run)
    except Exception as e:  # each runtime has exceptions of its own
        raise InputError(
            f"{path}: not an intact file of `export` ({in_one_line(e)[-200:]}); export it again"
        ) from e


def need(package: str) -> Any:
    """A package that boltbox's extra `export` installs.

    Raises:
        InputError: it is not installed.
    """
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as e:
        raise InputError(f"{e.name} is not installed; this needs: pip install {package}") from None


def _onnx(runtime: Any, path: Path) -> tuple[dict[str, str], Run]:
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = torch.get_num_threads(), 3
    session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    strings = session.get_modelmeta().custom_metadata_map
    return strings, lambda images: torch.from_numpy(session.run(None, {INPUT: images.numpy()})[0])


def _openvino(runtime: Any, path: Path) -> tuple[dict[str, str], Run]:
    core = runtime.Core()
    model = core.read_model(path / "model.xml")
    info = model.get_rt_info("boltbox").astype(dict)
    # float32 even where the processor computes in bfloat16: its 8 bits are too few for confidences
    options = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": torch.get_num_threads()}
    request = core.compile_model(model, "CPU", options).create_infer_request()
    strings = {key: value.astype(str) for key, value in info.items()}
    return strings, lambda images: torch.from_numpy(request.infer([images.numpy()])[0].copy())


def _times(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
