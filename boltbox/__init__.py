"""YOLOv5's training recipe on PyTorch Lightning: `boltbox.Detector`, `boltbox.DetectionData`,
`boltbox.recipe` and the other names of docs/python.md, each imported when it is first used.

`detector`, `callbacks` and `configs` are packages below boltbox, so that a project may have modules
of these names. In a checkout their folders lie beside this one and are linked into it.
"""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from boltbox import callbacks as callbacks
    from boltbox.callbacks.recipe import recipe as recipe
    from boltbox.detector.commands.export.command import export as export
    from boltbox.detector.data.datamodule import DetectionData as DetectionData
    from boltbox.detector.data.hugging_face import save_hugging_face as save_hugging_face
    from boltbox.detector.data.transforms.augment import Augment as Augment
    from boltbox.detector.inference.detections import Detections as Detections
    from boltbox.detector.inference.predictor import Predictor as Predictor
    from boltbox.detector.model.loss import LossOptions as LossOptions
    from boltbox.detector.model.network import NetworkOptions as NetworkOptions
    from boltbox.detector.training.lr_find import find_lr as find_lr
    from boltbox.detector.training.module import Detector as Detector
    from boltbox.detector.training.optimizer import OptimOptions as OptimOptions
    from boltbox.detector.weights.start import StartOptions as StartOptions


def _is_checkout(folder: Path) -> bool:
    project = folder / "pyproject.toml"
    if not project.is_file():
        return False
    return 'name = "boltbox"' in project.read_text(encoding="utf-8")


_HERE = Path(__file__).parent
if not (_HERE / "detector").is_dir() and _is_checkout(_HERE.parent):  # without symbolic links
    __path__.append(str(_HERE.parent))

PLACES = {
    "Augment": "detector.data.transforms.augment",
    "DetectionData": "detector.data.datamodule",
    "Detections": "detector.inference.detections",
    "Detector": "detector.training.module",
    "LossOptions": "detector.model.loss",
    "NetworkOptions": "detector.model.network",
    "OptimOptions": "detector.training.optimizer",
    "Predictor": "detector.inference.predictor",
    "StartOptions": "detector.weights.start",
    "callbacks": "callbacks",
    "export": "detector.commands.export.command",
    "find_lr": "detector.training.lr_find",
    "recipe": "callbacks.recipe",
    "save_hugging_face": "detector.data.hugging_face",
}
__all__ = list(PLACES)


def __getattr__(name: str) -> Any:
    if name not in PLACES:
        raise AttributeError(f"module 'boltbox' has no attribute {name!r}")
    module = importlib.import_module(f"boltbox.{PLACES[name]}")
    return module if name == "callbacks" else getattr(module, name)
