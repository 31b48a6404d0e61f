"""Which images without labels a detector would learn most from."""

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from boltbox.detector.data.inputs.sources import Sources
from boltbox.detector.inference.predictor import Predictor

CONF = 0.05
BATCH = 16  # images
LEAST = 0.05  # of the uncertainty of the median image: also one in which nothing is found counts


def look_at(predictor: Predictor, files: Sequence[str]) -> tuple[np.ndarray, list[np.ndarray]]:
    """What a detector sees in images.

    Args:
        predictor: of one network, with CONF.
        files: the images, which can be read.

    Returns:
        (n, D) features of length 1: means of the neck's maps; and the detections of each image, see
        `Predictor.detect`.
    """
    assert predictor.network is not None
    means: list[np.ndarray] = []

    def keep(module: object, inputs: object, maps: Sequence[Tensor]) -> None:
        columns = [each.float().mean((2, 3)).cpu().numpy() for each in maps]
        means.extend(np.concatenate(columns, 1))

    hook = predictor.network.neck.register_forward_hook(keep)
    order: list[int] = []
    found: list[np.ndarray] = []
    batches = Sources(list(files), []).batches(predictor.inputs(tile_size=0), BATCH, 0)
    for batch, rows in predictor.predict_batches(batches, BATCH):
        order += batch.indices
        found += rows
    hook.remove()
    features = np.stack(means)[np.argsort(order)]
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    return features, [found[i] for i in np.argsort(order)]


def uncertainty(rows: Sequence[np.ndarray], class_counts: np.ndarray) -> np.ndarray:
    """How much is unsure in each image: the sum over detections of 4 p (1 - p), of rare classes
    more.

    Args:
        rows: detections of each image.
        class_counts: (C,) objects of each class among the labels.

    Returns:
        (n,).
    """
    weights = (1.0 + class_counts) ** -0.5
    weights /= weights.mean()
    sums = []
    for of_image in rows:
        p = of_image[:, 4]
        sums.append((4 * p * (1 - p) * weights[of_image[:, 5].astype(int)]).sum())
    return np.array(sums, np.float64)


def choose(
    labelled: np.ndarray, features: np.ndarray, unsure: np.ndarray, budget: int
) -> list[int]:
    """Images that are unsure, and unlike those with labels and one another: each time the one with
    the largest product of uncertainty and distance to the nearest image that is chosen or labelled.
    So of near copies one is chosen.

    Args:
        labelled: (m, D) features of the images with labels.
        features: (n, D) of those without.
        unsure: (n,) their uncertainty.
        budget: how many to choose.

    Returns:
        Their numbers, best first.
    """
    weight = unsure + LEAST * np.median(unsure) + 1e-9
    distance = 1 - (features @ labelled.T).max(1, initial=-1)
    chosen: list[int] = []
    for _ in range(min(budget, len(features))):
        i = int((weight * distance).argmax())
        chosen.append(i)
        distance = np.minimum(distance, 1 - features @ features[i])
        weight[i] = -1
    return chosen
