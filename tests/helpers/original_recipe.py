"""YOLOv5's recipe from configs/yolov5.yaml, for tests that compare with it."""

from pathlib import Path

import yaml

from boltbox.callbacks import EMA

FILE = Path(__file__).parents[2] / "configs/yolov5.yaml"
_CONTENT = yaml.safe_load(FILE.read_text())
# without their groups
MODEL = {}
for _group in _CONTENT["model"].values():
    MODEL |= _group
del MODEL["size"]


def yolov5_average():
    return EMA(**_CONTENT["ema"])
