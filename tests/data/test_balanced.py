"""Drawing images by the rarity of their classes: how often each comes, over ranks, and over an
interruption."""

import json
import os
import signal
from pathlib import Path
from typing import Any, ClassVar

import lightning as L
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from made_datasets import lay_out, picture, save
from made_labels import labels_of, table_of
from made_samples import few
from ranks import together

import cli
from benchmarks.resume_fuzz import difference
from boltbox.detector.data.datamodule import DetectionData
from boltbox.detector.data.label_table import LabelTable
from boltbox.detector.data.sampler import (
    TrainBatches,
    class_weights,
    image_weights,
)

Whole = tuple[Path, list[tuple[int, list[int]]]]  # a run, and what images() gave
EPOCHS = 2
BATCHES = 6  # of the runs below: 24 images in batches of 4


def table(images: list[list[int]]) -> LabelTable:
    """Images whose objects have these classes."""
    return table_of([labels_of(np.zeros((len(x), 4)), np.array(x), 9, 9) for x in images])


def weights_of(images: list[list[int]], classes: int, maps: float | np.ndarray = 0.0) -> np.ndarray:
    """As the data module makes them."""
    labels = table(images)
    counts = np.bincount(labels.classes, minlength=classes)
    return image_weights(labels, class_weights(counts) * (1 - np.asarray(maps)) ** 2)


def drawn(weights: np.ndarray, epochs: int = 300) -> np.ndarray:
    """How often each image is drawn, as a share of all."""
    sampler = TrainBatches(len(weights), 4, 0, position=lambda: (0, 0), weights=lambda: weights)
    orders = np.concatenate([sampler.order(epoch) for epoch in range(epochs)])
    return np.bincount(orders, minlength=len(weights)) / len(orders)


def test_classes_come_alike_where_images_hold_one() -> None:
    """90, 9 and 1 images of three classes: each class is drawn a third of the time instead of 90, 9
    and 1 %."""
    images = [[0]] * 90 + [[1]] * 9 + [[2]]
    share = drawn(weights_of(images, 3))
    of_class = [share[:90].sum(), share[90:99].sum(), share[99]]
    assert of_class == pytest.approx([1 / 3] * 3, abs=0.012)  # 4 sqrt(1/3 * 2/3 / 30000) = 0.011
    assert share[:90].min() > 0


def test_a_class_that_is_found_comes_less_often() -> None:
    """mAP 0.5 against 0: a quarter of the weight, so a fifth of the draws."""
    weights = weights_of([[0]] * 6 + [[1]] * 2, 2, np.array([0.5, 0.0]))
    assert weights[:6].sum() == pytest.approx(0.2)


def test_images_without_objects_keep_their_share() -> None:
    """Two of eight images, and the two of class 1 are drawn as often as the four of class 0: 3 / 8
    each."""
    weights = weights_of([[0]] * 4 + [[1]] * 2 + [[]] * 2, 3)
    np.testing.assert_allclose(weights, [3 / 32] * 4 + [3 / 16] * 2 + [1 / 8] * 2)


@given(
    st.lists(st.lists(st.integers(0, 3), max_size=5), min_size=1, max_size=30),
    st.lists(st.floats(0, 1), min_size=4, max_size=4),
)
@few
def test_every_image_can_be_drawn(images: list[list[int]], maps: list[float]) -> None:
    """Whatever the labels and the mAP: none at all, a class without examples, mAP 1 for all,
    everything background."""
    weights = weights_of(images, 5, np.array([*maps, 0.0]))
    n = len(images)
    assert weights.sum() == pytest.approx(1)
    assert (weights > 0.0009 / n).all()
    background = [i for i in range(n) if not images[i]]
    np.testing.assert_allclose(weights[background], 1 / n, rtol=2e-3)
    assert (
        len(TrainBatches(n, 4, 0, position=lambda: (0, 0), weights=lambda: weights).order(0)) == n
    )


def test_all_weights_nothing() -> None:
    """Every class is found perfectly: all images alike."""
    np.testing.assert_allclose(weights_of([[0], [0, 1], [1], []], 2, 1.0), 1 / 4)


