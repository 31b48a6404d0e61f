"""Anchors: the default sets, how well anchors fit labels, and the search for better ones.

The measures are those of YOLOv5's AutoAnchor. How well a label and an anchor fit is their side
ratio: of the ratios r and 1 / r of both sides the smallest. They can be trained on each other if it
is above 1 / anchor_t. Sizes are width and height in pixels of the network's input.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

# Pixels w, h, w, h, w, h by level. Levels 3 to 5 and 3 to 6 are those of YOLOv5: k-means on COCO at
# 640 px and at 1280 px. Levels 2 and 7 are half of the next and twice the one before, because
# YOLOv5 has placeholders there that cannot train.
_P5 = {
    2: (5, 6, 8, 15, 16, 11),
    3: (10, 13, 16, 30, 33, 23),
    4: (30, 61, 62, 45, 59, 119),
    5: (116, 90, 156, 198, 373, 326),
}
_P6 = {
    2: _P5[2],
    3: (19, 27, 44, 40, 38, 94),
    4: (96, 68, 86, 152, 180, 137),
    5: (140, 301, 303, 264, 238, 542),
    6: (436, 615, 739, 380, 925, 792),
    7: (872, 1230, 1478, 760, 1850, 1584),
}
MIN_SIDE = 2.0  # pixels; labels with both sides below are too small to learn
# of the search, drawn at random; more do not change its result
MAX_LABELS = 100_000
MAX_CLUSTERED = 10_000
_BLOCK = 1 << 15  # labels at a time, so that intermediate arrays stay in the processor's cache


def default_anchors(levels: Sequence[int], per_level: int) -> list[list[float]]:
    """The anchors of networks that have not seen a dataset.

    Args:
        levels: of the network; level k has stride 2**k.
        per_level: another number than 3 interpolates the sides.

    Returns:
        One row of pixels w, h, w, h, ... per level.
    """
    table = _P6 if max(levels) > 5 else _P5
    anchors = np.array([table[k] for k in levels], float)
    if per_level == 3:
        return anchors.tolist()
    known = np.log(anchors.reshape(-1, 2))
    places = np.linspace(0, len(known) - 1, len(levels) * per_level)
    widths = np.interp(places, range(len(known)), known[:, 0])
    heights = np.interp(places, range(len(known)), known[:, 1])
    sides = np.exp(np.stack((widths, heights), 1))
    by_area = sides[np.argsort(sides.prod(1))]
    return by_area.reshape(len(levels), -1).round(1).tolist()


def in_level_order(anchors: np.ndarray, strides: Sequence[float]) -> np.ndarray:
    """(levels, A, 2) pixels; the levels are reversed if their mean areas fall while the strides
    rise, or the other way round."""
    areas = anchors.prod(-1).mean(-1)  # (levels,)
    if (areas[-1] - areas[0]) * (strides[-1] - strides[0]) < 0:
        return anchors[::-1].copy()
    return anchors


def side_ratios(sizes: np.ndarray, anchors: np.ndarray) -> np.ndarray:
    """(n, 2) sizes, (k, 2) anchors -> (n, k) side ratios in 0..1."""
    # (k, n): fast to reduce over anchors
    w = sizes[:, 0] / anchors[:, 0, None]
    h = sizes[:, 1] / anchors[:, 1, None]
    return np.minimum(np.minimum(w, 1 / w), np.minimum(h, 1 / h)).T


class AnchorFit(NamedTuple):
    """How well anchors fit labels.

    Attributes:
        bpr: best possible recall, the share of labels with an anchor above the threshold.
        aat: mean number of anchors above it per label.
        fitness: mean of the labels' best ratios; those not above the threshold count as 0.
    """

    bpr: float
    aat: float
    fitness: float

    def is_at_least(self, other: AnchorFit) -> bool:
        """Neither BPR nor fitness is lower."""
        return self.bpr >= other.bpr and self.fitness >= other.fitness


def measure(anchors: np.ndarray, sizes: np.ndarray, anchor_t: float = 4.0) -> AnchorFit:
    """How well (k, 2) anchors fit (n, 2) sizes, n > 0."""
    threshold = 1 / anchor_t
    sums = np.zeros(3)
    for start in range(0, len(sizes), _BLOCK):
        ratios = side_ratios(sizes[start : start + _BLOCK], anchors)  # (block, k)
        above = ratios > threshold
        best = ratios.max(1)
        fits = best > threshold
        sums += (fits.sum(), above.sum(), best[fits].sum(dtype=float))
    return AnchorFit(*(sums / len(sizes)).tolist())


def cluster(sizes: np.ndarray, k: int, rng: np.random.Generator) -> np.ndarray:
    """The centres of sizes, by SciPy's k-means on sides divided by their standard deviation.

    As in YOLOv5, the best of 30 starts from random labels is kept. A centre that loses all its
    labels is replaced by the label farthest from the others.

    Args:
        sizes: (n, 2), with at least k different sizes; neither side is the same for all.
        k: number of centres.
        rng: draws the labels.

    Returns:
        (k, 2) centres.
    """
    from scipy.cluster.vq import kmeans  # slow to import, and few commands need it

    spread = sizes.std(0)
    points = sizes / spread
    centres, _ = kmeans(_draw(points, MAX_CLUSTERED, rng), k, iter=30, rng=rng)
    while len(centres) < k:
        distances = ((points[:, None] - centres) ** 2).sum(2).min(1)
        centres = np.vstack((centres, points[distances.argmax()]))
    return centres * spread


def _draw(rows: np.ndarray, number: int, rng: np.random.Generator) -> np.ndarray:
    if len(rows) <= number:
        return rows
    return rows[rng.choice(len(rows), number, replace=False)]


def mutate(
    anchors: np.ndarray,
    sizes: np.ndarray,
    rng: np.random.Generator,
    generations: int,
    anchor_t: float,
    min_bpr: float,
) -> np.ndarray:
    """Evolve anchors: each generation multiplies random sides by random factors, and is kept if its
    score is higher.

    Args:
        anchors: (k, 2).
        sizes: (n, 2) of the labels.
        rng: draws the factors.
        generations: how many.
        anchor_t: see `measure`.
        min_bpr: the score is the fitness; what BPR lacks of this counts ten times.

    Returns:
        (k, 2), sorted by area.
    """

    def score(candidate: np.ndarray) -> float:
        fit = measure(candidate, sizes, anchor_t)
        return fit.fitness - 10 * max(min_bpr - fit.bpr, 0.0)

    best = anchors
    best_score = score(anchors)
    for _ in range(generations):
        factors = np.ones(anchors.shape)
        while (factors == 1).all():
            mutated = rng.random(anchors.shape) < 0.9
            factors = 1 + mutated * rng.random() * rng.normal(size=anchors.shape) * 0.1
            factors = factors.clip(0.3, 3.0)
        candidate = (best * factors).clip(min=MIN_SIDE)
        candidate_score = score(candidate)
        if candidate_score > best_score:
            best = candidate
            best_score = candidate_score
    return best[np.argsort(best.prod(1), kind="stable")]


def find_anchors(
    sizes: np.ndarray,
    k: int,
    seed: int = 0,
    generations: int = 1000,
    anchor_t: float = 4.0,
    min_bpr: float = 0.0,
) -> np.ndarray | None:
    """The same anchors for the same labels and seed.

    Args:
        sizes: (n, 2) of the labels.
        k: number of anchors.
        seed: of the search.
        generations: see `mutate`.
        anchor_t: see `measure`.
        min_bpr: see `mutate`.

    Returns:
        (k, 2), sorted by area; None: the labels have too few different sizes.
    """
    usable = np.isfinite(sizes).all(1) & (sizes > 0).all(1) & (sizes >= MIN_SIDE).any(1)
    labels = sizes[usable].astype(float)
    rng = np.random.default_rng((seed, 3))
    labels = _draw(labels, MAX_LABELS, rng)
    if len(np.unique(labels.round(1), axis=0)) < k or labels.std(0).min() < 1e-3:
        return None
    return mutate(cluster(labels, k, rng), labels, rng, generations, anchor_t, min_bpr)


class Choice(NamedTuple):
    """Which anchors to use.

    Attributes:
        anchors: (levels, A, 2) pixels.
        changed: whether they are new.
        reason: a sentence.
    """

    anchors: np.ndarray
    changed: bool
    reason: str


def search_anchors(
    anchors: np.ndarray,
    strides: Sequence[float],
    bases: Sequence[np.ndarray],
    anchor_t: float = 4.0,
    seed: int = 0,
    generations: int = 1000,
) -> Choice:
    """Search better anchors, and choose them only if neither BPR nor fitness falls.

    Args:
        anchors: (levels, A, 2) pixels.
        strides: of the levels.
        bases: (n, 2) sizes each, n > 0; those of the training labels last. New anchors are made for
            one of them, the first if possible, and must not be worse for any.
        anchor_t: see `measure`.
        seed: of the search.
        generations: see `mutate`.
    """
    old = anchors.reshape(-1, 2)
    before = [measure(old, sizes, anchor_t) for sizes in bases]
    was = before[-1]
    reason = "the labels have too few different sizes to make better ones"
    for basis, fit in zip(bases, before, strict=True):
        new = find_anchors(basis, len(old), seed, generations, anchor_t, fit.bpr)
        if new is None:
            continue
        after = [measure(new, sizes, anchor_t) for sizes in bases]
        better = all(map(AnchorFit.is_at_least, after, before))
        if better and after != before:
            now = after[-1]
            reason = (
                f"new ones, BPR {was.bpr:.4f} -> {now.bpr:.4f}, fitness {was.fitness:.4f} ->"
                f" {now.fitness:.4f}"
            )
            return Choice(in_level_order(new.reshape(anchors.shape), strides), True, reason)
        reason = "no others fit better in BPR and fitness"
    return Choice(anchors, False, f"kept, as {reason} (BPR {was.bpr:.4f})")
