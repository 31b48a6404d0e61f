"""Non-finite numbers, crashes and lack of memory in real trainings: the report."""

import lightning as L
import pytest
import torch
from lightning.pytorch.plugins import MixedPrecision
from made_networks import same
from made_options import made_detector
from made_runs import column, read
from plain_loop import CLIP, Steps, batches, small_detector, spawn
from torch.multiprocessing import ProcessRaisedException
from torch.utils.data import DataLoader

from boltbox.callbacks import Guard, Warmup
from boltbox.callbacks.guard import Incident
from boltbox.detector.data.datamodule import DetectionData
from boltbox.detector.data.sampler import TrainBatches
from boltbox.detector.data.transforms.augment import Augment
from boltbox.detector.system.errors import InputError

NAMES = ["disc", "ring", "star", "triangle", "cross"]
HEAD = "network.head.convs.0.weight"


class Trouble(L.Callback):
    """In one batch, given as (epoch, batch): NaN in the images, an infinite gradient or an error.
    In process `rank` only."""

    def __init__(self, where, what="image", rank=0):
        self.where = where
        self.what = what
        self.rank = rank
        self.indices = []  # images of the batch

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if (trainer.current_epoch, batch_idx) != self.where or trainer.global_rank != self.rank:
            return
        self.indices = batch.indices
        if self.what == "image":
            batch.images.fill_(torch.nan)
        elif self.what == "gradient":
            pl_module.get_parameter(HEAD).register_hook(lambda gradient: gradient * torch.inf)
        else:
            raise self.what

    def on_validation_batch_start(self, trainer, *_):
        if self.where == (0, -1):
            raise self.what


def trainer_in(folder, *callbacks, **options):
    given = {"max_epochs": 2, "gradient_clip_val": CLIP, "limit_val_batches": 0}
    own = [Warmup(warmup_epochs=0), *callbacks]
    return spawn(1, callbacks=own, default_root_dir=folder, **given | options)


def detector(**options):
    torch.manual_seed(0)
    small = {"width_multiple": 0.01, "depth_multiple": 0.1, "levels": [5], "optimizer": "SGD"}
    given = small | {"nominal_batch_size": 8} | options
    return made_detector(NAMES, image_size=64, batch_size=8, **given)


def data_of(path):
    """Three batches of eight images."""
    augment = Augment(mosaic=0.0)
    return DetectionData(str(path), image_size=64, batch_size=8, workers=0, augment=augment)


def reports(folder):
    """Every report by file name."""
    files = sorted((folder / "checkpoints").glob("incident-*.json"))
    return {file.name: read(file) for file in files}


def test_a_loss_that_is_not_finite(small_data, tmp_path):
    """With a GradScaler too."""
    trouble = Trouble((1, 1))
    module = detector()
    data = data_of(small_data)
    scaler = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=512.0))
    with pytest.raises(Incident) as error:
        trainer_in(tmp_path, trouble, Guard(), plugins=[scaler]).fit(module, data)
    ((name, report),) = reports(tmp_path).items()
    files = [str(data.path("train", i)) for i in trouble.indices]
    assert name == "incident-1-1.json"
    place = {"kind": "non-finite loss", "split": "train", "epoch": 1, "batch": 1}
    place |= {"done": "stopped", "indices": trouble.indices, "files": files}
    assert place.items() <= report.items()
    for part in ["epoch 1, batch 1", "and 5 more", name, "model.optim.lr0"] + files[:3]:
        assert part in str(error.value)
    for p in module.parameters():
        assert bool(p.isfinite().all())


def test_a_gradient_is_checked_before_any_weight_changes(small_data, tmp_path):
    """At the end of a window, here of two batches."""
    module = detector(nominal_batch_size=16)
    with pytest.raises(Incident, match="non-finite gradient in epoch 0, batch 1"):
        trainer_in(tmp_path, Trouble((0, 0), "gradient"), Guard()).fit(module, data_of(small_data))
    assert len(reports(tmp_path)["incident-0-1.json"]["indices"]) == 8
    weights = dict(module.named_parameters())
    assert same(weights, dict(detector().named_parameters()))


def test_an_overflow_of_float16_is_the_scalers_business(tmp_path):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**30)
    steps = Steps()
    plugins = [MixedPrecision("16-mixed", "cpu", scaler)]
    trainer = trainer_in(tmp_path, Guard(), steps, plugins=plugins)
    trainer.fit(small_detector(), DataLoader(batches(), batch_size=None))
    assert len(steps.taken) < 4
    assert reports(tmp_path) == {}


MEMORY = "CUDA out of memory. Tried to allocate 2 GiB"
KILLED = "DataLoader worker (pid 7) is killed by signal: Killed. "


@pytest.mark.parametrize(
    ("error", "where", "advice"),
    [
        (torch.OutOfMemoryError(MEMORY), (0, 1), "data.batch_size"),
        (RuntimeError(MEMORY), (0, -1), "data.batch_size"),
        (RuntimeError(KILLED), (0, 1), "data.workers"),
        (InputError("a mistake"), (0, 1), ""),
        (RuntimeError("Caught ValueError in DataLoader worker process 0"), (0, 1), ""),
    ],
)
def test_lack_of_memory(error, where, advice, small_data, tmp_path):
    """In training and in validation; other errors are not the guard's."""
    guard = Guard()
    trainer = trainer_in(tmp_path, guard, Trouble(where, error), limit_val_batches=1)
    with pytest.raises(type(error)) as crash:
        trainer.fit(detector(), data_of(small_data))
    if not advice:
        assert (reports(tmp_path), guard.explanation) == ({}, None)
        return
    ((name, report),) = reports(tmp_path).items()
    expected = ("incident-0-1.json", "train") if where[1] == 1 else ("incident-0-0.json", "val")
    assert (name, report["split"]) == expected
    assert len(report["files"]) == 8
    assert name in str(crash.value.__notes__)
    assert advice in str(guard.explanation)


def test_two_processes_stop_together(small_data, tmp_path):
    """NaN in the second one only: the first one's report names the images of the second."""
    callbacks = [Warmup(), Trouble((0, 1), rank=1), Guard()]
    trainer = spawn(2, max_epochs=1, callbacks=callbacks, default_root_dir=tmp_path)
    with pytest.raises(ProcessRaisedException, match="Incident: non-finite loss"):
        trainer.fit(detector(), data_of(small_data))
    (report,) = reports(tmp_path).values()
    batch = list(TrainBatches(24, 8, 0, lambda: (0, 0)))[1]
    assert report["indices"] == column(batch[1::2], "index")