@pytest.fixture
def uneven(tmp_path: Path) -> Path:
    """24 images: the first 12 hold three objects of a common class, the fourth of them one of a
    rare class too."""
    for split in ("train", "val"):
        for k in range(24):
            save(tmp_path / f"images/{split}/{k:02}.png", picture(40, 40, k))
            lines = (
                ["1 0.5 0.5 0.2 0.2", "1 0.2 0.2 0.2 0.2", "1 0.8 0.8 0.2 0.2"] if k < 12 else []
            )
            lines += ["0 0.5 0.2 0.2 0.2"] if k == 3 else []
            lay_out(tmp_path, {f"labels/{split}/{k:02}.txt": "\n".join(lines)})
    lay_out(
        tmp_path,
        {"data.yaml": "train: images/train\nval: images/val\nnames: [rare, common, absent]\n"},
    )
    return tmp_path / "data.yaml"


def shares(data: DetectionData) -> np.ndarray:
    data.setup("fit")
    sampler = data.train_dataloader().batch_sampler
    orders = np.concatenate([sampler.order(epoch) for epoch in range(400)])
    return np.bincount(orders, minlength=24) / len(orders)


def test_rare_images_of_a_data_set(uneven: Path) -> None:
    """Of 24 images 12 are background; one of the others holds the only object of a class."""
    even = shares(DetectionData(str(uneven), image_size=64, workers=0))
    np.testing.assert_allclose(even, 1 / 24)
    balanced = shares(DetectionData(str(uneven), image_size=64, workers=0, image_weights=True))
    assert balanced[12:].sum() == pytest.approx(0.5, abs=0.03)
    assert balanced[3] > 0.23, "half of the other half, and what its common objects add"
    assert balanced.min() > 0


def test_mosaics_are_balanced_too(uneven: Path) -> None:
    """The three other tiles are drawn by the same weights: the rare image makes up as much of what
    is seen as of the draws."""

    def rare(weighted: bool) -> float:
        data = DetectionData(
            str(uneven), image_size=64, batch_size=8, workers=0, image_weights=weighted
        )
        data.setup("fit")
        loader = data.train_dataloader()
        classes = []
        for epoch in range(10):
            loader.batch_sampler.position = lambda epoch=epoch: (epoch, 0)
            classes += [c for batch in loader for c in batch.targets[:, 1].tolist()]
        return classes.count(0) / len(classes)

    assert rare(weighted=False) < 0.05, "1 of 37 objects"
    assert rare(weighted=True) > 0.11, (
        "0.26 of 0.26 * 4 + 0.24 * 3, or 0.15; with other tiles at random 0.06"
    )


def test_classes_that_are_found_count_less(uneven: Path) -> None:
    data = DetectionData(str(uneven), image_size=64, workers=0, image_weights=True)
    before = shares(data)
    data.epoch_maps = [0.9, 0.0, 0.0]
    assert shares(data)[3] < before[3] / 2


