"""YOLOv5's recipe from configs/yolov5.yaml, for tests that compare with it."""

from pathlib import Path
from typing import Any

import yaml

from boltbox.callbacks import EMA

FILE = Path(__file__).parents[2] / "configs/yolov5.yaml"
_CONTENT = yaml.safe_load(FILE.read_text())
MODEL: dict[str, Any] = {name: value for name, value in _CONTENT["model"].items() if name != "size"}


def yolov5_average() -> EMA:
    return EMA(**_CONTENT["ema"])
