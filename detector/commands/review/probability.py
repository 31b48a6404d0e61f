"""From evidence to probabilities, by errors that are made for the purpose.

A detector that has not seen the labels of an image knows nothing about errors in them. So errors
can be made after its predictions, in any number: evidence for labels as found is compared with that
for labels made wrong.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_softmax

RIDGE = 2.0
QUANTILE = 0.25
LEAST = 0.02  # share of the labels that is taken to be wrong in each way
MOST = 0.5
STEPS = 200


def probabilities(
    found: np.ndarray, made: np.ndarray, kinds: np.ndarray, fold: np.ndarray, fold_made: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Probability of each kind of error, for labels as found and for made ones; those of a fold by
    the others.

    Args:
        found: (n, f) evidence for labels as found.
        made: (m, f) evidence for made errors.
        kinds: (m,) their kinds, from 1.
        fold: (n,) of the labels.
        fold_made: (m,) of the made errors.

    Returns:
        (n, k) and (m, k), column 0 for labels that are right.
    """
    count = int(kinds.max(initial=0)) + 1
    of_found = np.eye(1, count).repeat(len(found), 0)
    of_made = np.eye(1, count).repeat(len(made), 0)
    for k in np.unique(fold):
        others = fold != k
        others_made = fold_made != k
        if others.any() and others_made.any():
            judge = Judge(found[others], made[others_made], kinds[others_made], count)
            of_found[fold == k] = judge(found[fold == k])
            of_made[fold_made == k] = judge(made[fold_made == k])
    return of_found, of_made


class Judge:
    """A multinomial logistic regression on evidence and its positive part, which tells labels as
    found (0) from made errors of each kind. Its odds are ratios of densities. As labels as found
    hold errors of the same kinds, the lowest odds of "as found" among the made errors are the share
    of these errors (after Elkan and Noto 2008); the lower quartile is used, as noise moves it less.

    Args:
        found: (n, f) evidence for labels as found.
        made: (m, f) evidence for made errors.
        kinds: (m,) their kinds, from 1.
        count: number of kinds with 0.
    """

    def __init__(self, found: np.ndarray, made: np.ndarray, kinds: np.ndarray, count: int) -> None:
        rows = np.concatenate((found, made))
        target = np.concatenate((np.zeros(len(found), int), kinds))
        number = np.bincount(target, minlength=count)
        weight = (len(found) / number.clip(1))[target]  # kinds count alike
        self.mean = np.average(rows, 0, weight)
        self.deviation = np.sqrt(np.average((rows - self.mean) ** 2, 0, weight)) + 1e-3
        inputs = self._inputs(rows)
        wanted = np.eye(count)[target]

        def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
            table = flat.reshape(-1, count)
            logs = log_softmax(inputs @ table, 1)
            penalty = RIDGE * np.vstack((table[:1] * 0, table[1:]))
            gradient = inputs.T @ ((np.exp(logs) - wanted) * weight[:, None]) + penalty
            value = (penalty * table).sum() / 2 - (weight[:, None] * wanted * logs).sum()
            return value, gradient.ravel()

        start = np.zeros(inputs.shape[1] * count)
        options = {"maxiter": STEPS}
        self.table = minimize(loss, start, jac=True, method="L-BFGS-B", options=options).x
        self.table = self.table.reshape(-1, count)
        self.share = np.zeros(count)
        odds = self._odds(made)
        for kind in np.unique(kinds):
            lowest = np.quantile(1 / odds[kinds == kind, kind], QUANTILE)
            self.share[kind] = np.clip(lowest, LEAST, MOST)

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        """(n, f) evidence -> (n, k) probability of each kind."""
        wrong = self._odds(rows) * self.share
        right = np.exp(-wrong.sum(1))
        wrong *= ((1 - right) / wrong.sum(1).clip(1e-9))[:, None]
        wrong[:, 0] = right
        return wrong

    def _inputs(self, rows: np.ndarray) -> np.ndarray:
        """(n, f) -> (n, 1 + 2 f): a constant, standardised evidence, and its positive part."""
        z = ((rows - self.mean) / self.deviation).clip(-4, 4)
        return np.concatenate((np.ones((len(z), 1)), z, z.clip(0)), 1)

    def _odds(self, rows: np.ndarray) -> np.ndarray:
        """(n, k): how much likelier evidence is for each kind of error than for labels as found."""
        values = self._inputs(rows) @ self.table
        return np.exp((values - values[:, :1]).clip(-30, 30))