def test_image_weights_turn_rect_off(uneven: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As in YOLOv5, but not in silence."""
    both = shares(
        DetectionData(str(uneven), image_size=64, workers=0, image_weights=True, rect=True)
    )
    assert "data.rect" in capsys.readouterr().out
    assert both[3] > 0.23


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_draw_stripes_of_one_order(world: int) -> None:
    weights = weights_of([[0]] * 13 + [[1]] * 3 + [[]] * 2, 2)
    given = {"position": lambda: (1, 1), "weights": lambda: weights}
    alone = list(TrainBatches(18, 6, 5, **given))
    ranks = [list(TrainBatches(18, 6, 5, **given, rank=r, world=world)) for r in range(world)]
    assert len(alone) == 2, "the rest of the second epoch"
    for k, batch in enumerate(alone):
        stripes = [rank[k] for rank in ranks]
        assert [key for turn in zip(*stripes, strict=True) for key in turn] == batch
        assert len({key for stripe in stripes for key in stripe}) == len(batch), (
            "no sample twice, not even of an image drawn twice"
        )


class Trace(L.Callback):
    """Writes down which images each batch holds, gives each class a new mAP at every validation,
    and stops where it is told."""

    seen: ClassVar[list[tuple[int, list[int]]]] = []
    stop_after: ClassVar[int] = -1

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        at = trainer.fit_loop.epoch_loop.batch_progress.total.processed
        self.seen.append((at, list(batch.indices)))
        if at == self.stop_after:
            os.kill(os.getpid(), signal.SIGTERM)

    def on_validation_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        """The real figures have just come; those of so young a network are all about 0."""
        classes = len(pl_module.names)
        found = trainer.fit_loop.epoch_loop.batch_progress.total.processed // 3 % classes
        pl_module.evaluation.class_maps = [0.999 if c == found else 0.0 for c in range(classes)]

    def on_fit_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        (Path(trainer.default_root_dir) / f"rank{trainer.global_rank}.json").write_text(
            json.dumps(self.seen)
        )


def line(data: Path, run: Path, *more: str) -> list[str]:
    """A small training in which validation comes in the middle of each epoch and at its end."""
    options = {
        "data.dataset": data, "data.image_size": 64, "data.batch_size": 4, "data.workers": 0, "data.image_weights": "true",
        "trainer.max_epochs": EPOCHS, "trainer.val_check_interval": BATCHES // 2, "trainer.limit_val_batches": 1, "data.val_batch_size": 2, "trainer.precision": "32-true",
        "trainer.accelerator": "cpu", "trainer.enable_progress_bar": "false",
        "model.network.width_multiple": 0.125, "model.network.depth_multiple": 0.1, "model.network.levels": "[5]",
        "autoanchor.enabled": "false", "report.enabled": "false", "pictures.enabled": "false", "doctor.enabled": "false",
        "trainer.callbacks": "test_balanced.Trace", "run": run,
    }  # fmt: skip
    return ["fit", *(str(x) for k, v in options.items() for x in (f"--{k}", v)), *more]


def images(arguments: list[str], stop_after: int = -1) -> list[tuple[int, list[int]]]:
    Trace.seen = []
    Trace.stop_after = stop_after
    if stop_after < 0:
        cli.main(arguments)
    else:
        with pytest.raises(SystemExit) as leaving:
            cli.main(arguments)
        assert leaving.value.code == 143
    return Trace.seen


@pytest.fixture(scope="module")
def alone(small_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """A run of one process that nobody stops."""
    run = tmp_path_factory.mktemp("alone") / "run"
    return run, images(line(small_data, run))


def test_stopped_within_an_epoch_and_resumed(small_data: Path, here: Path, alone: Whole) -> None:
    """The epoch goes on with the weights it began with, although a validation has changed the
    figures since."""
    reference, whole = alone
    assert [at for at, _ in whole] == list(range(1, EPOCHS * BATCHES + 1))
    assert (
        len(
            {tuple(sorted(i for _, batch in whole[k : k + BATCHES] for i in batch)) for k in (0, 6)}
        )
        == 2
    )
    stop = BATCHES + 4  # in the second epoch, after the validation in its middle
    first = images(line(small_data, here / "cut"), stop)
    saved = torch.load(here / "cut/checkpoints/last.ckpt", weights_only=True)
    assert saved["class_maps"] != saved["DetectionData"]["epoch_maps"], (
        "else there is nothing to see here"
    )
    second = images(line(small_data, here / "cut", "--ckpt_path", "last"))
    assert first == whole[:stop]
    assert second == whole[stop:]
    assert not difference(here / "cut", reference)


def test_two_processes(small_data: Path, here: Path, alone: Whole) -> None:
    """Together they draw what one would."""
    together(images, line(small_data, here / "run", "--trainer.devices", "2"))
    zero, one = (json.loads((here / f"run/rank{r}.json").read_text()) for r in (0, 1))
    both = [
        (at, [i for turn in zip(a, b, strict=True) for i in turn])
        for (at, a), (_, b) in zip(zero, one, strict=True)
    ]
    assert both == alone[1]
