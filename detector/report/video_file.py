"""Writing a video."""

import os
from pathlib import Path

import cv2
import numpy as np

from boltbox.detector.system.atomic_file import make_folder, sync_files, sync_folder
from boltbox.detector.system.errors import InputError


class VideoFile:
    """An mp4 file that appears under its name, complete, when it is closed. Until then it has
    another name in the same folder, which begins with a dot.

    Args:
        path: Its name, with the suffix .mp4.
        fps: Frames per second.
        size: (height, width) of the frames in pixels.

    Raises:
        InputError: OpenCV has no encoder for it.
    """

    def __init__(self, path: Path, fps: float, size: tuple[int, int]) -> None:
        height, width = size
        self.path = path
        self._size = (width + width % 2, height + height % 2)  # the encoder takes only even sides
        make_folder(path.parent)
        self._beside = path.with_name(f".{path.name}.tmp.mp4")
        self._beside.unlink(missing_ok=True)  # a link would be followed
        code = cv2.VideoWriter.fourcc(*"mp4v")
        if fps > 65:  # MPEG-4 counts in at most 65535ths of a second
            fps = round(fps, 1)
        self._writer = cv2.VideoWriter(str(self._beside), code, fps, self._size)
        if not self._writer.isOpened():
            raise InputError(
                f"{path}: this OpenCV cannot write mp4 videos; use --images false, and labels"
                " or crops"
            )

    def write(self, frame: np.ndarray) -> None:
        """(H, W, 3) uint8 RGB; a frame of another size, as a stream may send, is scaled.

        Args:
            frame: (H, W, 3) uint8 RGB.
        """
        if frame.shape[1::-1] != self._size:
            frame = cv2.resize(frame, self._size, interpolation=cv2.INTER_AREA)
        self._writer.write(frame[..., ::-1])

    def close(self) -> None:
        """May be called twice."""
        self._writer.release()
        if self._beside.exists():
            sync_files([self._beside])
            os.replace(self._beside, self.path)
            sync_folder(self.path.parent)
