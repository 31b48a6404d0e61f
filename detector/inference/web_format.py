"""The format web: a folder with a page that finds objects in the browser, by ONNX Runtime Web."""

import json
import re
import shutil
from pathlib import Path

from torch.nn import Module

from boltbox.detector.inference.exported import METADATA, Metadata, Run, write_checksum
from boltbox.detector.inference.format import Images
from boltbox.detector.inference.onnx_formats import Onnx
from boltbox.detector.system.errors import InputError

PAGE = Path(__file__).parent / "page"
# Where a page loads ONNX Runtime Web from, unless its folder has the files; browsers compare them
# with the hashes in index.html.
RUNTIME = "https://cdn.jsdelivr.net/npm/onnxruntime-web@1.30.0/dist"
RUNTIME_FILES = ("ort.wasm.bundle.min.mjs", "ort-wasm-simd-threaded.wasm")


class Web(Onnx):
    """A folder with index.html, page/ and model.onnx, with any size and suppression inside.

    Args:
        package: Folder of the npm package onnxruntime-web, whose files are copied; None: the page
            loads them from `RUNTIME`.
    """

    name = "web"
    ending = "_web"
    is_page = True

    def __init__(self, package: str | Path | None = None) -> None:
        self.package = package
        for name in RUNTIME_FILES:
            if package and not Path(package, "dist", name).is_file():
                raise InputError(
                    f"onnxruntime_web {package}: no dist/{name} there. Give the folder of the npm"
                    " package onnxruntime-web 1.20 or later"
                )

    def write(self, graph: Module, metadata: Metadata, path: Path, calibration: Images) -> None:
        """See `Format`."""
        model = path.with_name("model.onnx")
        super().write(graph, metadata, model, calibration)
        write_checksum(model)  # it is an export of its own too
        shutil.copytree(PAGE, path / "page")
        model.rename(path / model.name)
        (path / METADATA).write_text(json.dumps(metadata.to_values(), indent=1))
        index = path / "page/index.html"
        text = index.read_text()
        if self.package:
            for name in RUNTIME_FILES:
                shutil.copy(Path(self.package, "dist", name), path / "page")
            text = text.replace(f" {RUNTIME}/;", ";").replace(RUNTIME, "page")
            text = re.sub('sha384-[^"]*', "", text)
        index.unlink()
        (path / "index.html").write_text(text)

    def run(self, path: Path) -> tuple[Metadata, Run]:
        """See `Format`."""
        return super().run(path / "model.onnx")
