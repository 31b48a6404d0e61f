"""Image backbones of timm: their maps, their weights, how they are trained, and what is said where
one cannot serve."""

import json
import sys

import numpy as np
import onnx
import pytest
import timm
import torch
from made_backbones import EFFICIENT, MAMBAOUT, RESNET, settled
from made_options import made_detector
from made_runs import column, read, type_line
from safetensors.torch import save_file

from boltbox.detector.inference.predictor import Predictor
from boltbox.detector.model.network import YOLOv5
from boltbox.detector.model.timm_backbone import TimmBackbone
from boltbox.detector.system.errors import InputError
from boltbox.detector.weights.start import load_weights
from boltbox.detector.weights.timm import load_backbone

CHANNELS = {1: 16, 2: 32, 3: 64, 4: 128, 5: 256}


def maps_by_hand(name, weights, images):
    """Those of strides 8, 16 and 32 of timm's own model, for images in 0..1."""
    model = timm.create_model(name).eval()
    model.load_state_dict(weights)
    mean = torch.tensor(model.pretrained_cfg["mean"]).view(3, 1, 1)
    std = torch.tensor(model.pretrained_cfg["std"]).view(3, 1, 1)
    _, maps = model.forward_intermediates((images - mean) / std)
    return maps[-3:]


@pytest.mark.parametrize("name", [RESNET, MAMBAOUT])
@torch.no_grad()
def test_maps_are_those_of_timm_with_the_weights_of_a_file(name, tmp_path):
    torch.manual_seed(0)
    model = settled(timm.create_model(name))
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    backbone = TimmBackbone(name, CHANNELS, 3).eval()
    _, origin = load_backbone(backbone, str(tmp_path / "model.safetensors"))
    assert origin == ("model.safetensors", "unknown")
    images = torch.rand(2, 3, 64, 96)
    seen = []
    backbone.body.register_forward_hook(lambda module, given, maps: seen.extend(maps))
    outputs = backbone(images)
    for ours, reference in zip(seen, maps_by_hand(name, model.state_dict(), images), strict=True):
        maps = ours.permute(0, 3, 1, 2) if name == MAMBAOUT else ours
        torch.testing.assert_close(maps, reference, rtol=1e-4, atol=1e-4)
    shapes = {3: (2, 64, 8, 12), 4: (2, 128, 4, 6), 5: (2, 256, 2, 3)}
    assert outputs.keys() == shapes.keys()
    for level, maps in outputs.items():
        assert maps.shape == shapes[level]


@pytest.mark.parametrize(
    ("size", "name", "strides"),
    [
        ("p2", "dla46_c", [4, 8, 16, 32]),  # of whose maps timm leaves out the first
        ("p34", RESNET, [8, 16]),
        ("p7", RESNET, [8, 16, 32, 64, 128]),
    ],
)
@torch.no_grad()
def test_levels_that_a_backbone_has_and_has_not(size, name, strides):
    options = {"depth_multiple": 0.1, "width_multiple": 0.125, "backbone": f"timm/{name}"}
    network = YOLOv5(2, size, **options).eval()
    raw = network(torch.rand(1, 3, 128, 256))
    for maps, stride in zip(raw, strides, strict=True):
        assert maps.shape[2:4] == (128 // stride, 256 // stride)
    number = 2 * max(*network.strides, 32).bit_length() - 2
    assert network.layer_names()[number].startswith("neck.lateral")


def test_files_as_others_write_them(tmp_path):
    """Wrapped, with the prefix of DistributedDataParallel, with names that are not timm's, with
    other classes or none; one of another model changes nothing."""
    torch.manual_seed(0)
    state = settled(timm.create_model(RESNET)).state_dict()
    body = dict(state)
    del body["fc.weight"], body["fc.bias"]
    files = {
        "without.pth": body,
        "classes.pth": body | {"fc.weight": state["fc.weight"][:7], "fc.bias": torch.zeros(7)},
        "wrapped.pth": {"epoch": 3, "state_dict": {f"module.{k}": v for k, v in state.items()}},
        "renamed.pth": {f"_{i}": v for i, (k, v) in enumerate(state.items())},
        "other.pth": timm.create_model(EFFICIENT).state_dict(),
        "empty.pth": {"epoch": 3},
    }
    for name, content in files.items():
        torch.save(content, tmp_path / name)
        body = TimmBackbone(RESNET, CHANNELS, 3)
        before = body.body.state_dict()["conv1.0.weight"].clone()
        if name in ("other.pth", "empty.pth"):
            with pytest.raises(InputError, match=name):
                load_backbone(body, str(tmp_path / name))
        else:
            load_backbone(body, str(tmp_path / name))
            before = state["conv1.0.weight"]
        assert torch.equal(body.body.state_dict()["conv1.0.weight"], before)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("resnet_18", "'resnet18'"),
        ("test_vit", "strides 8, 16, 32 "),
        ("inception_v3", "strides"),
        ("resnet18.no_such_tag", "no_such_tag"),
        ("hf-hub:someone/something", "timm"),
    ],
)
def test_a_backbone_that_cannot_serve(name, words):
    with pytest.raises(InputError, match=f"model.network.backbone timm/{name}.*{words}"):
        YOLOv5(1, backbone=f"timm/{name}")


def test_without_timm(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(InputError, match=r"model.network.backbone timm/.*pip install .*timm"):
        YOLOv5(1, backbone=f"timm/{RESNET}")


def test_a_checkpoint_tells_its_origin_and_needs_no_weights(small_data, here, monkeypatch):
    """Validated, exported, and as the start of another training. The exported file finds the same
    objects, and needs no timm."""
    names = ["disc", "ring", "star", "triangle", "cross"]
    small = {"width_multiple": 0.125, "depth_multiple": 0.1, "levels": [5]}
    detector = made_detector(names, backbone=f"timm/{RESNET}", **small)
    origin = {"source": "model.safetensors", "licence": "mit"}
    content = {"state_dict": detector.state_dict(), "hyper_parameters": dict(detector.hparams)}
    torch.save(content | {"origins": [origin], "image_size": 64}, "a.ckpt")
    quiet = "--report.enabled false --run v"
    type_line(f"validate --ckpt_path a.ckpt --data.dataset {small_data} {quiet}")
    assert read(here / "v/metrics.json")["origins"] == [origin]
    type_line("export --ckpt_path a.ckpt --format onnx --out a.onnx")
    metadata = {entry.key: entry.value for entry in onnx.load("a.onnx").metadata_props}
    assert json.loads(metadata["origins"]) == [origin]
    torch.save(content, "unrecorded.ckpt")
    torch.save(content | {"origins": []}, "scratch.ckpt")
    for file, source in (
        ("a.ckpt", "model.safetensors via a.ckpt"),
        ("unrecorded.ckpt", "an unrecorded source via unrecorded.ckpt"),
        ("scratch.ckpt", "scratch.ckpt, trained from scratch"),
    ):
        load_weights(detector.network, file)
        assert column(detector.network.origins, "source") == [source]
    # the surest detection, which no suppression takes away
    images = sorted((small_data.parent / "images/val").iterdir())[:2]
    expected = Predictor.load("a.ckpt", conf=0.0001, max_det=1).predict(images)
    monkeypatch.setitem(sys.modules, "timm", None)
    exported = Predictor.load("a.onnx", conf=0.0001, max_det=1).predict(images)
    for ours, reference in zip(exported, expected, strict=True):
        assert ours.class_id == reference.class_id
        assert np.allclose(ours.xyxy, reference.xyxy, atol=0.05)
