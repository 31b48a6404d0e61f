"""Frames a second of each export format beside PyTorch, on a video, in one run; the formats take
turns.

    python -m benchmarks.export yolov5n.pt IMAGES best.onnx,best_openvino

A video is made of the images with OpenCV and read back. Each frame is decoded, letterboxed to the
file's size and looked at, batch 1; non-maximum suppression follows. The files have one fixed size.
"""

import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import torch
from jsonargparse import auto_cli
from torch import Tensor

from benchmarks.tables import race
from boltbox.detector.commands.export.graph import Decoded
from boltbox.detector.data.images import find_images, read_image
from boltbox.detector.data.transforms.letterbox import letterbox
from boltbox.detector.inference.exported import load_exported
from boltbox.detector.model.postprocess import nms
from boltbox.detector.weights.trained import read_trained


@torch.no_grad()
def frames_a_second(look: Callable[[Tensor], Tensor], video: Path, shape: tuple[int, int]) -> float:
    capture = cv2.VideoCapture(str(video))
    frames = 0
    begin = time.perf_counter()
    while True:
        more, frame = capture.read()
        if not more:
            return frames / (time.perf_counter() - begin)
        image = np.ascontiguousarray(letterbox(frame, shape)[0][..., ::-1])
        batch = torch.from_numpy(image).permute(2, 0, 1)[None].float() / 255
        nms(look(batch), conf=0.25, iou=0.45, multi_label=False)
        frames += 1


def main(weights: str, images: str, files: str, threads: int = 1) -> None:
    """Compare exported files with PyTorch.

    Args:
        weights: PyTorch's.
        images: Folder, whose first 12 become the video.
        files: Exported ones, separated by commas.
        threads: Of PyTorch and the runtimes.
    """
    torch.set_num_threads(threads)
    exported = {Path(name).name: load_exported(name) for name in files.split(",")}
    (size,) = {file.metadata.image_size for file in exported.values()}
    with tempfile.TemporaryDirectory() as folder:
        video = Path(folder, "video.avi")
        code = cv2.VideoWriter.fourcc(*"MJPG")
        writer = cv2.VideoWriter(str(video), code, 25, (640, 480))
        for image in find_images(images)[:12]:
            writer.write(letterbox(read_image(image), (480, 640))[0][..., ::-1])
        writer.release()
        rates = {}
        for name, look in {"PyTorch": Decoded(read_trained(weights).network), **exported}.items():
            rates[name] = partial(frames_a_second, look, video, size)
        race(rates)


if __name__ == "__main__":
    auto_cli(main)
