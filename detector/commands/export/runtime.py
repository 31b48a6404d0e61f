"""Exported files at work: each format by its own runtime, all behind one call.

ONNX and OpenVINO files only compute. A .pt2 file is a program that torch reads. It may hold
pickles, which are refused here before torch sees them, and expressions that are evaluated, so it is
not for files of people whose programs one would not run.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from boltbox.detector.commands.export.formats import ENDINGS, INPUT, METADATA_FILE, need, quiet
from boltbox.detector.commands.export.metadata import Metadata
from boltbox.detector.model.boxes import xyxy_to_cxcywh
from boltbox.detector.model.origin import Origin
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.rank_zero import rank_zero_print
from boltbox.detector.system.text_file import exists, is_dir
from boltbox.detector.system.zip_archive import check_archive

if TYPE_CHECKING:
    from boltbox.detector.data.datamodule import DetectionData
    from boltbox.detector.training.module import Detector

EXPECTED = (  # in a .pt2 file, besides sample inputs and lists of what belongs to which tensor
    r"data/(weights|constants)/(weight|tensor)_\d+|models/model\.json|extra/metadata\.json|archive_(format|version)|byteorder|\.data/.*"
)
Run = Callable[[Tensor], Tensor]  # images as the file wants them -> what it gives


@dataclass(frozen=True)
class Exported:
    """An exported file, ready to look at images in a network's place
    (`InferenceNetwork.predictor`).

    path: the file or folder · format: one of FORMATS · metadata: what it says of itself · run:
    float32 (B, 3, H, W) in 0..1 of exactly the size and batch that the file takes -> its output,
    (B, R, 5 + C) or with suppression inside (n, 7).
    """

    path: Path
    format: str
    metadata: Metadata
    run: Run

    @property
    def fixed_shape(self) -> tuple[int, int] | None:
        """(height, width) in pixels of the only images it takes; None: any multiples of the
        stride."""
        return None if self.metadata.dynamic else self.metadata.image_size

    def __call__(self, images: Tensor) -> Tensor:
        """float (B, 3, H, W) in 0..1 on any device -> (B, R, 5 + C) as `decode` gives it.

        What a file with suppression inside found is given as rows that a second, equal suppression
        leaves as they are: the objectness is 1, and the detection's class has its score. Rows of
        zeros fill up to the image with the most.
        """
        self._check(tuple(images.shape[2:]))
        batch = len(images) if self.metadata.dynamic else self.metadata.batch
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            parts = [
                self._batch(part, batch)
                for part in images.detach().float().cpu().contiguous().split(batch)
            ]
        rows = max(part.shape[1] for part in parts)
        parts = [torch.nn.functional.pad(part, (0, 0, 0, rows - part.shape[1])) for part in parts]
        return torch.cat(parts).to(images.device)

    def _batch(self, images: Tensor, batch: int) -> Tensor:
        """Images (b, 3, H, W), at most as many as the file takes at once, and grey ones up to that
        number."""
        b = len(images)
        if b < batch:
            images = torch.cat((images, images.new_full((batch - b, *images.shape[1:]), 0.5)))
        output = self.run(images)
        columns = 7 if self.metadata.nms else 5 + len(self.metadata.names)
        if output.shape[-1] != columns or output.ndim != (2 if self.metadata.nms else 3):
            raise InputError(
                f"{self.path}: its output is {tuple(output.shape)}, which its metadata do not"
                " promise"
            )
        return self._rows(output, b) if self.metadata.nms else output[:b]

    def _rows(self, found: Tensor, b: int) -> Tensor:
        """(n, 7) image, xyxy, score, class -> (b, R, 5 + C)."""
        num_classes = len(self.metadata.names)
        per_image = [found[found[:, 0] == i] for i in range(b)]
        rows = found.new_zeros(b, max(1, *(len(p) for p in per_image), 0), 5 + num_classes)
        for into, p in zip(rows, per_image, strict=True):
            into[: len(p), :4] = xyxy_to_cxcywh(p[:, 1:5])
            into[: len(p), 4] = 1
            into[: len(p), 5:] = one_hot(p[:, 6].long(), num_classes) * p[:, 5:6]
        return rows

    def _check(self, shape: tuple[int, ...]) -> None:
        stride = self.metadata.stride
        if self.fixed_shape not in (None, shape):
            raise InputError(
                f"{self.path} takes images of {_times(self.metadata.image_size)} px, not"
                f" {_times(shape)}"
            )
        if any(side % stride for side in shape) or min(shape) < 2 * stride:
            raise InputError(
                f"{self.path} takes sides that are multiples of {stride} from {2 * stride} px on,"
                f" not {_times(shape)}"
            )

    def look_for(self, module: Detector, data: DetectionData) -> None:
        """Take the place of the module's network in validation and prediction."""
        if module.names != self.metadata.names:
            raise InputError(
                f"{self.path} knows the classes {self.metadata.names}, but here they are"
                f" {module.names}"
            )
        nms, h = self.metadata.nms, module.hparams
        if nms and (h["conf"] < nms.conf or h["max_det"] > nms.max_det or h["iou"] > nms.iou):
            rank_zero_print(
                f"{self.path} has its suppression inside: conf {nms.conf:g}, iou {nms.iou:g},"
                f" max_det {nms.max_det}; what it leaves out stays out, whatever the options of the"
                " model say"
            )
        longest = max(self.metadata.image_size)
        if self.fixed_shape and data.image_size != longest:
            raise InputError(
                f"{self.path} takes images of {_times(self.metadata.image_size)} px: leave"
                " --data.image_size out"
            )
        data.fixed_shape = self.fixed_shape
        module.inference.predictor = self
        module.network.origins = [Origin(**entry) for entry in self.metadata.origins]

    def defaults(self) -> dict[str, Any]:
        """The options that the file brings, as a checkpoint does; not the backbone, since it needs
        no timm to run."""
        own = {"data.names": self.metadata.names, "data.image_size": max(self.metadata.image_size)}
        return {
            **{
                f"model.network.{key}": value
                for key, value in self.metadata.model.items()
                if key != "backbone"
            },
            **own,
        }


