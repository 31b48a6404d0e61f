"""How many of a data set's objects a network finds before it is trained on them."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torchvision.ops import box_iou

from boltbox.detector.data.sample import Batch, finish_on_device
from boltbox.detector.inference.predictor import dtype_of
from boltbox.detector.model.boxes import cxcywh_to_xyxy
from boltbox.detector.model.network import YOLOv5
from boltbox.detector.model.postprocess import nms


@torch.no_grad()
def known_share(network: YOLOv5, batches: Iterable[Batch]) -> float:
    """Share of the objects, whatever their class, that one of an image's 300 boxes of the highest
    objectness overlaps by half; 1 where there is no object.

    Args:
        network: its mode is the same afterwards.
        batches: of labelled images, as `examples` gives them.
    """
    found, objects, device = 0, 0, next(network.parameters()).device
    training = network.training
    network.eval()
    for batch in batches:
        batch = finish_on_device(batch._replace(images=batch.images.to(device)))
        raw = [maps.float() for maps in network(batch.images.to(dtype_of(network)))]
        boxes = network.decode(raw)[..., :5]
        alone = torch.cat((boxes, torch.ones_like(boxes[..., :1])), 2)  # one class, which is sure
        height, width = batch.images.shape[2:]
        sides = boxes.new_tensor([width, height, width, height])
        for i, result in enumerate(nms(alone)):
            labels = batch.targets[batch.targets[:, 0] == i, 2:].to(boxes) * sides
            overlaps = box_iou(cxcywh_to_xyxy(labels), result.boxes)
            found += int((overlaps > 0.5).any(1).sum())
            objects += len(labels)
    network.train(training)
    return found / objects if objects else 1.0
