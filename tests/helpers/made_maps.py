"""Maps and targets of random numbers, with YOLOv5's strides and anchors, for losses and
assigners."""

import torch

from boltbox.detector.model.network import YOLOv5

STRIDES = [8, 16, 32]


def random_targets(rng, n, images=3, classes=4):
    """(n, 6)"""
    targets = torch.rand(n, 6, generator=rng)
    targets[:, 0] = (targets[:, 0] * images).floor()
    targets[:, 1] = (targets[:, 1] * classes).floor()
    targets[:, 4:] = targets[:, 4:] ** 2 + 0.01
    return targets


def raw_maps(rng, classes=4):
    shapes = [(8, 16), (4, 8), (2, 4)]
    return [torch.randn(3, 3, h, w, 5 + classes, generator=rng) for h, w in shapes]


def the_anchors():
    return YOLOv5(1, width_multiple=0.01).head.anchors
