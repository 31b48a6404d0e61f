"""Predicts with an ONNX file of `export`, without PyTorch and boltbox."""

import json
import math

import cv2
import numpy as np
import onnxruntime


class OnnxDetector:
    """Finds objects in one image at a time; threads may share it.

    Args:
        path: The file, of one size.
        threads: For one image; 0: as many as there are cores.
        conf: Minimum confidence, if the file has no suppression inside.
        iou: Overlap above which a box is dropped, if the file has no suppression inside.
    """

    def __init__(self, path: str, threads: int = 0, conf: float = 0.25, iou: float = 0.45) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self.session = onnxruntime.InferenceSession(
            path, options, providers=["CPUExecutionProvider"]
        )
        metadata = self.session.get_modelmeta().custom_metadata_map
        self.names = json.loads(metadata["names"])
        self.height, self.width = json.loads(metadata["image_size"])
        self.suppresses = json.loads(metadata["nms"]) is not None
        self.conf = conf
        self.iou = iou

    def __call__(self, bgr: np.ndarray) -> np.ndarray:
        """(H, W, 3) uint8 BGR, from cv2.imread -> (n, 6) x1, y1, x2, y2 in its pixels, score,
        class; best first."""
        height, width = bgr.shape[:2]
        gain = min(self.height / height, self.width / width)
        h = math.ceil(height * gain - 1e-6)
        w = math.ceil(width * gain - 1e-6)
        top = (self.height - h) // 2
        left = (self.width - w) // 2
        canvas = np.full((self.height, self.width, 3), 114, np.uint8)
        interpolation = cv2.INTER_AREA if gain < 1 else cv2.INTER_LINEAR
        scaled = cv2.resize(bgr, (w, h), interpolation=interpolation)
        canvas[top : top + h, left : left + w] = scaled
        images = canvas[None, :, :, ::-1].transpose(0, 3, 1, 2).astype(np.float32) / 255
        output = self.session.run(None, {"images": images})[0]
        rows = output[:, 1:] if self.suppresses else suppress(output[0], self.conf, self.iou)
        rows[:, :4] = (rows[:, :4] - (left, top, left, top)) * np.tile((width / w, height / h), 2)
        rows[:, :4] = rows[:, :4].clip(0, (width, height, width, height))
        return rows


def suppress(output: np.ndarray, conf: float = 0.25, iou: float = 0.45) -> np.ndarray:
    """What `--nms true` does inside the file.

    Args:
        output: (R, 5 + C) of one image, as in docs/export.md.
        conf: Minimum confidence.
        iou: Overlap above which the less confident of two boxes of a class is dropped.

    Returns:
        (n, 6) x1, y1, x2, y2, score, class.
    """
    scores = output[:, 4:5] * output[:, 5:]  # objectness x class score
    best = scores.max(1)
    classes = scores.argmax(1)
    kept = best > conf
    xywh = output[kept, :4]
    xywh[:, :2] -= xywh[:, 2:] / 2  # corner, width, height
    of_class = (best[kept].tolist(), classes[kept].tolist())
    keep = np.asarray(cv2.dnn.NMSBoxesBatched(xywh.tolist(), *of_class, conf, iou), np.int64)
    rows = np.column_stack((xywh, best[kept], classes[kept]))[keep]
    rows[:, 2:4] += rows[:, :2]
    return rows[np.argsort(-rows[:, 4], kind="stable")]