def _times(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def format_of(path: str | Path) -> str | None:
    """Which format a path means by its name; None: no exported file."""
    path = Path(path)
    if is_dir(path) or path.suffix == ".xml":
        path = path.parent if path.suffix == ".xml" else path
        return (
            "openvino"
            if path.name.endswith(ENDINGS["openvino"]) or (path / "model.xml").is_file()
            else None
        )
    return next((kind for kind, ending in ENDINGS.items() if path.name.endswith(ending)), None)


def load_exported(path: str | Path) -> Exported:
    """Read an exported file and make it ready to run on the CPU, with as many threads as torch has.

    Raises:
        InputError: no such file, damaged, of another program, or its runtime is not installed.
    """
    kind, path = format_of(path), Path(path)
    if kind is None:
        raise InputError(
            f"{path}: not the name of an exported file; these end in {', '.join(ENDINGS.values())}"
        )
    path = path.parent if path.suffix == ".xml" else path
    if not exists(path):
        raise InputError(f"{path}: no such exported file")
    load = {"onnx": _onnx, "openvino": _openvino, "exported-program": _exported_program}[kind]
    try:
        with quiet():
            metadata, run = load(path)
    except InputError:
        raise
    except Exception as e:  # whatever the runtimes stumble over: each has exceptions of its own
        raise InputError(
            f"{path}: cannot be read, perhaps damaged or cut short ({_brief(e)})"
        ) from e
    return Exported(path, kind, metadata, run)


def _brief(error: Exception) -> str:
    """The end of the last line that says something; the runtimes begin with names of their own
    source files."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [
        type(error).__name__
    ]
    last = re.sub(r"\s+", " ", lines[-1])
    return last if len(last) <= 200 else f"... {last[-200:].partition(' ')[2]}"


def _onnx(path: Path) -> tuple[Metadata, Run]:
    (runtime,) = need("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = torch.get_num_threads(), 3
    session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    metadata = Metadata.from_strings(path, session.get_modelmeta().custom_metadata_map)
    return metadata, lambda images: torch.from_numpy(session.run(None, {INPUT: images.numpy()})[0])


def _openvino(path: Path) -> tuple[Metadata, Run]:
    (openvino,) = need("openvino")
    for name in ("model.xml", "model.bin"):
        if not (path / name).is_file():
            raise InputError(
                f"{path}: no {name} there; this is not a folder of `export --format openvino`"
            )
    core = openvino.Core()
    model = core.read_model(path / "model.xml")
    told = model.get_rt_info("boltbox").astype(dict) if model.has_rt_info("boltbox") else {}
    metadata = Metadata.from_strings(path, {key: value.astype(str) for key, value in told.items()})
    # float32 even where the processor computes in bfloat16: its 8 bits are too few for confidences.
    options = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": torch.get_num_threads()}
    request = core.compile_model(model, "CPU", options).create_infer_request()
    return metadata, lambda images: torch.from_numpy(request.infer([images.numpy()])[0].copy())


def _zipped_metadata(path: Path) -> tuple[Metadata, zipfile.ZipFile]:
    """What a file of torch's says of itself, read without torch; every byte is compared with its
    checksum."""
    archive = zipfile.ZipFile(path)
    with path.open("rb") as file:
        check_archive(path, file)
    found = [
        name
        for name in archive.namelist()
        if PurePosixPath(name).parts[1:] == ("extra", METADATA_FILE)
    ]
    strings = json.loads(archive.read(found[0])) if found else {}
    return Metadata.from_strings(path, strings if isinstance(strings, dict) else {}), archive


def _exported_program(path: Path) -> tuple[Metadata, Run]:
    metadata, archive = _zipped_metadata(path)
    _refuse_pickles(path, archive)
    import torchvision  # noqa: F401  (its suppression, by name)

    return metadata, torch.export.load(path).module()


def _refuse_pickles(path: Path, archive: zipfile.ZipFile) -> None:
    """torch.export.load unpickles whatever says that it wants to be; nothing that `export` writes
    does."""
    inside = {"/".join(PurePosixPath(name).parts[1:]): name for name in archive.namelist()}
    if "archive_format" not in inside:
        raise InputError(f"{path}: refused, because it is of an old format, which torch unpickles")
    for place, name in inside.items():
        if place.startswith("data/sample_inputs/"):
            odd = archive.getinfo(name).file_size > 0 and not _is_plain(archive.read(name))
        elif re.fullmatch(r"data/(weights|constants)/\w+_config\.json", place):
            entries = json.loads(archive.read(name))["config"].values()
            odd = any(
                e["use_pickle"] or not re.fullmatch(r"(weight|tensor)_\d+", e["path_name"])
                for e in entries
            )
        else:
            odd = not re.fullmatch(EXPECTED, place)
        if odd:
            raise InputError(
                f"{path}: refused, because of '{place}', which an exported network does not need"
            )


def _is_plain(pickled: bytes) -> bool:
    """Tensors and plain types only."""
    try:
        torch.load(io.BytesIO(pickled), weights_only=True)
    except Exception:  # whatever torch stumbles over
        return False
    return True
