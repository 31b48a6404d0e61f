"""Anchors: the default sets, how well a set fits labels, and finding a better one.

The measures are those of YOLOv5's AutoAnchor. A label and an anchor fit by their side ratio, the
smaller of r and 1 / r over both sides; they can be trained on each other if it is above 1 /
anchor_t. Sizes are width and height in pixels of the input.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

# Pixels w, h, w, h, w, h by level, found by k-means on COCO at 640 px (levels 3-5) and 1280 px
# (levels 3-6). Levels 2 and 7 are ours: half of the next, twice the one before, because YOLOv5
# ships placeholders there that cannot train.
_P5 = {
    2: (5, 6, 8, 15, 16, 11),
    3: (10, 13, 16, 30, 33, 23),
    4: (30, 61, 62, 45, 59, 119),
    5: (116, 90, 156, 198, 373, 326),
}
_P6 = {
    3: (19, 27, 44, 40, 38, 94),
    4: (96, 68, 86, 152, 180, 137),
    5: (140, 301, 303, 264, 238, 542),
    6: (436, 615, 739, 380, 925, 792),
    7: (872, 1230, 1478, 760, 1850, 1584),
}
LEAST_SIDE = 2.0  # pixels; labels with both sides below are too small to be learned
# drawn at random for the search; more do not move its result
MOST_LABELS = 100_000
MOST_CLUSTERED = 10_000  # of these in the clustering from which it starts
_BLOCK = 1 << 15  # labels at a time, so that intermediate arrays stay in the cache


def default_anchors(levels: Sequence[int], per_level: int = 3) -> list[list[float]]:
    """Anchors in pixels for these levels, a row a level: w, h, w, h, ...; other numbers than 3 lie
    on the line through them."""
    table = _P6 if max(levels) > 5 else _P5
    rows = [table[k] if k in table else _P5[k] for k in levels]
    if per_level == 3:
        return [[float(v) for v in row] for row in rows]
    known = np.log(np.array(rows, float).reshape(-1, 2))
    places = np.linspace(0, len(known) - 1, len(levels) * per_level)
    sides = np.exp([np.interp(places, range(len(known)), column) for column in known.T]).T
    return sides[np.argsort(sides.prod(1))].reshape(len(levels), -1).round(1).tolist()


def in_level_order(anchors: np.ndarray, strides: Sequence[float]) -> np.ndarray:
    """(levels, A, 2) pixels, with the order of the levels reversed if their mean areas run against
    the strides."""
    areas = anchors.prod(-1).mean(-1)  # (levels,)
    against = (areas[-1] - areas[0]) * (strides[-1] - strides[0]) < 0
    return anchors[::-1].copy() if against else anchors


def side_ratios(sizes: np.ndarray, anchors: np.ndarray) -> np.ndarray:
    """(n, 2) sizes, (k, 2) anchors -> (n, k) side ratios in 0..1."""
    # (k, n): fast to reduce over anchors
    w, h = (sizes[:, axis] / anchors[:, axis, None] for axis in (0, 1))
    return np.minimum(np.minimum(w, 1 / w), np.minimum(h, 1 / h)).T


class AnchorFit(NamedTuple):
    """bpr: best possible recall, the share of labels with an anchor above the threshold · aat: mean
    number of anchors above it · fitness: mean of the labels' best ratios, those at or below the
    threshold counting 0 · mean_best: their plain mean."""

    bpr: float
    aat: float
    fitness: float
    mean_best: float


def measure(anchors: np.ndarray, sizes: np.ndarray, anchor_t: float = 4.0) -> AnchorFit:
    """How well (k, 2) anchors fit (n, 2) sizes, n > 0."""
    sums = np.zeros(4)
    for start in range(0, len(sizes), _BLOCK):
        ratios = side_ratios(sizes[start : start + _BLOCK], anchors)
        best, above = ratios.max(1), ratios > 1 / anchor_t
        fits = best > 1 / anchor_t
        sums += fits.sum(), above.sum(), best[fits].sum(dtype=float), best.sum(dtype=float)
    return AnchorFit(*(sums / len(sizes)).tolist())


def cluster(sizes: np.ndarray, k: int, rng: np.random.Generator, starts: int = 30) -> np.ndarray:
    """(k, 2) centres of (n, 2) sizes, by SciPy's k-means on sides divided by their standard
    deviation: of some starts from k random labels the one with the least mean distance, as in
    YOLOv5. A centre that loses all its labels on the way is replaced by the label farthest from the
    others.

    There must be at least k different sizes, and neither side may be the same for all.
    """
    from scipy.cluster.vq import kmeans  # here, because it takes its time and few commands need it

    spread = sizes.std(0)
    points = sizes / spread
    centres, _ = kmeans(_drawn(points, MOST_CLUSTERED, rng), k, iter=starts, rng=rng)
    while len(centres) < k:
        nearest = ((points[:, None] - centres) ** 2).sum(2).min(1)
        centres = np.vstack((centres, points[nearest.argmax()]))
    return centres * spread


def _drawn(rows: np.ndarray, most: int, rng: np.random.Generator) -> np.ndarray:
    return rows[rng.choice(len(rows), most, replace=False)] if len(rows) > most else rows


def mutate(
    anchors: np.ndarray,
    sizes: np.ndarray,
    rng: np.random.Generator,
    generations: int = 1000,
    anchor_t: float = 4.0,
    least_bpr: float = 0.0,
) -> np.ndarray:
    """(k, 2) anchors that fit better: each generation multiplies random sides by random factors and
    is kept if the fitness rises; BPR below `least_bpr` weighs ten times as much as fitness. Sorted
    by area."""

    def score(tried: np.ndarray) -> float:
        fit = measure(tried, sizes, anchor_t)
        return fit.fitness - 10 * max(least_bpr - fit.bpr, 0.0)

    best, highest = anchors, score(anchors)
    for _ in range(generations):
        factors = np.ones(anchors.shape)
        while (factors == 1).all():
            chosen = rng.random(anchors.shape) < 0.9
            factors = (1 + chosen * rng.random() * rng.normal(size=anchors.shape) * 0.1).clip(
                0.3, 3.0
            )
        tried = (best * factors).clip(min=LEAST_SIDE)
        reached = score(tried)
        if reached > highest:
            best, highest = tried, reached
    return best[np.argsort(best.prod(1), kind="stable")]


def find_anchors(
    sizes: np.ndarray,
    k: int,
    seed: int = 0,
    generations: int = 1000,
    anchor_t: float = 4.0,
    least_bpr: float = 0.0,
) -> tuple[np.ndarray | None, str]:
    """(k, 2) anchors for (n, 2) sizes, sorted by area, the same for the same seed; or None and the
    reason."""
    usable = sizes[
        np.isfinite(sizes).all(1) & (sizes > 0).all(1) & (sizes >= LEAST_SIDE).any(1)
    ].astype(float)
    if len(usable) < k:
        return (
            None,
            f"{len(usable)} labels of at least {LEAST_SIDE:g} px are too few for {k} anchors",
        )
    rng = np.random.default_rng((seed, 3))
    drawn = _drawn(usable, MOST_LABELS, rng)
    different = len(np.unique(drawn.round(1), axis=0))
    if different < k:
        return None, f"the labels have only {different} different sizes, too few for {k} anchors"
    if (drawn.std(0) < 1e-3).any():
        return None, f"all labels have the same {'width' if drawn[:, 0].std() < 1e-3 else 'height'}"
    return mutate(cluster(drawn, k, rng), drawn, rng, generations, anchor_t, least_bpr), ""


class Choice(NamedTuple):
    """anchors: (levels, A, 2) pixels to use · changed: they are new · reason: a sentence · warning:
    something was wrong."""

    anchors: np.ndarray
    changed: bool
    reason: str
    warning: bool = False


def choose_anchors(
    anchors: np.ndarray,
    strides: Sequence[float],
    labels: np.ndarray,
    seen: np.ndarray | None = None,
    anchor_t: float = 4.0,
    bpr_limit: float = 0.98,
    generations: int = 1000,
    seed: int = 0,
    force: bool = False,
) -> Choice:
    """Keep the anchors if they fit; else look for better ones, and take them only if neither BPR
    nor fitness falls.

    Args:
        anchors: (levels, A, 2) pixels. strides: of the levels.
        labels: (n, 2) sizes of the training labels, n > 0.
        seen: (m, 2) sizes after the augmentation; new anchors are made for these and must be no
            worse for them either.
        bpr_limit: anchors whose best possible recall is above are kept.
        force: look for better ones however well they fit.
    """
    old = anchors.reshape(-1, 2)
    bpr = measure(old, labels, anchor_t).bpr
    if bpr > bpr_limit and not force:
        return Choice(
            anchors, False, f"kept, as they fit the labels (BPR {bpr:.4f} > {bpr_limit:g})"
        )
    bases = [labels] if seen is None or not len(seen) else [seen, labels]
    before = [measure(old, sizes, anchor_t) for sizes in bases]
    reason, warning = "", True
    for basis, fit in zip(bases, before, strict=True):
        found, why = find_anchors(basis, len(old), seed, generations, anchor_t, fit.bpr)
        if found is None:
            reason = reason or f"kept, as better ones cannot be made: {why}"
            continue
        after = [measure(found, sizes, anchor_t) for sizes in bases]
        pairs = list(zip(before, after, strict=True))
        better = all(new.bpr >= was.bpr and new.fitness >= was.fitness for was, new in pairs)
        if better and after[0] != before[0]:
            was, new = pairs[-1]  # of the labels
            reason = (
                f"new ones, BPR {was.bpr:.4f} -> {new.bpr:.4f}, fitness {was.fitness:.4f} ->"
                f" {new.fitness:.4f}"
            )
            return Choice(in_level_order(found.reshape(anchors.shape), strides), True, reason)
        reason = "kept, as no others fit better in BPR and fitness"
        warning = bpr <= bpr_limit
    return Choice(anchors, False, f"{reason} (BPR {bpr:.4f})", warning)
