"""What a format of exported files is, and the program that all are made from."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import Module

from boltbox.detector.inference.exported import INPUT, METADATA, Metadata, Precision, Run

Images = Iterable[np.ndarray]  # float32 (B, 3, H, W) in 0..1 each
Compute = Callable[[Tensor], Any]  # images -> the output, an array or a tensor


class Format(ABC):
    """A format of exported files.

    Attributes:
        name: On the command line, and of the extra in pyproject.toml.
        ending: Of the names of its files or folders.
        packages: Needed to write it, the last one to run it too; the extra has them.
        precisions: That it can have.
        half_in_graph: float16 is the type of the graph's weights and maps, not of the file only.
        flexible: Takes dynamic shapes, and suppression inside.
        apart: Its converter and boltbox exclude each other's versions, so that no extra has it.
        system: The only one that runs it, as in sys.platform; "": all.
        executes: Its runtime may run code that a file holds.
        is_page: For people: any size, suppression inside.
    """

    name: str
    ending: str
    packages: tuple[str, ...]
    precisions: tuple[Precision, ...] = ("float32", "float16")
    half_in_graph: bool = False
    flexible: bool = False
    apart: bool = False
    system: str = ""
    executes: bool = False
    is_page: bool = False

    @abstractmethod
    def write(self, graph: Module, metadata: Metadata, path: Path, calibration: Images) -> None:
        """Write a file or folder with the metadata; its checksum is written later.

        Args:
            graph: `Decoded` or `Suppressed`.
            metadata: Of the file.
            path: In a folder where further files may be left.
            calibration: Images to measure the ranges of int8 on.

        Raises:
            Exception: Any that the converter raises.
        """

    @abstractmethod
    def run(self, path: Path) -> tuple[Metadata, Run]:
        """Read a file, ready to run on the CPU with as many threads as torch has.

        Args:
            path: The file or folder, which has the right checksum.

        Returns:
            What it says of itself, and the call, which threads may share.

        Raises:
            Exception: Any that the runtime raises.
        """


class Folder(Format):
    """A format whose folders hold metadata.json and the runtime's files, named model."""

    def write(self, graph: Module, metadata: Metadata, path: Path, calibration: Images) -> None:
        """See `Format`."""
        path.mkdir()
        (path / METADATA).write_text(json.dumps(metadata.to_values(), indent=1))
        self.convert(graph, metadata, path)

    def run(self, path: Path) -> tuple[Metadata, Run]:
        """See `Format`."""
        metadata = Metadata.from_values(json.loads((path / METADATA).read_text()))
        compute = self.load(path)
        lock = Lock()

        def run(images: Tensor) -> Tensor:
            with lock, torch.no_grad():
                return torch.as_tensor(compute(images)).clone()

        return metadata, run

    @abstractmethod
    def convert(self, graph: Module, metadata: Metadata, folder: Path) -> None:
        """Write the runtime's files; else as `write`."""

    @abstractmethod
    def load(self, folder: Path) -> Compute:
        """Read them."""


def example(metadata: Metadata) -> Tensor:
    """Float (B, 3, H, W) in 0..1, images that a file takes."""
    if metadata.dynamic:  # a batch and sides that cannot be mistaken for constants
        return torch.rand(2, 3, 4 * metadata.stride, 6 * metadata.stride)
    return torch.rand(metadata.batch, 3, *metadata.image_size)


@torch.no_grad()
def exported_program(graph: Module, metadata: Metadata) -> torch.export.ExportedProgram:
    """The graph as torch.export records it, with the shape of the metadata."""
    shapes = None
    if metadata.dynamic:
        batch = torch.export.Dim("b", min=1, max=4096)
        height = torch.export.Dim("h", min=2, max=4096)
        width = torch.export.Dim("w", min=2, max=4096)
        shapes = {INPUT: {0: batch, 2: metadata.stride * height, 3: metadata.stride * width}}
    return torch.export.export(graph, (example(metadata),), dynamic_shapes=shapes)
