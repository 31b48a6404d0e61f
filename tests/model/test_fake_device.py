"""Tensors on the CPU that are mixed with those of a GPU are found without a GPU."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fake_gpu import GPU, gpu  # noqa: F401 (a fixture)
from lightning.fabric.utilities import move_data_to_device
from made_options import made_detector
from made_samples import random_sample

from boltbox.callbacks import EMA, AutoAnchor
from boltbox.callbacks.guard import not_finite
from boltbox.callbacks.run_state import gradients, restore_gradients
from boltbox.detector.data.datamodule import DetectionData
from boltbox.detector.data.inputs.evaluation_input import EvaluationInput, unlabelled
from boltbox.detector.data.inputs.tiles import Tiles
from boltbox.detector.data.sample import IGNORED, Labels, LetterboxInfo, collate
from boltbox.detector.inference.predictor import Predictor
from boltbox.detector.model.loss import mean_losses
from boltbox.detector.report.drawing import images_of
from boltbox.detector.training.pretrained_score import score_pretrained
from examples.dynamic_assigner import DynamicAssigner
from examples.yolox_head import YOLOXHead

pytestmark = pytest.mark.usefixtures("gpu")
LOSSES = [
    {},
    {"fl_gamma": 1.5, "bn_momentum": 1.0},
    {"literal": True, "multi_scale": True, "label_smoothing": 0.1, "cls_pw": 1.3},
    {"assigner": DynamicAssigner, "head": YOLOXHead},
]


def detector_of(*names, **options):
    detector = made_detector([*names], 64, width_multiple=0.01, depth_multiple=0.1, **options)
    detector._trainer = SimpleNamespace(
        world_size=1,
        accumulate_grad_batches=1,
        current_epoch=0,
        num_training_batches=3,
        is_last_batch=False,
        state=SimpleNamespace(fn="fit"),
        is_global_zero=True,
        strategy=SimpleNamespace(broadcast=lambda value: value),
        sanity_checking=False,
        testing=False,
    )
    return detector


def batch_on_cpu():
    samples = []
    for seed in range(2):
        sample = random_sample(seed, 64, 64)
        area = np.ones(len(sample.boxes))
        classes = sample.classes % 3
        truth = Labels(sample.boxes, classes.copy(), [], area == 0, area, 64, 64)
        made = {"classes": classes, "truth": truth, "letterbox": LetterboxInfo(64, 64)}
        made["classes"][0] = IGNORED
        samples.append(sample.replace(**made))
    return collate(samples)


def batch_on_gpu():
    batch = move_data_to_device(batch_on_cpu(), GPU)
    return DetectionData.on_after_batch_transfer(None, batch, 0)


@pytest.mark.parametrize("options", LOSSES)
def test_batches(options):
    detector = detector_of("cat", "dog", "cow", **options).to(GPU)
    for mixed in (True, False):
        with torch.autocast("cuda", torch.float16, enabled=mixed):
            loss = detector.training_step(batch_on_gpu(), 0)["loss"]
    parameters = list(detector.network.parameters())
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    assert not_finite(loss, parameters, 1) == (False, False)
    means = mean_losses(detector.loss_sums())
    assert {tensor.device for tensor in (loss, *means.values())} == {GPU}


@pytest.mark.parametrize("name", ["SGD", "Muon"])
def test_steps(name):
    """Of a training and its average; then resumed from what a file would hold, on the CPU."""
    detector = detector_of("cat", optimizer=name, backbone_lr=0.001).to(GPU)
    content = {}
    for _ in range(2):
        optimizer = detector.options.optim.build(detector.network, 16)
        detector.start_average()
        if content:
            detector.load_state_dict(content["state_dict"])
            optimizer.load_state_dict(content["optimizer"])
            restore_gradients(detector.network, content["gradients"])
        average = EMA()
        trainer = SimpleNamespace(optimizers=[optimizer])
        average.on_train_start(trainer, detector)
        for parameter in detector.network.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        assert average.updates == 1
        content = {
            "state_dict": detector.state_dict(),
            "optimizer": optimizer.state_dict(),
            "gradients": gradients(detector.network),
        }
        content = move_data_to_device(content, torch.device("cpu"))


def test_validation_of_the_average():
    detector = detector_of("cat", "dog", "cow")
    detector.start_average()
    detector.to(GPU)
    detector.on_validation_start()
    batch = batch_on_gpu()
    outputs = detector.validation_step(batch, 0)
    assert len(images_of(batch, outputs["detections"])) == 2
    assert detector.evaluation.finish(detector.trainer)["val/box_loss"] > 0


def test_anchors():
    """AutoAnchor's; and the score of pretrained weights."""
    detector = detector_of("cat", "dog", "cow").to(GPU)
    trainer = SimpleNamespace(
        ckpt_path=None,
        datamodule=object.__new__(DetectionData),
        is_global_zero=False,
        strategy=SimpleNamespace(broadcast=lambda _: np.ones((3, 3, 2)).tolist()),
    )
    AutoAnchor().on_fit_start(trainer, detector)
    labels = SimpleNamespace(crowd=np.zeros(9, bool), object_sizes=lambda *_: np.ones((9, 2)))
    dataset = SimpleNamespace(labels=labels)
    data = SimpleNamespace(datasets={"train": dataset}, image_size=64, tile_size=None, seed=0)
    assert not AutoAnchor().examine(detector, data)[0].changed
    batch = batch_on_cpu()
    score_pretrained(detector.network, [batch._replace(images=batch.images[:1])], [0])


@pytest.mark.parametrize(
    ("other", "options"),
    [
        ([], {"precision": "16-true", "tta": True, "agnostic": True}),
        (["cow"], {"precision": "16-mixed", "tta": True, "rounded": True}),
    ],
)
def test_predictions(other, options, tmp_path):
    """Of one or two checkpoints, on images and on tiles."""
    files = []
    for names in (["cat", "dog"], other):
        if names:
            detector = detector_of(*names)
            content = {
                "state_dict": detector.state_dict(),
                "hyper_parameters": {**detector.hparams},
            }
            files.append(tmp_path / f"{len(files)}.ckpt")
            torch.save(content, files[-1])
    predictor = Predictor.load(files[0], files[1:], GPU, conf=0.0, **options)
    whole = batch_on_cpu()
    large = unlabelled(np.full((100, 150, 3), 114, np.uint8), 0)
    tiles = EvaluationInput(64, 32, tiles=Tiles(64)).batch([large])
    for _, images in predictor.predict_batches([whole, tiles]):
        for rows in images:
            assert len(rows)
