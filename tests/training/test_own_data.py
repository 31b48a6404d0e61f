"""Data of one's own in torchvision's detection style, and the decoded prediction."""

from itertools import chain
from pathlib import Path

import lightning as L
import numpy as np
import pytest
import torch
from lightning.pytorch.utilities.model_summary import ModelSummary
from made_networks import copied, same
from made_options import made_detector
from made_runs import SMALL, column, read, rows, type_line
from test_python import equal, options
from torch.utils.data import DataLoader, IterableDataset

from boltbox.detector.data.datamodule import DetectionData
from boltbox.detector.data.detection_batch import detection_batch
from boltbox.detector.system.errors import InputError


def make_detector():
    return made_detector(["a", "b"], width_multiple=0.125, depth_multiple=0.1, levels=[5])


def make_items(n=12):
    """Of several sizes."""
    rng = torch.Generator().manual_seed(0)
    items = []
    for i in range(n):
        image = torch.rand(3, 60, 50 + 4 * (i % 4), generator=rng)
        boxes = torch.tensor([[5.0, 5, 25, 30 + i]])
        items.append((image, {"boxes": boxes, "labels": torch.tensor([i % 2])}))
    return items


def loader(shuffle=False, n=12):
    def collate(batch):
        return tuple(zip(*batch, strict=True))

    return DataLoader(make_items(n), 4, shuffle, collate_fn=collate)


class Counted(L.LightningDataModule):
    """With an argument, the number of its images."""

    names = ("a", "b")

    def __init__(self, count: int, image_size: int = 96):
        super().__init__()
        self.count = count
        self.image_size = image_size

    def train_dataloader(self):
        return loader(shuffle=True, n=self.count)

    def val_dataloader(self):
        return loader()


def test_the_command_line(here, refused):
    """Its arguments are options, a resume names it again, and mistakes are named."""
    own = "--data test_own_data.Counted"
    limits = "--trainer.limit_val_batches 1 --trainer.max_epochs 1"
    tiny = SMALL.split(maxsplit=4)[4]  # without options of the data
    type_line(f"fit {own} --data.count 8 {limits} {tiny}")
    type_line(f"fit {own} --ckpt_path last --trainer.max_epochs 2")
    assert column(rows(Path("runs/fit-1")), "epoch") == ["0", "1"]
    type_line(f"validate {own} --report.enabled false")
    assert read("runs/validate-1/metrics.json")["images"] == 12
    for line, named in (
        (f"fit {own}", "data.count"),
        (f"fit {own} --data.cuont 8", "did you mean 'data.count'"),
        (f"anchors {own}", "--data test_own_data.Counted"),
        ("fit --data test_own_data.Countde", "Countde"),
        ("fit --data test_own_data.Endless", "data: "),
        ("validate", "config.yaml: data.count"),
    ):
        assert named in refused(line)


def test_own_loaders(here, capsys):
    """Fit, validate and predict; a resume between epochs is exact, though the loader shuffles."""
    limits = {"limit_train_batches": 1.0, "limit_val_batches": 1.0, "max_epochs": 2}
    for run, steps in (("whole", -1), ("part", 3)):
        L.seed_everything(0)
        detector = make_detector()
        trainer = L.Trainer(**options(run=run, **limits) | {"max_steps": steps})
        trainer.fit(detector, loader(shuffle=True), loader())
    assert (detector.batch_size, detector.image_size) == (4, 64)
    assert "640 px" not in capsys.readouterr().out, "the first batch tells the size"
    resumed = L.Trainer(**options(run="part", **limits))
    resumed.fit(make_detector(), loader(shuffle=True), loader(), ckpt_path="last")
    assert equal("part", "whole")

    trainer.validate(detector, loader(), ckpt_path="best", verbose=False)
    assert read("runs/validate-1/metrics.json")["images"] == 12
    detector.evaluation.configure(conf=0.0, max_det=5)
    predictions = trainer.predict(detector, loader())
    assert sum(map(len, predictions)) == 12
    for detections in chain.from_iterable(predictions):
        assert 0 < len(detections) <= 5
        assert detections.xyxy.max() <= 62
    alone = trainer.predict(detector, DataLoader(torch.rand(2, 3, 60, 54), 2))
    assert len(alone[0]) == 2


