"""The accumulation window, clipping and mixed precision under Lightning, against a plain loop; and
what the recipe consists of."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from lightning.pytorch.plugins import MixedPrecision
from made_runs import load, train
from original_recipe import yolov5_average
from plain_loop import CLIP, EPOCHS, Steps, batches, plain_loop, small_detector, spawn
from torch.utils.data import DataLoader

from boltbox.callbacks import Warmup
from boltbox.callbacks.ema import EMA, EXPONENT
from boltbox.detector.data.cache.images import ResizedImages
from boltbox.detector.data.dataset_file import DatasetFile
from boltbox.detector.data.sampler import Key
from boltbox.detector.data.transforms.augment import Augment, TrainSamples


def scaler():
    return torch.amp.GradScaler("cpu", init_scale=1024.0)


@pytest.mark.parametrize(
    ("half", "literal"),
    [(False, False), (True, True)],
    ids=["float32", "literal, float16 with scaler"],
)
def test_training_equals_a_plain_loop_to_the_last_bit(half, literal):
    network, average, expected_steps = plain_loop(
        small_detector(literal=literal, levels=[5]), scaler() if half else None, literal
    )
    module = small_detector(literal=literal, levels=[5])
    steps = Steps()
    trainer = spawn(
        1,
        max_epochs=EPOCHS,
        gradient_clip_val=CLIP,
        plugins=[MixedPrecision("16-mixed", "cpu", scaler())] if half else None,
        callbacks=[Warmup(warmup_epochs=0.5), yolov5_average(), steps],
    )
    trainer.fit(module, DataLoader(batches(), batch_size=None))
    assert steps.taken == expected_steps
    for ours, expected in ((module.network, network), (module.ema, average)):
        for k, v in ours.state_dict().items():
            assert torch.equal(v, expected[k])


def test_the_average_has_its_width():
    """The weights of the updates' values in the average: each update averages a network that is 1
    for one step and 0 for the others. Their standard deviation is 5 % of the updates."""
    steps = 400
    callback = EMA()
    average = torch.zeros(steps, dtype=torch.double)
    current = torch.zeros(steps, dtype=torch.double)
    callback._average = [average]
    callback._current = [current]
    for step in range(steps):
        current.zero_()
        current[step] = 1
        callback._update(torch.optim.SGD([current], 0.1))
    numbers = torch.arange(1, steps + 1)
    mean = (average * numbers).sum()
    assert float(average.sum()) == pytest.approx(1)
    width = float((average * (numbers - mean) ** 2).sum().sqrt() / steps)
    assert width == pytest.approx(0.05, rel=0.05)
    assert pytest.approx(EXPONENT + 1) == 0.05**2 * (EXPONENT + 2) ** 2 * (EXPONENT + 3)


def test_steps_that_fit_the_run(small_data, here):
    """24 images in batches of 8: a step takes one batch, as the run is short; at a nominal 64 it
    takes 24, all that an epoch has."""
    for nominal, steps in (("auto", 3), ("64", 1)):
        options = f"--model.optim.nominal_batch_size {nominal} --warmup.warmup_epochs 0"
        options += " --trainer.max_epochs 1 --trainer.limit_val_batches 0"
        train(small_data, here / nominal, options)
        assert load(here / nominal / "checkpoints/last.ckpt")["global_step"] == steps


def test_the_last_epochs_have_no_mosaic(small_data):
    """Their samples are those of an augmentation without mosaic and MixUp."""
    augment = Augment(mixup=0.5)
    without = replace(augment, mosaic=0.0, mixup=0.0)
    dataset = DatasetFile.read(str(small_data)).open("train")
    images = ResizedImages(dataset, 64)
    samples = TrainSamples(images, augment.steps(64), 3, without.steps(64), closing_from=2)
    mixed = TrainSamples(images, augment.steps(64), 3)
    plain = TrainSamples(images, without.steps(64), 3)
    for epoch in range(4):
        for index in range(4):
            key = Key(epoch, index, 0)
            expected = (mixed if epoch < 2 else plain)[key]
            assert np.array_equal(samples[key].image, expected.image)
            assert np.array_equal(samples[key].boxes, expected.boxes)
            assert len(plain[key].boxes) <= len(dataset.labels[index].classes), "one image"
