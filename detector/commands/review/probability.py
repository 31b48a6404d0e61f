"""From evidence to probabilities, by errors that are made for the purpose.

A detector that has not seen the labels of an image knows nothing of errors in them. So errors are
made after its predictions: evidence for labels as found is compared with that for wrong labels.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from scipy.special import logit
from torch import Tensor
from torch.nn.functional import cross_entropy

from boltbox.detector.commands.review.evidence import Evidence, Found

SHARES = 4  # the first fields of Evidence
RIDGE = 0.2
STEPS = 200
BINS = 10
ENOUGH = 20  # labels of a class
QUANTILE = 0.25
LEAST = 0.02  # share of the labels that is taken to be wrong in each way
MOST = 0.5  # in all ways


class Judge:
    """A multinomial logistic regression on evidence and its positive part, which tells labels as
    found from each kind of made errors, all as frequent. Its odds are ratios of densities. As some
    labels as found have the same errors, the lowest odds of "as found" among made errors are the
    share of these (after Elkan and Noto 2008); the lower quartile is used, as noise moves it less.

    Args:
        rows: (n, f) evidence.
        kinds: (n,) kind of the error that was made; 0: as found.
        count: number of kinds with 0.
    """

    def __init__(self, rows: np.ndarray, kinds: np.ndarray, count: int) -> None:
        frequency = np.bincount(kinds, minlength=count)
        weight = 1 / frequency.clip(1)
        self.mean = np.average(rows, 0, weight[kinds])
        self.deviation = np.average((rows - self.mean) ** 2, 0, weight[kinds]) ** 0.5 + 1e-3
        inputs = self._inputs(rows)
        wanted = torch.from_numpy(kinds)
        weights = torch.from_numpy(weight)
        table = torch.zeros(inputs.shape[1], count, dtype=torch.float64, requires_grad=True)
        optimizer = torch.optim.LBFGS([table], max_iter=STEPS, line_search_fn="strong_wolfe")

        def loss() -> Tensor:
            optimizer.zero_grad()
            ridge = RIDGE / frequency[0] * table[1:].square().sum()
            value = cross_entropy(inputs @ table, wanted, weights) + ridge
            value.backward()
            return value

        optimizer.step(loss)
        self.table = table.detach()
        self.share = np.zeros(count)
        odds = self.odds(rows)
        for kind in np.unique(kinds[kinds > 0]):
            lowest = np.quantile(1 / odds[kinds == kind, kind], QUANTILE)
            self.share[kind] = np.clip(lowest, LEAST, MOST / (count - 1))

    def odds(self, rows: np.ndarray) -> np.ndarray:
        """(n, f) -> (n, k): how much likelier evidence is for each kind of error than for labels as
        found."""
        values = self._inputs(rows) @ self.table
        return np.exp((values - values[:, :1]).clip(-30, 30).numpy())

    def _inputs(self, rows: np.ndarray) -> Tensor:
        """(n, f) -> (n, 1 + 2 f): a constant, standardised evidence, and its positive part."""
        z = ((rows - self.mean) / self.deviation).clip(-4, 4)
        return torch.from_numpy(np.concatenate((np.ones((len(z), 1)), z, z.clip(0)), 1))


def evidence_table(found: Sequence[Found]) -> np.ndarray:
    """(n, f) evidence, shares as log-odds."""
    table = np.array([each.evidence for each in found], float).reshape(-1, len(Evidence._fields))
    table[:, :SHARES] = logit(table[:, :SHARES].clip(0.01, 0.99))
    return table


def class_means(labels: Sequence[Found], classes: int) -> np.ndarray:
    """(c, f) mean evidence for the labels of each class; for all labels, if it has fewer than
    ENOUGH: what it is usually confused with, its usual size, how well its boxes fit."""
    table = evidence_table(labels)
    kinds = np.array([label.class_index for label in labels], int)
    means = np.zeros((classes, table.shape[1]))
    for index in range(classes):
        members = table[kinds == index]
        if len(members) < ENOUGH:
            members = table
        means[index] = members.sum(0) / max(len(members), 1)
    return means


def probabilities(
    found: Sequence[Found], made: Sequence[Found], fold_of: np.ndarray, usual: np.ndarray
) -> tuple[np.ndarray, list[np.ndarray]]:
    """The probability of each kind of error, in each fold by what the others teach.

    Args:
        found: labels, or boxes without one, as found.
        made: errors that were made.
        fold_of: (images,) their folds.
        usual: (c, f) evidence of each class, see `class_means`.

    Returns:
        (n, k), column 0: that there is none; the others are in proportion to their probabilities.
        And the `reliability`.
    """
    both = [*found, *made]
    kinds = np.array([each.kind for each in both], int)
    fold = fold_of[np.array([each.image for each in both], int)]
    table = evidence_table(both) - usual[[each.class_index for each in both]]
    count = int(kinds.max(initial=1)) + 1
    odds = np.eye(1, count).repeat(len(both), 0)
    wrong = odds.copy()
    for number in np.unique(fold):
        here = fold == number
        rest = ~here
        if len(np.unique(kinds[rest])) < 2:  # too few to leave some out
            rest |= True
        if kinds[rest].any() and not kinds[rest].all():
            judge = Judge(table[rest], kinds[rest], count)
            odds[here] = judge.odds(table[here])
            wrong[here] = odds[here] * judge.share
    chances = wrong[: len(found)]
    chances[:, 0] = np.exp(-chances[:, 1:].sum(1))
    return chances, reliability(odds / odds.sum(1, keepdims=True), kinds)


def reliability(chances: np.ndarray, kinds: np.ndarray) -> list[np.ndarray]:
    """Predicted and true shares of errors, in bins of predicted ones.

    Args:
        chances: (n, k) predicted, each kind as frequent as labels as found.
        kinds: (n,) true.

    Returns:
        For each kind from 1 (b, 2) predicted and true share.
    """
    weight = 1 / np.bincount(kinds).clip(1)[kinds]
    lines = []
    for kind in range(1, chances.shape[1]):
        chance = chances[:, kind]
        bin_of = np.digitize(chance, np.linspace(0, 1, BINS + 1)[1:-1])
        total = np.bincount(bin_of, weight, BINS)
        predicted = np.bincount(bin_of, weight * chance, BINS)
        true = np.bincount(bin_of, weight * (kinds == kind), BINS)
        shares = np.stack((predicted, true), 1)[total > 0]
        lines.append(shares / total[total > 0, None])
    return lines
