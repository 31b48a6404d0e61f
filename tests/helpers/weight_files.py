"""Other people's files of weights, read from their paths."""

from boltbox.detector.system.torch_file import load_torch_file
from boltbox.detector.weights.yolov5 import ALLOWED, yolov5_weights


def read_yolov5(path):
    return yolov5_weights(path, load_torch_file(path, ALLOWED))
