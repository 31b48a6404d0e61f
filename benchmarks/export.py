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
from typing import Any

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


def make_video(images: list[Path], path: Path) -> None:
    """Each image once, on 640 x 480 pixels."""
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"MJPG"), 25, (640, 480))
    for image in images:
        writer.write(letterbox(read_image(image), (480, 640))[0][..., ::-1])
    writer.release()


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


def main(weights: str, images: str, files: str, repeats: int = 5, threads: int = 1) -> None:
    """Compare exported files with PyTorch.

    Args:
        weights: PyTorch's.
        images: Folder, whose first 12 become the video.
        files: Exported ones, separated by commas.
        repeats: Rounds.
        threads: Of PyTorch and the runtimes.
    """
    torch.set_num_threads(threads)
    looks: dict[str, Any] = {"PyTorch": Decoded(read_trained(weights).network)}
    for name in files.split(","):
        file = load_exported(name)
        looks[Path(name).name] = file
    with tempfile.TemporaryDirectory() as folder:
        video = Path(folder, "video.avi")
        make_video(find_images(images)[:12], video)
        rates = {}
        for name, look in looks.items():
            rates[name] = partial(frames_a_second, look, video, file.metadata.image_size)
        race(rates, repeats)


if __name__ == "__main__":
    auto_cli(main)
