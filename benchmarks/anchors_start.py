"""The anchor search against the original's, over many seeds: SciPy's k-means from 30 random starts,
then the mutation as the specification describes it, written here a second time and with random
numbers of its own.

python -m benchmarks.anchors_start [seeds] [--ours]

It needs the golden label sets of $BOLTBOX_SHARED. --ours leaves the original's search out.
"""

import os
import sys
from pathlib import Path

import numpy as np
from scipy.cluster.vq import kmeans

from boltbox.detector.model.anchors import find_anchors, measure

GENERATIONS, ANCHOR_T = 1000, 4.0
OTHER_SEEDS = 10_000  # the two searches have no random numbers in common


def golden_sizes(name: str) -> np.ndarray:
    """(n, 2) label sizes in pixels of a golden set: tall, coco, small."""
    with np.load(Path(os.environ["BOLTBOX_SHARED"]) / f"golden/kmeans_{name}.npz") as file:
        shapes, labels = file["in_shapes_wh"][file["in_label_image"]], file["in_labels"]
    return labels[:, 3:] * shapes * 640 / shapes.max(1, keepdims=True)


def original_search(sizes: np.ndarray, n: int, seed: int) -> np.ndarray:
    rng = np.random.RandomState(seed)
    sizes = sizes[(sizes >= 2).any(1)]
    spread = sizes.std(0)
    anchors = kmeans(sizes / spread, n, iter=30, seed=rng)[0] * spread
    assert len(anchors) == n

    def fitness(tried: np.ndarray) -> float:
        ratio = sizes[:, None] / tried[None]
        best = np.minimum(ratio, 1 / ratio).min(2).max(1)
        return (best * (best > 1 / ANCHOR_T)).mean()

    highest = fitness(anchors)
    for _ in range(GENERATIONS):
        factors = np.ones((n, 2))
        while (factors == 1).all():
            factors = ((rng.rand(n, 2) < 0.9) * rng.rand() * rng.randn(n, 2) * 0.1 + 1).clip(
                0.3, 3.0
            )
        tried = (anchors * factors).clip(min=2.0)
        if (reached := fitness(tried)) > highest:
            anchors, highest = tried, reached
    return anchors


def mean_and_error(values: list[float]) -> tuple[float, float]:
    return float(np.mean(values)), float(np.std(values, ddof=1) / len(values) ** 0.5)


def main(seeds: int, ours_alone: bool) -> None:
    print(
        f"fitness over {seeds} seeds, {GENERATIONS} generations: mean, standard error; difference"
        " in standard errors of it"
    )
    for name in ("tall", "coco", "small"):
        sizes = golden_sizes(name)
        for n in (9, 12, 15):
            ours, theirs = [], []
            for seed in range(seeds):
                anchors, why = find_anchors(sizes, n, seed, GENERATIONS, ANCHOR_T)
                assert anchors is not None, why
                ours.append(measure(anchors, sizes, ANCHOR_T).fitness)
                if not ours_alone:
                    theirs.append(
                        measure(
                            original_search(sizes, n, OTHER_SEEDS + seed), sizes, ANCHOR_T
                        ).fitness
                    )
            line = f"| {name} | {n} | {{:.4f}} ± {{:.4f}} ".format(*mean_and_error(ours))
            if theirs:
                (a, da), (b, db) = mean_and_error(ours), mean_and_error(theirs)
                line += f"| {b:.4f} ± {db:.4f} | {(a - b) / np.hypot(da, db):+.2f} "
            print(line + "|", flush=True)


if __name__ == "__main__":
    arguments = [a for a in sys.argv[1:] if a != "--ours"]
    main(int(arguments[0]) if arguments else 60, "--ours" in sys.argv)
