"""`--data.batch_size auto`: what it chooses is trained with, and a resume repeats it."""

from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from made_runs import load, read
from small_fit import small_fit

import cli
from boltbox.detector.model.network import YOLOv5


def fit(data, batch_size, *more):
    """The weights; the run folder is the batch size."""
    limits = "--trainer.max_epochs 1 --trainer.limit_train_batches 2 --trainer.limit_val_batches 0"
    limits += f" --data.batch_size {batch_size}"
    cli.main(small_fit(data, Path(batch_size), *limits.split(), *more))
    return load(Path(batch_size, "checkpoints/last.ckpt"))["state_dict"]


def batch_size_of(run):
    return read(Path(run, "config.yaml"))["data"]["batch_size"]


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


def test_weights_are_those_of_the_number(small_data, here, monkeypatch):
    with monkeypatch.context() as patch:
        play_gpu(patch, 15)
        chosen = fit(small_data, "auto")
    assert batch_size_of("auto") == 8
    given = fit(small_data, "8")
    assert chosen.keys() == given.keys()
    for name, value in chosen.items():
        assert torch.equal(value, given[name])
    fit(small_data, "auto", "--trainer.max_epochs", "2", "--ckpt_path", "last")  # without the GPU
    assert batch_size_of("auto") == 8


@pytest.mark.parametrize("memory", [0, 1000])
def test_without_a_gpu_and_no_larger_than_the_data(memory, small_data, here, monkeypatch):
    """16, and the largest power of two up to 24 images."""
    if memory:
        play_gpu(monkeypatch, memory)
    fit(small_data, "auto")
    assert batch_size_of("auto") == 16
