"""Which statistics of batch norm validation uses, against a plain loop over the batches."""

import lightning as L
import pytest
import torch
from made_options import made_detector
from torch import nn

from boltbox.callbacks import EMA, AutoAnchor, Pictures, Report, recipe
from boltbox.callbacks.ema import EXPONENT
from boltbox.detector.data.datamodule import DetectionData
from boltbox.detector.training.schedule import power_decay

FIRST = "backbone.stem.bn"


class Seen(L.Callback):
    """(mean, unbiased variance) of what the first batch norm was given in each training batch."""

    def __init__(self):
        self.batches = []

    def on_fit_start(self, trainer, pl_module):
        pl_module.network.register_buffer("cells", torch.zeros(2), persistent=False)  # a cache

        def look(norm, inputs):
            if norm.training:
                values = inputs[0].detach().double().permute(1, 0, 2, 3).flatten(1)
                self.batches.append((values.mean(1), values.var(1)))

        pl_module.network.get_submodule(FIRST).register_forward_pre_hook(look)


@pytest.mark.parametrize("averaged", [True, False])
def test_statistics(averaged, small_data, tmp_path):
    """With EMA each step moves the average towards the batch's own statistics, not towards running
    ones that lag behind; without it they are running ones."""
    L.seed_everything(0)
    seen = Seen()
    average = EMA(enabled=averaged)
    data = DetectionData(str(small_data), image_size=32, batch_size=4, workers=0)
    small = {"width_multiple": 0.125, "depth_multiple": 0.1, "nominal_batch_size": 4}
    detector = made_detector(data.names, **small)
    stem = detector.network.get_submodule("backbone.stem")
    detector.network.shared = nn.ModuleList([stem.bn, nn.Linear(1, 1)])  # by two names each
    detector.network.shared[1].weight = stem.conv.weight
    quiet = {"enable_progress_bar": False, "precision": "32-true", "accelerator": "cpu"}
    parts = [Report(enabled=False), Pictures(enabled=False), AutoAnchor(enabled=False)]
    callbacks = [seen, average] + parts
    options = recipe(run=tmp_path / "run", max_epochs=2, callbacks=callbacks, **quiet)
    trainer = L.Trainer(**options, limit_val_batches=1)
    trainer.fit(detector, data)
    for group in trainer.optimizers[0].param_groups:
        assert len(set(group["params"])) == len(group["params"])
    mean = torch.zeros(())
    var = torch.ones(())
    for update, (batch_mean, batch_var) in enumerate(seen.batches, 1):
        kept = power_decay(update, EXPONENT) if averaged else 0.9
        mean = kept * mean + (1 - kept) * batch_mean
        var = kept * var + (1 - kept) * batch_var
    assert len(seen.batches) > 8
    network = detector.ema if averaged else detector.network
    norm = network.get_submodule(FIRST)
    torch.testing.assert_close(norm.running_mean.double(), mean, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(norm.running_var.double(), var, rtol=1e-4, atol=1e-6)
