"""A checkpoint, pictures, and `predict` with them as a user types it."""

import copy
import shutil
from pathlib import Path

import lightning as L
import pytest
import torch
from made_options import made_detector
from made_runs import type_line

from boltbox.detector.checkpoint.writer import AtomicCheckpointIO

NAMES = ["disc", "ring", "star", "triangle", "cross"]


@pytest.fixture(name="checkpoint", scope="module")
def checkpoint_file(tmp_path_factory):
    """Of a detector that has learned next to nothing, so that it finds something everywhere."""
    path = tmp_path_factory.mktemp("trained") / "last.ckpt"
    torch.manual_seed(0)
    detector = made_detector(
        NAMES, width_multiple=0.125, depth_multiple=0.1, levels=[4, 5], image_size=64
    )
    with torch.no_grad():
        for conv in detector.network.head.convs:
            conv.weight.mul_(40)
    detector.ema = copy.deepcopy(detector.network)
    trainer = L.Trainer(
        accelerator="cpu", logger=False, enable_checkpointing=False, plugins=[AtomicCheckpointIO()]
    )
    trainer.strategy.connect(detector)
    trainer.save_checkpoint(path)
    return path


def predict_line(checkpoint, source, options="", run="out"):
    line = f"predict --ckpt_path {checkpoint} --source {source} --run {run} --workers 0"
    return f"{line} --device cpu --conf 0.0005 --max_det 20 {options}"


def predict(*given, **options):
    """The run folder."""
    type_line(predict_line(*given, **options))
    return Path(options.get("run", "out"))


@pytest.fixture(name="pictures")
def pictures_folder(small_data, here):
    shutil.copytree(small_data.parent / "images/val", here / "pictures")
    return here / "pictures"
