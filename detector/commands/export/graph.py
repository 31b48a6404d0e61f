"""The graph of an exported file: the fused network with decoding, and optionally suppression.

No Python code depends on the values of tensors here, so that tracing records everything.
"""

import torch
from torch import Tensor, nn
from torchvision.ops import nms as suppress

from boltbox.detector.inference.exported import Suppression
from boltbox.detector.model.boxes import cxcywh_to_xyxy
from boltbox.detector.model.network import YOLOv5

COLUMNS = 32  # of the plane where boxes are kept apart


class Decoded(nn.Module):
    """Images float32 (B, 3, H, W) in 0..1 -> float32 (B, R, 5 + C) as in `Head.decode`: cx, cy, w,
    h in pixels, objectness, class scores. YOLOv5's exported files have this layout too.

    Args:
        network: a trained network; the graph has a fused copy.
        half: weights and maps in float16; input and output stay float32.
    """

    def __init__(self, network: YOLOv5, half: bool = False) -> None:
        super().__init__()
        self.network = network.fused()
        self.dtype = torch.float16 if half else torch.float32
        self.network.to(self.dtype)
        # small, and boxes are decoded in float32
        for name, buffer in network.head.named_buffers(recurse=False):
            setattr(self.network.head, name, buffer.clone())

    def forward(self, images: Tensor) -> Tensor:
        return self.network.head.decode(self.network(images.to(self.dtype)))


class Suppressed(nn.Module):
    """Images float32 (B, 3, H, W) in 0..1 -> float32 (n, 7), best first: image (0 to B - 1), x1,
    y1, x2, y2 in pixels of the network's input, score, class.

    Equal to `boltbox.detector.model.postprocess.nms` with multi_label=False, over all images and
    classes at once: each has its own field of a plane. In a long row, float32 would round distant
    boxes.

    Args:
        decoded: the network.
        options: of the suppression.
    """

    def __init__(self, decoded: Decoded, options: Suppression) -> None:
        super().__init__()
        self.decoded = decoded
        self.options = options

    def forward(self, images: Tensor) -> Tensor:
        conf, iou, max_det, agnostic = self.options
        decoded = self.decoded(images)  # (B, R, 5 + C)
        scores, classes = (decoded[..., 5:] * decoded[..., 4:5]).max(-1)  # (B, R)
        image, row = ((scores > conf) & (decoded[..., 4] > conf)).nonzero(as_tuple=True)
        boxes = cxcywh_to_xyxy(decoded[image, row, :4])
        scores = scores[image, row]
        classes = classes[image, row]
        group = image if agnostic else image * decoded.shape[2] + classes
        corners = torch.cat((boxes, boxes.new_zeros(1, 4)))  # there may be no box
        side = corners.max() - corners.min() + 1  # of a field: no box of it reaches into another
        column = group % COLUMNS * side
        line = group // COLUMNS * side
        # best first
        kept = suppress(boxes + torch.stack((column, line, column, line), 1), scores, iou)
        each = torch.arange(images.shape[0], device=images.device)
        is_of_image = (image[kept].unsqueeze(1) == each).long()  # (n, B)
        rank = (is_of_image.cumsum(0) * is_of_image).sum(1)  # within its image, from 1
        kept = kept[rank <= max_det]
        parts = (
            image[kept].float().unsqueeze(1),
            boxes[kept],
            scores[kept].unsqueeze(1),
            classes[kept].float().unsqueeze(1),
        )
        return torch.cat(parts, 1)
