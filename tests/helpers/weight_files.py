"""Files of weights: what torch writes, and other people's read from their paths."""

import io

import torch

from boltbox.detector.system.torch_file import load_torch_file
from boltbox.detector.weights.yolov5 import ALLOWED, yolov5_weights


def saved(content, **options):
    file = io.BytesIO()
    torch.save(content, file, **options)
    return file.getvalue()


def read_yolov5(path):
    return yolov5_weights(path, load_torch_file(path, ALLOWED))
