"""A range test and Lightning's Tuner: what they find is what the next fit trains with, and nothing
else of the search stays."""

from pathlib import Path

import lightning as L
import numpy as np
import pytest
from made_runs import column, read
from test_python import SMALL, equal, options, small_detector

import boltbox
from boltbox.detector.data.datamodule import DetectionData
from boltbox.detector.training import lr_find
from boltbox.detector.training.module import Detector


def make(data, run, epochs=1, lr0=None):
    """Of an epoch of three batches."""
    L.seed_everything(0)
    module = DetectionData(str(data), **SMALL)
    limits = {"limit_train_batches": 1.0, "limit_val_batches": 0}
    trainer = L.Trainer(**options(run=run, max_epochs=epochs, **limits))
    return trainer, small_detector(module, lr0=lr0), module


def config(run):
    return read(Path(run, "config.yaml"))


def test_a_range_test(small_data, here, monkeypatch):
    """A step with each of the rates; a tenth of that with the lowest mean loss is trained with, as
    by Detector(lr0=...). A search too short finds none."""
    losses = []
    rates = []
    training_step = Detector.training_step

    def record(self, batch, batch_idx):
        output = training_step(self, batch, batch_idx)
        losses.append(float(output["loss"]))
        rates.extend(set(column(self.trainer.optimizers[0].param_groups, "lr")))
        return output

    monkeypatch.setattr(lr_find, "WIDTH", 3)
    trainer, detector, data = make(small_data, "found", epochs=10)
    assert boltbox.find_lr(trainer, detector, steps=4, datamodule=data) is None
    assert detector.lr == 0.008
    with monkeypatch.context() as patch:
        patch.setattr(Detector, "training_step", record)
        found = boltbox.find_lr(trainer, detector, steps=16, datamodule=data)
    assert (rates[0], rates[15]) == pytest.approx((0.00008, 0.8))
    means = np.convolve(losses[:16], np.full(3, 1 / 3), "valid")
    assert found == detector.lr == pytest.approx(rates[means.argmin() + 1] / 10)
    trainer.fit_loop.max_epochs = 1
    trainer.fit(detector, data)
    assert config("found")["model"]["optim"]["lr0"] == found
    trainer, detector, data = make(small_data, "given", lr0=found)
    trainer.fit(detector, data)
    assert equal("found", "given")
