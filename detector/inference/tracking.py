"""Tracking: which detections of a video are the same object."""

from __future__ import annotations

import numpy as np

from boltbox.detector.data.sample import SourceImage
from boltbox.detector.system.errors import need


class Tracker:
    """ByteTrack (https://arxiv.org/abs/2110.06864), by the package trackers: a tracker per video.
    The class of an object may change from frame to frame.

    Args:
        begins: Minimum confidence of a detection that begins a track; others only continue one.

    Raises:
        InputError: The package is not installed.
    """

    def __init__(self, begins: float) -> None:
        self._trackers = need("trackers", "track")
        self._supervision = need("supervision", "track")
        self._begins = begins
        self._video = ""

    def follow(self, frame: SourceImage, rows: np.ndarray) -> np.ndarray:
        """Follow the objects to the next frame.

        Args:
            frame: Frames of a video come in order, and videos one after the other.
            rows: (n, 6) detections: x1, y1, x2, y2 in pixels, score, class.

        Returns:
            (m, 7), in the same order, those that belong to a track, with its number, from 1 in each
            video. A track has a number from its second detection on.
        """
        if frame.name != self._video:
            self._video = frame.name
            self._tracker = self._trackers.ByteTrackTracker(
                frame_rate=frame.fps,
                track_activation_threshold=self._begins,
                high_conf_det_threshold=self._begins,
            )
        detections = self._supervision.Detections(
            rows[:, :4],
            confidence=rows[:, 4],
            class_id=np.arange(len(rows)),  # the tracker returns another order
        )
        found = self._tracker.update(detections)
        numbers = np.zeros(len(rows))
        if len(found):
            numbers[found.class_id] = found.tracker_id + 1
        return np.column_stack((rows, numbers))[numbers > 0]
