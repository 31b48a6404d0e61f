"""How well pretrained weights detect the objects of a dataset before they are trained on them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import lightning as L
import numpy as np
import torch

from boltbox.detector.data.datamodule import DetectionData
from boltbox.detector.data.inputs.evaluation_input import EvaluationInput, examples
from boltbox.detector.data.sample import Batch, finish_on_device
from boltbox.detector.evaluation.class_metrics import class_metrics
from boltbox.detector.evaluation.matching import match
from boltbox.detector.model.boxes import cxcywh_to_xyxy
from boltbox.detector.model.network import YOLOv5
from boltbox.detector.model.postprocess import nms
from boltbox.detector.system.rank_zero import print_fact
from boltbox.detector.training.optimizer import FINETUNE_LR, StartingPoint

EXAMPLES = 64  # images that are scored
# measured in benchmarks/optimizers.md
MIN_OBJECTNESS = 0.1  # below it, weights train best like random ones
MIN_MAP50 = 0.2  # from it on, they train best at a lower learning rate


class PretrainedScore(NamedTuple):
    """How well a network detects the objects of labelled images.

    Attributes:
        objectness: Mean over the images of the objectness of their top-k boxes, k being the
            image's object count; 1 if there are no objects.
        map50: mAP50 of the detections; classes that the network was not trained on count as 0.
    """

    objectness: float
    map50: float


def choose_starting_point(
    trainer: L.Trainer,
    network: YOLOv5,
    data: DetectionData,
    known_classes: Sequence[int],
    may_be_new: bool,
) -> StartingPoint:
    """Look at 64 training images: what a training of pretrained weights on these data starts from.
    Prints a line about it.

    Args:
        trainer: Of the training; all its processes get the same answer.
        network: With the weights. It is moved to the Trainer's device.
        data: Set up for a fit.
        known_classes: Numbers of the classes that the weights were trained on.
        may_be_new: Weights that find no objects may be trained like new ones.
    """
    inputs = EvaluationInput(data.image_size, data.stride)
    batches = examples(data.images["train"], inputs, EXAMPLES)
    network.to(trainer.strategy.root_device)
    score = score_pretrained(network, batches, known_classes)
    score = trainer.strategy.broadcast(score)
    if score.objectness < MIN_OBJECTNESS and may_be_new:
        print_fact(
            "weights",
            f"they do not recognise these objects (objectness {score.objectness:.3f}, below"
            f" {MIN_OBJECTNESS:g}): training as from scratch",
        )
        return StartingPoint.SCRATCH
    if score.map50 >= MIN_MAP50:
        print_fact(
            "weights",
            f"they already recognise these objects (mAP50 {score.map50:.2f}): lower learning"
            f" rate, lr0 {FINETUNE_LR:g}",
        )
        return StartingPoint.FINETUNE
    return StartingPoint.PRETRAINED


@torch.no_grad()
def score_pretrained(
    network: YOLOv5, batches: Iterable[Batch], known_classes: Sequence[int]
) -> PretrainedScore:
    """Score a network on labelled images.

    Args:
        network: Afterwards it is in training mode.
        batches: Of one image with objects each, as `examples` gives them.
        known_classes: Numbers of the classes that it was trained on.
    """
    device = next(network.parameters()).device
    objectness: list[float] = []
    results: list[Sequence[np.ndarray]] = []  # per image, what class_metrics takes
    network.eval()
    for batch in batches:
        batch = finish_on_device(batch, device)
        decoded = network.head.decode(network(batch.images)).cpu()
        height, width = batch.images.shape[2:]
        objects = batch.targets.float().cpu()
        true_boxes = cxcywh_to_xyxy(objects[:, 2:] * torch.tensor([width, height, width, height]))
        labels = objects[:, 1].long().numpy()
        one_class = torch.cat((decoded[..., :5], torch.ones_like(decoded[..., :1])), 2)
        (boxes,) = nms(one_class)
        objectness.append(float(boxes.scores[: len(labels)].sum()) / len(labels))
        (detections,) = nms(decoded, multi_label=False)
        predicted = detections.classes.numpy()
        matches = match(detections.boxes.numpy(), predicted, true_boxes.numpy(), labels)
        results.append((matches, detections.scores.numpy(), predicted, labels))
    network.train()
    if not results:
        return PretrainedScore(1.0, 0.0)
    of_all_images = map(np.concatenate, zip(*results, strict=True))
    metrics = class_metrics(*of_all_images)
    ap50 = metrics.ap[:, 0] * np.isin(metrics.classes, known_classes)
    return PretrainedScore(float(np.mean(objectness)), float(ap50.mean()))
