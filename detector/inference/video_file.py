"""Writing a video."""

import os
from pathlib import Path

import cv2
import numpy as np

from boltbox.detector.system.errors import InputError


class VideoFile:
    """An mp4 file that appears under its name, whole, when it is closed. Until then it lies beside,
    with a dot before its name.

    Args:
        path: its name, with the suffix .mp4. fps: frames/s. size: (height, width) of the frames in
            pixels.

    Raises:
        InputError: OpenCV has no encoder for it.
    """

    def __init__(self, path: Path, fps: float, size: tuple[int, int]) -> None:
        self.path, self.size = path, size
        path.parent.mkdir(parents=True, exist_ok=True)
        self._beside = path.with_name(f".{path.name}.tmp.mp4")
        self._beside.unlink(missing_ok=True)  # a link would be followed
        height, width = (side + side % 2 for side in size)  # the encoder takes even sides only
        code = cv2.VideoWriter.fourcc(*"mp4v")
        self._writer = cv2.VideoWriter(str(self._beside), code, fps, (width, height))
        if not self._writer.isOpened():
            raise InputError(
                f"{path}: this OpenCV cannot write mp4 videos; use --images false, and labels"
                " or crops"
            )

    def write(self, frame: np.ndarray) -> None:
        """(H, W, 3) uint8 RGB; a frame of another size, as a stream may send, is scaled."""
        height, width = self.size
        if frame.shape[:2] != self.size:
            frame = cv2.resize(frame, (width, height), interpolation=cv2.INTER_AREA)
        if height % 2 or width % 2:
            frame = cv2.copyMakeBorder(frame, 0, height % 2, 0, width % 2, cv2.BORDER_REPLICATE)
        self._writer.write(frame[..., ::-1])

    def close(self) -> None:
        """May be called twice."""
        self._writer.release()
        if self._beside.exists():
            os.replace(self._beside, self.path)
