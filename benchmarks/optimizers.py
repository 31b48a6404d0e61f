"""What an optimizer costs: training steps with each, turn about.

    python -m benchmarks.optimizers --size n --image_size 320

Forward, loss, backward, step of the optimizer as in benchmarks.step, in float32. A ratio is that of
two steps of a round, the second being the first optimizer's; the table has the median.
"""

from typing import get_args

from benchmarks.step import arguments, step_of, turn_about
from boltbox.detector.training.optimizer import OptimizerName


def main() -> None:
    given = arguments(__doc__)
    names = get_args(OptimizerName)
    steps = [
        step_of("32-true", "eager", given.size, given.image_size, given.batch_size, name)
        for name in names
    ]
    for step in steps:
        step()
    print("| optimizer | a step, ms | ratio |\n|---|---|---|")
    for name, (milliseconds, ratio) in zip(names, turn_about(steps, given.rounds), strict=True):
        print(f"| {name} | {milliseconds:.0f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
