"""Frames a second of each export format beside PyTorch, on a video, in one run; the formats take
turns.

    python -m benchmarks.export yolov5n.pt IMAGES best.onnx,best_openvino

A video is made of the images and read back. Each frame is decoded, letterboxed to the
file's size and looked at, batch 1; non-maximum suppression follows. The files have one fixed size.
"""

import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from jsonargparse import auto_cli
from torch import Tensor

from benchmarks.tables import race
from boltbox.detector.commands.export.graph import Decoded
from boltbox.detector.data.file_list import find_images
from boltbox.detector.data.images import read_image
from boltbox.detector.data.inputs.sources import Video
from boltbox.detector.data.transforms.letterbox import letterbox
from boltbox.detector.inference.formats import load_exported
from boltbox.detector.model.postprocess import nms
from boltbox.detector.report.video_file import VideoFile
from boltbox.detector.weights.trained import read_trained

FRAMES = 12


@torch.no_grad()
def frames_a_second(look: Callable[[Tensor], Tensor], video: Path, shape: tuple[int, int]) -> float:
    begin = time.perf_counter()
    for _, frame in Video(str(video)):
        image = torch.from_numpy(letterbox(frame, shape)[0])
        batch = image.permute(2, 0, 1)[None].float() / 255
        nms(look(batch), conf=0.25, iou=0.45, multi_label=False)
    return FRAMES / (time.perf_counter() - begin)


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
        video = Path(folder, "video.mp4")
        writer = VideoFile(video, 25, (480, 640))
        for image in find_images(images)[:FRAMES]:
            writer.write(letterbox(read_image(image), (480, 640))[0])
        writer.close()
        rates = {}
        for name, look in {"PyTorch": Decoded(read_trained(weights).network), **exported}.items():
            rates[name] = partial(frames_a_second, look, video, size)
        race(rates)


if __name__ == "__main__":
    auto_cli(main)
