"""Other people's files of weights, read from their paths."""

from pathlib import Path

from boltbox.detector.weights.torch_file import load_torch_file
from boltbox.detector.weights.yolov5 import ALLOWED, Weights, yolov5_weights


def read_yolov5(path: Path) -> Weights:
    return yolov5_weights(path, load_torch_file(path, ALLOWED))
