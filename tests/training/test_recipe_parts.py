"""What a better recipe than YOLOv5's is made of: each part alone, and all together killed, on two
processes."""

import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from agreement import diaries_that_agree
from ranks import together
from shared import shared
from small_fit import small_fit

import cli
from benchmarks.resume_fuzz import command, difference, start
from boltbox.callbacks.ema import EMA, EXPONENT
from boltbox.detector.data.cache.images import ResizedImages
from boltbox.detector.data.dataset_file import DatasetFile
from boltbox.detector.data.sampler import Key
from boltbox.detector.data.transforms.augment import Augment, TrainSamples
from boltbox.detector.model.network import YOLOv5
from boltbox.detector.training.schedule import power_decay
from boltbox.detector.weights.start import load_weights

EVERYTHING = {
    "model.optim.nominal_batch_size": "auto", "model.optim.optimizer": "AdamW", "model.optim.lr0": 0.001, "model.optim.lr_schedule": "cosine",
    "model.loss.assigner": "examples.dynamic_assigner.DynamicAssigner", "data.augment.close_mosaic": 1,
    "autoanchor.enabled": "false", "doctor.enabled": "false", "data.batch_size": 8, "trainer.max_epochs": 2, "trainer.limit_val_batches": 0,
}  # fmt: skip
ALL_ON = [str(word) for name, value in EVERYTHING.items() for word in (f"--{name}", value)]


def test_the_average_has_its_width() -> None:
    """Unrolled, the weights that steps 1 to n have in the average: their standard deviation is that
    share of n."""
    n = 2000
    weights = np.zeros(2000)
    for u in range(1, n + 1):
        kept = power_decay(u, EXPONENT)
        weights *= kept
        weights[u - 1] = 1 - kept
    steps = np.arange(1, n + 1)
    mean = (weights * steps).sum()
    assert weights.sum() == pytest.approx(1)
    width = np.sqrt((weights * (steps - mean) ** 2).sum()) / n
    assert width == pytest.approx(0.05, rel=0.02)
    root = 0.05**2 * (EXPONENT + 2) ** 2 * (EXPONENT + 3)
    assert root == pytest.approx(EXPONENT + 1)


def test_the_callback_averages_so() -> None:
    """Its three first updates, of a network that has 1, 2, 3 in turn."""
    callback = EMA()
    average = torch.zeros(1)
    current = torch.zeros(1)
    callback._average = [average]
    callback._current = [current]
    averages = []
    for value in (1, 2, 3):
        current.fill_(value)
        callback._update(torch.optim.SGD([current], 0.1))
        averages.append(average.item())
    second = 2 - 0.5 ** (EXPONENT + 1)
    third = 3 + (second - 3) * (2 / 3) ** (EXPONENT + 1)
    assert averages == pytest.approx([1, second, third])


def test_steps_that_fit_the_run(small_data: Path, here: Path) -> None:
    """24 images in batches of 8: a step takes 16 images after the warm-up, as the run is short; at
    a nominal 64 it takes 24, all that an epoch has."""
    steps = {}
    for nominal in ("auto", "64"):
        options = f"--model.optim.nominal_batch_size {nominal} --warmup.warmup_epochs 0"
        options += " --trainer.max_epochs 2 --trainer.limit_val_batches 0"
        cli.main(small_fit(small_data, here / nominal, *options.split()))
        saved = torch.load(here / nominal / "checkpoints/last.ckpt", weights_only=True)
        steps[nominal] = saved["global_step"]
    assert steps == {"auto": 4, "64": 2}


def test_the_last_epochs_have_no_mosaic(small_data: Path) -> None:
    """Their samples are those of an augmentation without mosaic and MixUp, those before are as
    ever."""
    augment = Augment(mixup=0.5)
    dataset = DatasetFile.read(str(small_data)).open("train")
    images = ResizedImages(dataset, 64)
    made = TrainSamples(
        images, augment.steps(64), 3, augment.without_mixing().steps(64), last_from=2
    )
    mixed, plain = (
        TrainSamples(images, a.steps(64), 3) for a in (augment, augment.without_mixing())
    )
    for epoch in range(4):
        for index in range(4):
            key = Key(epoch, index, 0)
            wanted = (mixed if epoch < 2 else plain)[key]
            assert np.array_equal(made[key].image, wanted.image)
            assert np.array_equal(made[key].boxes, wanted.boxes)
            assert len(plain[key].boxes) <= len(dataset.labels[index].classes), "one image"


@pytest.fixture
def published() -> Path:
    return shared("weights/yolov5n.pt")


def test_a_head_for_other_classes_is_reused(published: Path) -> None:
    """Boxes and objectness predict as the file's; the classes are those of a fresh head."""
    torch.manual_seed(0)
    theirs = YOLOv5(80).eval()
    fresh = YOLOv5(3).eval()
    ours = YOLOv5(3).eval()
    ours.load_state_dict(fresh.state_dict())
    load_weights(theirs, published)
    assert (
        "class outputs start from random values, as the classes differ"
        in load_weights(ours, published, reuse_head=True).line
    )
    assert "the head starts from random values" in load_weights(YOLOv5(3), published).line
    images = torch.rand(1, 3, 64, 64)
    for a, b in zip(theirs(images), ours(images), strict=True):
        torch.testing.assert_close(a[..., :5], b[..., :5], rtol=1e-5, atol=1e-5)
    for a, b in zip(fresh.head.convs, ours.head.convs, strict=True):
        assert torch.equal(a.bias.view(3, 8)[:, 5:], b.bias.view(3, 8)[:, 5:])


@pytest.mark.usefixtures("quick_starts")
def test_a_fork_is_the_run_that_had_been_so_from_the_start(
    small_data: Path, tmp_path: Path
) -> None:
    """docs/recipe.md: from one checkpoint the last epoch with mosaic and, in another folder,
    without. The latter is killed in its epoch."""
    reference, mosaic, fork = (tmp_path / name for name in ("reference", "mosaic", "fork"))
    assert start(command(small_data, reference, 0, 1, within_epochs=False, more=ALL_ON)) == 0

    more = [*ALL_ON, "--data.augment.close_mosaic", "0", "--checkpoints.save_period", "1"]
    assert start(command(small_data, mosaic, 0, 1, within_epochs=False, more=more)) == 0

    line = command(small_data, fork, workers=1, ranks=1, more=ALL_ON)
    first = str(mosaic / "checkpoints/epoch0.ckpt")
    assert start([*line, "--ckpt_path", first], "batch:2") == -signal.SIGKILL
    assert start([*line, "--ckpt_path", "auto"]) == 0
    assert not difference(fork, reference)
    assert "state_dict" in difference(fork, mosaic)


def test_two_processes_train_as_one(small_data: Path, here: Path) -> None:
    """Rates, windows and images of each batch; and both processes have the same weights in the
    end."""
    more = [*ALL_ON, "--trainer.callbacks", "agreement.Diary"]
    cli.main(small_fit(small_data, here / "one", *more))
    together(cli.main, small_fit(small_data, here / "two", *more, "--trainer.devices", "2"))
    two = diaries_that_agree(here)
    for kind in ("network", "ema"):
        for name, value in two[0][kind].items():
            if "running" not in name and "num_batches" not in name:
                torch.testing.assert_close(
                    value, two[1][kind][name], msg=lambda m, n=name: f"{n}: {m}"
                )
