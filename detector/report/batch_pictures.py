"""A batch as pictures with boxes: pixels, labels and detections of the images as the network sees
them."""

import numpy as np

from boltbox.detector.data.sample import Batch
from boltbox.detector.model.boxes import cxcywhn_to_xyxy

CONF = 0.25  # detections below are not drawn


def pixels(batch: Batch, most: int) -> np.ndarray:
    """(n, H, W, 3) uint8 RGB of the first images of a batch."""
    images = batch.images[:most].float().cpu().numpy().transpose(0, 2, 3, 1)
    return np.ascontiguousarray((images * 255).round().astype(np.uint8))


def label_rows(batch: Batch) -> list[np.ndarray]:
    """Per image the labels as rows for `draw_boxes`."""
    targets, (height, width) = batch.targets.cpu().numpy(), batch.images.shape[2:]
    rows = []
    for i in range(len(batch.images)):
        own = targets[targets[:, 0] == i]
        rows.append(
            np.column_stack(
                (cxcywhn_to_xyxy(own[:, 2:], width, height), np.full(len(own), np.nan), own[:, 1])
            )
        )
    return rows


def prediction_rows(batch: Batch, found: list[np.ndarray]) -> list[np.ndarray]:
    """Per image the detections above CONF as rows for `draw_boxes`.

    Args:
        found: per image (n, 6) x1, y1, x2, y2 in pixels of the image file, score, class.
    """
    kept = []
    for rows, letterbox in zip(found, batch.letterboxes, strict=True):
        assert letterbox is not None
        sure = rows[rows[:, 4] > CONF].copy()
        sure[:, :4] = (
            sure[:, :4] * ((letterbox.gain_x, letterbox.gain_y) * 2)
            + (letterbox.pad_x, letterbox.pad_y) * 2
        )
        kept.append(sure)
    return kept
