"""From evidence to probabilities, by errors that are made for the purpose.

A detector that has not seen the labels of an image knows nothing of errors in them. So errors are
made after its predictions: evidence for labels as found is compared with that for wrong labels.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_softmax, logit, softmax

from boltbox.detector.commands.review.evidence import Evidence, Found

SHARES = 4  # the first fields of Evidence
POOLED = 10  # labels of all classes that are added to those of a class
RIDGE = 2.0
STEPS = 200
BINS = 10
QUANTILE = 0.25
LEAST = 0.02  # share of the labels that is taken to be wrong in each way
MOST = 0.5  # in all ways


class Judge:
    """A multinomial logistic regression on evidence and its positive part, which tells labels as
    found from each kind of made errors. Its odds are ratios of densities. As some labels as found
    have the same errors, the lowest odds of "as found" among made errors are the share of these
    (after Elkan and Noto 2008); the lower quartile is used, as noise moves it less.

    Args:
        rows: (n, f) evidence.
        kinds: (n,) kind of the error that was made; 0: as found.
        count: number of kinds with 0.
    """

    def __init__(self, rows: np.ndarray, kinds: np.ndarray, count: int) -> None:
        weight = balance(kinds) * np.sum(kinds == 0)
        self.mean = np.average(rows, 0, weight)
        self.deviation = np.average((rows - self.mean) ** 2, 0, weight) ** 0.5 + 1e-3
        inputs = self._inputs(rows)
        wanted = np.eye(count)[kinds] * weight[:, None]

        def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
            table = flat.reshape(-1, count)
            logs = log_softmax(inputs @ table, 1)
            penalty = RIDGE * table
            penalty[0] = 0
            gradient = inputs.T @ (np.exp(logs) * weight[:, None] - wanted) + penalty
            return (penalty * table).sum() / 2 - (wanted * logs).sum(), gradient.ravel()

        start = np.zeros(inputs.shape[1] * count)
        fit = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": STEPS})
        self.table = fit.x.reshape(-1, count)
        self.share = np.zeros(count)
        odds = self._odds(rows)
        for kind in np.unique(kinds[kinds > 0]):
            lowest = np.quantile(1 / odds[kinds == kind, kind], QUANTILE)
            self.share[kind] = np.clip(lowest, LEAST, MOST / (count - 1))

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        """(n, f) evidence -> (n, k) probability of each kind; column 0: of none."""
        wrong = self._odds(rows) * self.share
        right = np.exp(-wrong.sum(1))
        wrong *= ((1 - right) / wrong.sum(1).clip(1e-9))[:, None]
        wrong[:, 0] = right
        return wrong

    def among_as_many(self, rows: np.ndarray) -> np.ndarray:
        """(n, f) -> (n, k) the same if each kind were as frequent as labels as found."""
        return softmax(self._inputs(rows) @ self.table, 1)

    def _inputs(self, rows: np.ndarray) -> np.ndarray:
        """(n, f) -> (n, 1 + 2 f): a constant, standardised evidence, and its positive part."""
        z = ((rows - self.mean) / self.deviation).clip(-4, 4)
        return np.concatenate((np.ones((len(z), 1)), z, z.clip(0)), 1)

    def _odds(self, rows: np.ndarray) -> np.ndarray:
        """(n, k): how much likelier evidence is for each kind of error than for labels as found."""
        values = self._inputs(rows) @ self.table
        return np.exp((values - values[:, :1]).clip(-30, 30))


def probabilities(
    found: Sequence[Found], made: Sequence[Found], fold_of: np.ndarray, usual: np.ndarray
) -> tuple[np.ndarray, list[np.ndarray]]:
    """The probability of each kind of error, in each fold by what the others teach.

    Args:
        found: labels, or boxes without one, as found.
        made: errors that were made.
        fold_of: (images,) their folds.
        usual: (c, f) evidence that is usual for each class, see `class_means`.

    Returns:
        (n, k), column 0: that there is none; and the `reliability`.
    """
    both = [*found, *made]
    kinds = np.array([each.kind for each in both], int)
    classes = np.array([each.class_index for each in both], int)
    fold = fold_of[np.array([each.image for each in both], int)]
    table = evidence_table(both) - usual[classes]
    count = int(kinds.max(initial=1)) + 1
    chances = np.eye(1, count).repeat(len(both), 0)
    balanced = chances.copy()
    for number in np.unique(fold):
        here = fold == number
        rest = ~here
        if len(np.unique(kinds[rest])) < 2:  # too few to leave some out
            rest |= True
        if kinds[rest].any() and not kinds[rest].all():
            judge = Judge(table[rest], kinds[rest], count)
            chances[here] = judge(table[here])
            balanced[here] = judge.among_as_many(table[here])
    return chances[: len(found)], reliability(balanced, kinds)


def reliability(chances: np.ndarray, kinds: np.ndarray) -> list[np.ndarray]:
    """Predicted and true shares of errors, in bins of predicted ones.

    Args:
        chances: (n, k) predicted, each kind as frequent as labels as found.
        kinds: (n,) true.

    Returns:
        For each kind from 1 (b, 2) predicted and true share.
    """
    weight = balance(kinds)
    lines = []
    for kind in range(1, chances.shape[1]):
        chance = chances[:, kind]
        bins = (chance * BINS).astype(int).clip(0, BINS - 1)
        sums = []
        for values in (chance, kinds == kind, np.ones(len(kinds))):
            sums.append(np.bincount(bins, weight * values, BINS))
        is_filled = sums[2] > 0
        lines.append(np.stack(sums[:2], 1)[is_filled] / sums[2][is_filled, None])
    return lines


def balance(kinds: np.ndarray) -> np.ndarray:
    """(n,) weights with which each kind has a sum of 1."""
    return 1 / np.bincount(kinds).clip(1)[kinds]


def class_means(labels: Sequence[Found], classes: int) -> np.ndarray:
    """(c, f) the mean evidence for the labels of each class; that of a class with few leans to the
    mean of all."""
    table = evidence_table(labels)
    kinds = np.array([label.class_index for label in labels], int)
    members = np.eye(classes)[kinds].T
    sums = members @ table + POOLED * table.mean(0)
    return sums / (members.sum(1, keepdims=True) + POOLED)


def evidence_table(found: Sequence[Found]) -> np.ndarray:
    """(n, f) evidence, shares as log odds."""
    rows = [each.evidence for each in found]
    table = np.array(rows, float).reshape(-1, len(Evidence._fields))
    table[:, :SHARES] = logit(table[:, :SHARES].clip(0.01, 0.99))
    return table
