"""Depthwise convolutions in float32 against bfloat16, on a CPU that has it: steps of a detector on
a timm backbone, turn about.

    python -m benchmarks.depthwise --backbone timm/tf_efficientnet_lite0 --image_size 320

Forward, loss and backward under autocast, with and without boltbox.detector.model.depthwise, on
random images. A ratio is that of two steps of a round; the table has the median.
"""

import argparse
from unittest import mock

import torch

from benchmarks.step import step_of, turn_about


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backbone", default="timm/tf_efficientnet_lite0")
    parser.add_argument("--image_size", type=int, default=320)
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(1)
    step = step_of(
        "bf16-mixed", "eager", "n", given.image_size, given.batch_size, backbone=given.backbone
    )

    def all_in_bfloat16() -> None:
        with mock.patch("boltbox.detector.model.depthwise.is_slow", return_value=False):
            step()

    ways = {"all in bfloat16": all_in_bfloat16, "slow depthwise ones in float32": step}
    for way in ways.values():
        way()
    print("| convolutions | a step, ms | ratio |\n|---|---|---|")
    for name, (milliseconds, ratio) in zip(
        ways, turn_about(list(ways.values()), given.rounds), strict=True
    ):
        print(f"| {name} | {milliseconds:.0f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
