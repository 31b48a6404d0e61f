"""Frames a second of each export format beside PyTorch, on a video, in one run; the formats take
turns.

    python -m benchmarks.export --weights yolov5n.pt --images FOLDER --files best.onnx best_openvino
    ...

A video is made of the images with OpenCV and read back. Each frame is decoded, letterboxed to the
file's size and looked at, batch 1; non-maximum suppression follows. The files have one fixed size.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import torch
from torch import Tensor

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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--weights", required=True)
    parser.add_argument("--images", required=True)
    parser.add_argument("--files", nargs="+", required=True)
    parser.add_argument("--frames", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        video = Path(folder, "video.avi")
        make_video(find_images(options.images)[: options.frames], video)
        for threads in options.threads:
            torch.set_num_threads(threads)
            network = Decoded(read_trained(options.weights).network)
            files = {Path(f).name: load_exported(f) for f in options.files}
            (shape,) = {f.metadata.image_size for f in files.values()}
            rates: dict[str, list[float]] = {}
            for repeat in range(options.repeats + 1):  # the first round warms up
                for name, look in [("PyTorch", network), *files.items()]:
                    rate = frames_a_second(look, video, shape)
                    if repeat:
                        rates.setdefault(name, []).append(rate)
            print(
                f"\nthreads {threads}, {shape[0]}x{shape[1]}, {options.frames} frames, median of"
                f" {options.repeats}"
            )
            for name, all_rates in rates.items():
                ratios = [
                    mine / torchs for mine, torchs in zip(all_rates, rates["PyTorch"], strict=True)
                ]
                low = min(ratios)
                middle = statistics.median(ratios)
                high = max(ratios)
                print(
                    f"{name:<28}{statistics.median(all_rates):7.1f} /s   x{middle:.2f}  ({low:.2f}"
                    f" to {high:.2f})"
                )


if __name__ == "__main__":
    main()