def test_own_loaders_after_another_data_set(small_data, here):
    """The Trainer has forgotten that one: neither its classes nor its files are those of the
    images, and its splits are not read."""
    trainer = L.Trainer(**options(limit_val_batches=1.0, limit_test_batches=1.0))
    data = DetectionData(str(small_data), image_size=64, batch_size=8, workers=0)
    fitted = made_detector(data.names, width_multiple=0.125, depth_multiple=0.1, levels=[5])
    trainer.fit(fitted, data)
    trainer.test(make_detector(), loader(), verbose=False)
    assert read("runs/test-1/metrics.json")["images"] == 12


def test_an_own_data_module(here):
    detector = make_detector()
    own = Counted(12)
    L.Trainer(**options()).fit(detector, datamodule=own)
    assert (detector.batch_size, detector.image_size) == (4, 96)
    own.names = ("a", "c")
    with pytest.raises(InputError, match=r"data have .*'c'"):
        L.Trainer(**options()).fit(make_detector(), datamodule=own)


def test_padding_and_boxes():
    images = [torch.ones(3, 40, 70), torch.zeros(3, 64, 64)]
    targets = [
        {"boxes": [[7, 4, 90, 20], [9, 9, 9, 30]], "labels": [1, 0]},
        {"boxes": [], "labels": []},
    ]
    batch = detection_batch((images, targets), 2, 32)
    assert batch.images.shape == (2, 3, 64, 96)
    assert batch.images[0, :, :40, :70].min() == 1
    assert batch.images[0, :, 40:].unique().tolist() == pytest.approx([114 / 255])
    row = [0, 1, 38.5 / 96, 12 / 64, 63 / 96, 16 / 64]
    np.testing.assert_allclose(batch.targets, [row], atol=1e-4)
    first, second = batch.truths
    assert (first.height, first.width) == (40, 70)
    assert len(second.boxes) == 0


class Endless(IterableDataset):
    def __iter__(self):
        return iter(make_items())


def test_what_is_wrong_with_own_data(here):
    image, target = make_items()[0]
    for images, targets, named in (
        ((image,), (target | {"labels": torch.tensor([2])},), "label 2; labels are 0 to 1"),
        ((image * 255,), (target,), "images must be .*give image / 255"),
        ((image[0],), (target,), "images must be 3 x H x W"),
        (image[None], None, "a batch must be"),
        ((image,), (target | {"labels": torch.tensor([0, 1])},), "boxes must be"),
        ((image,), (target | {"labels": torch.tensor([[0]])},), "boxes must be"),
        ((image,), (target | {"boxes": torch.zeros(1, 5)},), "boxes must be"),
        ((image,), (target | {"boxes": [[30, 9, 10, 20]]},), "not x, y, width, height"),
        ((image,), (target | {"boxes": [[0.1, 0.1, 0.9, 0.9]]},), "nor in 0..1"),
        ((image,), (target | {"boxes": [[1, 1, float("nan"), 9]]},), "there is a box"),
    ):
        with pytest.raises(InputError, match=f"^data of your own: .*{named}"):
            detection_batch((images, targets), 2, 32)
    with pytest.raises(InputError, match="limit_train_batches"):
        L.Trainer(**options(limit_train_batches=1.0)).fit(make_detector(), DataLoader(Endless()))


def test_the_decoded_prediction():
    """It is a fused network's, and changes neither statistics nor modes; nor does a summary."""
    detector = make_detector()
    detector.network.backbone.eval()  # as frozen layers are
    modes = column(detector.network.modules(), "training")
    before = copied(detector)
    ModelSummary(detector)
    images = torch.rand(1, 3, 64, 64)
    rows = detector(images)
    assert rows.shape == (1, 3 * 2 * 2, 7)
    fused = detector.network.fused()
    torch.testing.assert_close(rows, fused.head.decode(fused(images)), rtol=1e-3, atol=1e-3)
    assert column(detector.network.modules(), "training") == modes
    assert same(detector.state_dict(), before)
