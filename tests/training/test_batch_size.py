"""`--data.batch_size auto`: what it chooses is trained with, and a resume repeats it."""

from contextlib import contextmanager

import pytest
import torch
from made_networks import same
from made_runs import load, read, train

from boltbox.detector.model.network import YOLOv5

RESUMED = "--trainer.max_epochs 2 --ckpt_path last"


def fit(data, run, batch_size, more=""):
    """The weights."""
    limits = "--trainer.max_epochs 1 --trainer.limit_train_batches 2 --trainer.limit_val_batches 0"
    train(data, run, f"{limits} --data.batch_size {batch_size} {more}")
    return load(f"{run}/checkpoints/last.ckpt")["state_dict"]


def batch_size_of(run):
    return read(f"{run}/config.yaml")["data"]["batch_size"]


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


def test_what_a_gpu_holds(small_data, here, monkeypatch):
    """The largest power of two up to 24 images; what was tried leaves no trace in the weights."""
    weights = []
    for memory, number in ((1000, 16), (15, 8)):
        with monkeypatch.context() as patch:
            play_gpu(patch, memory)
            weights.append(fit(small_data, f"holds{memory}", "auto"))
        assert batch_size_of(f"holds{memory}") == number
    assert same(weights[-1], fit(small_data, "given", 8))
    fit(small_data, "holds1000", "auto", RESUMED)  # without the GPU
    assert batch_size_of("holds1000") == 16


@pytest.mark.parametrize("given", ["null", "auto"])
def test_a_short_run_has_small_batches(given, small_data, here, monkeypatch):
    """An epoch of 24 images has 3 batches of 8; its continuation too, although two have 3 of 16."""
    monkeypatch.setattr("boltbox.detector.training.schedule.FEWEST_STEPS", 3)
    for more in ("", RESUMED):
        fit(small_data, "run", given, more)
        assert batch_size_of("run") == 8
