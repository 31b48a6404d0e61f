"""The shortest `fit` there is, for tests that add what they are about."""

from shlex import split

import cli

SMALL = split(
    """--data.image_size 64 --data.workers 0 --model.network.width_multiple 0.125
    --model.network.depth_multiple 0.1 --model.network.levels [5] --trainer.accelerator cpu
    --trainer.precision 32-true --trainer.enable_progress_bar false --autoanchor.enabled false
    --report.enabled false --pictures.enabled false --doctor.enabled false"""
)


def small_fit(data, run, *more):
    given = ["--data.dataset", str(data), "--run", str(run), "--data.batch_size", "8"]
    return ["fit"] + SMALL + given + list(more)


def train(data, run, options=""):
    cli.main(small_fit(data, run, *options.split()))
