"""What a network knows of a data set's objects before it is trained on them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from boltbox.detector.data.sample import Batch, finish_on_device
from boltbox.detector.evaluation.class_metrics import class_metrics, match
from boltbox.detector.inference.predictor import dtype_of
from boltbox.detector.model.boxes import cxcywh_to_xyxy
from boltbox.detector.model.network import YOLOv5
from boltbox.detector.model.postprocess import nms


class Known(NamedTuple):
    """objectness: mean over the images of that of the likeliest boxes, as many as there are
    objects; 1 where there is none · map50: mAP50 of the detections, the AP50 of a class that the
    network was not trained on being 0."""

    objectness: float
    map50: float


@torch.no_grad()
def known_objects(network: YOLOv5, batches: Iterable[Batch], trained: Sequence[int]) -> Known:
    """Look at images with their labels.

    Args:
        network: its mode is the same afterwards.
        batches: of labelled images, as `examples` gives them.
        trained: classes that it was trained on.
    """
    device, training = next(network.parameters()).device, network.training
    sure, matches, scores, classes, true_classes = [], [], [], [], [np.zeros(0, np.int64)]
    network.eval()
    for batch in batches:
        batch = finish_on_device(batch._replace(images=batch.images.to(device)))
        raw = [maps.float() for maps in network(batch.images.to(dtype_of(network)))]
        decoded = network.decode(raw).cpu()
        alone = torch.cat((decoded[..., :5], torch.ones_like(decoded[..., :1])), 2)  # one class
        height, width = batch.images.shape[2:]
        sides = torch.tensor([width, height, width, height])
        both = zip(nms(alone), nms(decoded, multi_label=False), strict=True)
        for i, (any_class, own) in enumerate(both):
            rows = batch.targets[batch.targets[:, 0] == i].float().cpu()
            boxes, numbers = cxcywh_to_xyxy(rows[:, 2:] * sides), rows[:, 1].long().numpy()
            if len(rows):
                sure.append(float(any_class.scores[: len(rows)].sum()) / len(rows))
            labels = own.classes.numpy()
            matches.append(match(own.boxes.numpy(), labels, boxes.numpy(), numbers))
            scores.append(own.scores.numpy())
            classes.append(labels)
            true_classes.append(numbers)
    network.train(training)
    objects = np.concatenate(true_classes)
    if not len(objects):
        return Known(1.0, 0.0)
    matched, score, label = map(np.concatenate, (matches, scores, classes))
    metrics = class_metrics(matched, score, label, objects)
    ap50 = metrics.ap[:, 0] * np.isin(metrics.classes, trained)
    return Known(float(np.mean(sure)), float(ap50.mean()))
