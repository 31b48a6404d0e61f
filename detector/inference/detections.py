"""What `Detector.predict` gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from boltbox.detector.inference.exported import need


@dataclass(frozen=True, eq=False)
class Detections:
    """The objects found in one image, best first.

    xyxy (n, 4) float32: left, top, right, bottom in pixels of the image as it was given (a file's
    after EXIF rotation) · confidence (n,) float32 in 0..1 · class_id (n,) int64 · names: the
    detector's class names, by class_id.
    """

    xyxy: np.ndarray
    confidence: np.ndarray
    class_id: np.ndarray
    names: list[str]

    @classmethod
    def of(cls, rows: np.ndarray, names: list[str]) -> Detections:
        """rows: (n, 6) x1, y1, x2, y2, score, class."""
        return cls(rows[:, :4], rows[:, 4], rows[:, 5].astype(np.int64), names)

    def __len__(self) -> int:
        return len(self.xyxy)

    def to_supervision(self) -> Any:
        """The same as `supervision.Detections`, with the names in `data["class_name"]`.

        Raises:
            InputError: the package supervision is not installed.
        """
        supervision = need("supervision")
        names = np.array([self.names[i] for i in self.class_id], dtype=str)
        return supervision.Detections(
            xyxy=self.xyxy,
            confidence=self.confidence,
            class_id=self.class_id,
            data={"class_name": names},
        )
