"""`--data.batch_size auto`: what it chooses is trained with, and a resume repeats it."""

from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from made_networks import same
from made_runs import load, read, train

from boltbox.detector.model.network import YOLOv5

RESUMED = "--trainer.max_epochs 2 --ckpt_path last"


def folder_of(batch_size):
    return Path(f"batch-{batch_size}")


def fit(data, batch_size, more=""):
    """The weights."""
    limits = "--trainer.max_epochs 1 --trainer.limit_train_batches 2 --trainer.limit_val_batches 0"
    train(data, folder_of(batch_size), f"{limits} --data.batch_size {batch_size} {more}")
    return load(folder_of(batch_size) / "checkpoints/last.ckpt")["state_dict"]


def batch_size_of(batch_size):
    return read(folder_of(batch_size) / "config.yaml")["data"]["batch_size"]


def play_gpu(monkeypatch, images):
    """The processor plays a GPU whose memory holds so many images in training."""

    @contextmanager
    def limited(device):
        yield True

    def limited_forward(self, batch, *more):
        if self.training and len(batch) > images:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(self, batch, *more)

    forward = YOLOv5.forward
    monkeypatch.setattr(YOLOv5, "forward", limited_forward)
    monkeypatch.setattr("boltbox.detector.training.batch_size.limited_memory", limited)


def check_chosen(data, left_open, number):
    """Weights are those of the number."""
    assert same(fit(data, left_open), fit(data, number))


@pytest.mark.parametrize(("memory", "number"), [(15, "8"), (1000, "16")])
def test_what_a_gpu_holds(memory, number, small_data, here, monkeypatch):
    """The largest power of two up to 24 images."""
    with monkeypatch.context() as patch:
        play_gpu(patch, memory)
        check_chosen(small_data, "auto", number)
    fit(small_data, "auto", RESUMED)  # without the GPU
    assert batch_size_of("auto") == int(number)


@pytest.mark.parametrize("given", ["null", "auto"])
def test_a_short_run_has_small_batches(given, small_data, here, monkeypatch):
    """An epoch of 24 images has 3 batches of 8; its continuation too, although two have 3 of 16."""
    monkeypatch.setattr("boltbox.detector.training.schedule.FEWEST_STEPS", 3)
    check_chosen(small_data, given, "8")
    fit(small_data, given, RESUMED)
    assert batch_size_of(given) == 8
