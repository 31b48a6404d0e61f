"""What an early stop costs and saves: replays a patience on the curves of a recipe's csv file.

python -m benchmarks.patience benchmarks/recipes.csv default
"""

from pathlib import Path

import numpy as np
from jsonargparse import auto_cli

from benchmarks.tables import markdown
from boltbox.detector.system.csv_table import read_table

SHARES = (0.1, 0.2, 0.3)


def stopped_at(ap: np.ndarray, patience: int) -> int:
    """Number of validations after which a run ends.

    Args:
        ap: (n,) by validation.
        patience: Validations without a better one.
    """
    for i in range(patience, len(ap)):
        if ap[: i + 1].argmax() <= i - patience:
            return i + 1
    return len(ap)


def replay(file: Path, recipe: str) -> None:
    """Print a table: loss of the best AP and saved epochs, by patience as a share of the run.

    Args:
        file: As benchmarks.recipes writes it.
        recipe: Rows of this recipe.
    """
    curves = []
    for row in read_table(file):
        if row["recipe"] == recipe:
            curves.append(100 * np.array(row["AP"].split(), float))
    lines = [
        ["patience, of the epochs", "runs that end early", "worst loss of AP", "mean", "saved"]
    ]
    for share in SHARES:
        ends = [stopped_at(ap, max(round(share * len(ap)), 1)) for ap in curves]
        losses = [ap.max() - ap[:end].max() for ap, end in zip(curves, ends, strict=True)]
        saved = [1 - end / len(ap) for ap, end in zip(curves, ends, strict=True)]
        early = sum(share > 0 for share in saved)
        line = [f"{share:.0%}", f"{early} of {len(curves)}", f"{max(losses):.1f}"]
        lines.append(line + [f"{np.mean(losses):.2f}", f"{np.mean(saved):.1%}"])
    print("\n".join(markdown(lines)))


if __name__ == "__main__":
    auto_cli(replay, as_positional=True)
