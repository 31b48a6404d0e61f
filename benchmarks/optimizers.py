"""What an optimizer costs: training steps with each, turn about.

    python -m benchmarks.optimizers --size n --image_size 320

Forward, loss, backward, step of the optimizer as in benchmarks.step, in float32. A ratio is that of two steps of a round, the
second being the first optimizer's; the table has the median.
"""

import statistics
from typing import get_args

from benchmarks.step import arguments, seconds, step_of
from detector.training.optimizer import OptimizerName


def main() -> None:
    given = arguments(__doc__)
    names = get_args(OptimizerName)
    steps = [step_of("32-true", "eager", given.size, given.image_size, given.batch_size, name) for name in names]
    for step in steps:
        step()
    rounds = [[seconds(step) for step in steps] for _ in range(given.rounds)]
    print("| optimizer | a step, ms | ratio |\n|---|---|---|")
    for k, name in enumerate(names):
        median = statistics.median(found[k] for found in rounds)
        ratio = statistics.median(found[k] / found[0] for found in rounds)
        print(f"| {name} | {1000 * median:.0f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
