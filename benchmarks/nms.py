"""Non-maximum suppression that stops early, against one full pass over all candidates of each
image.

    python -m benchmarks.nms

Both sides run in this process, turn about, on the same predictions of an untrained network (conf
0.001, 16 images at 640 px), and must give the same detections. The figure is the ratio of the
medians.
"""

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torchvision.ops import nms as suppress

from boltbox.detector.model import postprocess
from boltbox.detector.model.network import YOLOv5
from boltbox.detector.model.postprocess import NMSResult, nms

BATCH, SIDE, CONF, IOU, MAX_DET, ROUNDS = 16, 640, 0.001, 0.6, 300, 5


def full_pass(decoded: Tensor) -> list[NMSResult]:
    """`nms`, but every candidate goes through suppression, and the best `MAX_DET` are taken
    afterwards."""
    early = postprocess._suppress_best
    postprocess._suppress_best = lambda boxes, scores, iou, max_det: suppress(boxes, scores, iou)[
        :max_det
    ]
    try:
        return nms(decoded, CONF, IOU, MAX_DET)
    finally:
        postprocess._suppress_best = early


def predictions(num_classes: int, priors: bool) -> Tensor:
    """What an untrained YOLOv5n says of 16 images of noise; without `priors` its head starts
    unbiased, so that everything is a candidate."""
    torch.manual_seed(0)
    network = YOLOv5(num_classes, "n").eval()
    with torch.no_grad():
        for conv in network.head.convs if not priors else ():
            conv.bias.zero_()
        raw = [network(torch.rand(1, 3, SIDE, SIDE)) for _ in range(BATCH)]
        return network.decode([torch.cat(maps) for maps in zip(*raw, strict=True)])


def seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def main() -> None:
    print("| classes | head | candidates an image | full pass, s | stops early, s | ratio |")
    print("|---|---|---|---|---|---|")
    for num_classes, priors in ((1, True), (3, False), (20, False), (80, False)):
        decoded = predictions(num_classes, priors)
        candidates = (
            sum(
                len(postprocess._candidates(rows, CONF, num_classes > 1, None)[1])
                for rows in decoded
            )
            // BATCH
        )
        for ours, theirs in zip(nms(decoded, CONF, IOU, MAX_DET), full_pass(decoded), strict=True):
            assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True)), (
                "the same detections"
            )
        times = [
            (
                seconds(lambda d=decoded: full_pass(d)),
                seconds(lambda d=decoded: nms(d, CONF, IOU, MAX_DET)),
            )
            for _ in range(ROUNDS)
        ]
        slow, fast = (statistics.median(t) for t in zip(*times, strict=True))
        head = "as it starts" if priors else "without priors"
        print(
            f"| {num_classes} | {head} | {candidates} | {slow:.2f} | {fast:.3f} |"
            f" {slow / fast:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
