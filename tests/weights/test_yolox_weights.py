"""YOLOX's published weights: files made with their names and shapes, and a forward pass of their
network written from the paper (arXiv 2107.08430), neither of which knows how the reader names
things."""

import functools
import os
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from made_networks import same, small
from made_payloads import Call
from shared import shared
from torch import Tensor
from torch.nn.functional import batch_norm, conv2d, interpolate, max_pool2d, silu

import cli
from boltbox.detector.model.network import YOLOv5
from boltbox.detector.system.errors import InputError
from boltbox.detector.weights.start import load_weights
from boltbox.detector.weights.trained import as_typed, read_trained
from boltbox.detector.weights.yolox import STEM, options_for, our_name, stem_kernel
from examples.yolox_head import YOLOXHead

Tensors = dict[Any, Any]  # by name
NARROW = {"depth_multiple": 0.33, "width_multiple": 0.125, "backbone": "yolox"}


class Layers:
    """Collects layers by name: channels in and out, and the kernel's side."""

    def __init__(self) -> None:
        self.convolutions: list[tuple[str, int, int, int]] = []
        self.predictions: list[tuple[str, int, int]] = []

    def add(self, name: str, c_in: int, c_out: int, side: int = 1) -> None:
        self.convolutions.append((name, c_in, c_out, side))

    def csp(self, name: str, c_in: int, c_out: int, repeats: int) -> None:
        half = c_out // 2
        self.add(f"{name}.conv1", c_in, half)
        self.add(f"{name}.conv2", c_in, half)
        self.add(f"{name}.conv3", 2 * half, c_out)
        for i in range(repeats):
            self.add(f"{name}.m.{i}.conv1", half, half)
            self.add(f"{name}.m.{i}.conv2", half, half, 3)


def layers_of_yolox(depth: float, width: float, classes: int) -> Layers:
    """Focus, CSPDarknet, PAFPN, and the decoupled head without anchors."""
    layers = Layers()
    c = int(64 * width)
    n = max(round(3 * depth), 1)
    body = "backbone.backbone"
    layers.add(f"{body}.stem.conv", 12, c, 3)
    for stage, (wide, repeats) in enumerate(
        [(2 * c, n), (4 * c, 3 * n), (8 * c, 3 * n), (16 * c, n)], 2
    ):
        layers.add(f"{body}.dark{stage}.0", wide // 2, wide, 3)
        if stage == 5:
            layers.add(f"{body}.dark5.1.conv1", wide, wide // 2)
            layers.add(f"{body}.dark5.1.conv2", 4 * (wide // 2), wide)
        layers.csp(f"{body}.dark{stage}.{2 if stage == 5 else 1}", wide, wide, repeats)
    layers.add("backbone.lateral_conv0", 16 * c, 8 * c)
    layers.csp("backbone.C3_p4", 16 * c, 8 * c, n)
    layers.add("backbone.reduce_conv1", 8 * c, 4 * c)
    layers.csp("backbone.C3_p3", 8 * c, 4 * c, n)
    layers.add("backbone.bu_conv2", 4 * c, 4 * c, 3)
    layers.csp("backbone.C3_n3", 8 * c, 8 * c, n)
    layers.add("backbone.bu_conv1", 8 * c, 8 * c, 3)
    layers.csp("backbone.C3_n4", 16 * c, 16 * c, n)
    for level, wide in enumerate((4 * c, 8 * c, 16 * c)):
        layers.add(f"head.stems.{level}", wide, 4 * c)
        for branch in ("cls_convs", "reg_convs"):
            for i in range(2):
                layers.add(f"head.{branch}.{level}.{i}", 4 * c, 4 * c, 3)
        for kind, outputs in (("cls", classes), ("reg", 4), ("obj", 1)):
            layers.predictions.append((f"head.{kind}_preds.{level}", 4 * c, outputs))
    return layers


def tensors_of(layers: Layers) -> OrderedDict[str, Tensor]:
    """Random ones, of a size that keeps the maps near 1 for an image of 0..255."""
    tensors: OrderedDict[str, Tensor] = OrderedDict()
    random = torch.Generator().manual_seed(0)
    for name, c_in, c_out, side in layers.convolutions:
        scale = (2 / (c_in * side**2)) ** 0.5 / (100 if c_in == 12 else 1)
        tensors[f"{name}.conv.weight"] = scale * torch.randn(
            c_out, c_in, side, side, generator=random
        )
        tensors[f"{name}.bn.weight"] = 0.5 + torch.rand(c_out, generator=random)
        tensors[f"{name}.bn.bias"] = torch.randn(c_out, generator=random) / 2
        tensors[f"{name}.bn.running_mean"] = torch.randn(c_out, generator=random) / 2
        tensors[f"{name}.bn.running_var"] = 0.01 + torch.rand(c_out, generator=random)
        tensors[f"{name}.bn.num_batches_tracked"] = torch.tensor(1234)
    for name, c_in, c_out in layers.predictions:
        tensors[f"{name}.weight"] = torch.randn(c_out, c_in, 1, 1, generator=random)
        tensors[f"{name}.bias"] = torch.randn(c_out, generator=random)
    return tensors


@functools.cache
def made(depth: float, width: float, classes: int) -> OrderedDict[str, Tensor]:
    return tensors_of(layers_of_yolox(depth, width, classes))


def yolox(depth: float = 0.33, width: float = 0.125, classes: int = 80) -> OrderedDict[str, Tensor]:
    return OrderedDict(made(depth, width, classes))


def write(path: Path, model: Any, zip_format: bool = True, **more: Any) -> Path:
    torch.save(
        {"start_epoch": 300, "model": model, **more},
        path,
        _use_new_zipfile_serialization=zip_format,
    )
    return path


def convolved(tensors: dict[str, Tensor], name: str, x: Tensor, stride: int = 1) -> Tensor:
    """A convolution with batch norm and SiLU; YOLOX-Nano's: of each channel alone, then of all."""
    if f"{name}.dconv.conv.weight" in tensors:
        return convolved(tensors, f"{name}.pconv", convolved(tensors, f"{name}.dconv", x, stride))
    kernel = tensors[f"{name}.conv.weight"]
    norm = f"{name}.bn."
    groups = x.shape[1] // kernel.shape[1]
    x = conv2d(x, kernel, None, stride, (kernel.shape[-1] - 1) // 2, groups=groups)
    mean, var, weight, bias = (
        tensors[norm + kind] for kind in ("running_mean", "running_var", "weight", "bias")
    )
    return silu(batch_norm(x, mean, var, weight, bias, eps=1e-3))


def predictions_of_yolox(tensors: dict[str, Tensor], maps: list[Tensor]) -> Tensor:
    """(B, cells of all levels, 5 + C): boxes in pixels, objectness and class scores."""
    levels = []
    for level, x in enumerate(maps):
        stride = 8 << level
        x = convolved(tensors, f"head.stems.{level}", x)
        ways = {}
        for way in ("cls", "reg"):
            y = convolved(tensors, f"head.{way}_convs.{level}.0", x)
            ways[way] = convolved(tensors, f"head.{way}_convs.{level}.1", y)
        ways["obj"] = ways["reg"]
        cls, box, obj = (
            conv2d(
                ways[way], *(tensors[f"head.{way}_preds.{level}.{k}"] for k in ("weight", "bias"))
            )
            for way in ("cls", "reg", "obj")
        )
        for column in range(box.shape[3]):
            box[:, 0, :, column] += column
        for row in range(box.shape[2]):
            box[:, 1, row] += row
        box = torch.cat((box[:, :2] * stride, box[:, 2:].exp() * stride), 1)
        levels.append(torch.cat((box, obj.sigmoid(), cls.sigmoid()), 1).flatten(2))
    return torch.cat(levels, 2).transpose(1, 2)


def maps_of_yolox(tensors: dict[str, Tensor], image: Tensor) -> list[Tensor]:
    """What YOLOX's neck gives for a BGR image (B, 3, H, W) of 0..255: maps of strides 8, 16 and
    32."""

    def conv(name: str, x: Tensor, stride: int = 1) -> Tensor:
        return convolved(tensors, name, x, stride)

    def csp(name: str, x: Tensor, shortcut: bool = False) -> Tensor:
        inner = conv(f"{name}.conv1", x)
        i = 0
        while f"{name}.m.{i}.conv1.conv.weight" in tensors:
            y = conv(f"{name}.m.{i}.conv2", conv(f"{name}.m.{i}.conv1", inner))
            inner = inner + y if shortcut else y
            i = i + 1
        return conv(f"{name}.conv3", torch.cat([inner, conv(f"{name}.conv2", x)], 1))

    def up(x: Tensor) -> Tensor:
        return interpolate(x, scale_factor=2, mode="nearest")

    body = "backbone.backbone"
    corners = [image[..., row::2, column::2] for row, column in ((0, 0), (1, 0), (0, 1), (1, 1))]
    x = conv(f"{body}.stem.conv", torch.cat(corners, 1))
    x = csp(f"{body}.dark2.1", conv(f"{body}.dark2.0", x, 2), shortcut=True)
    x2 = csp(f"{body}.dark3.1", conv(f"{body}.dark3.0", x, 2), shortcut=True)
    x1 = csp(f"{body}.dark4.1", conv(f"{body}.dark4.0", x2, 2), shortcut=True)
    x = conv(f"{body}.dark5.1.conv1", conv(f"{body}.dark5.0", x1, 2))
    x = torch.cat([x, *(max_pool2d(x, side, 1, side // 2) for side in (5, 9, 13))], 1)
    x0 = csp(f"{body}.dark5.2", conv(f"{body}.dark5.1.conv2", x))

    fpn_out0 = conv("backbone.lateral_conv0", x0)
    fpn_out1 = conv(
        "backbone.reduce_conv1", csp("backbone.C3_p4", torch.cat([up(fpn_out0), x1], 1))
    )
    pan_out2 = csp("backbone.C3_p3", torch.cat([up(fpn_out1), x2], 1))
    pan_out1 = csp(
        "backbone.C3_n3", torch.cat([conv("backbone.bu_conv2", pan_out2, 2), fpn_out1], 1)
    )
    pan_out0 = csp(
        "backbone.C3_n4", torch.cat([conv("backbone.bu_conv1", pan_out1, 2), fpn_out0], 1)
    )
    return [pan_out2, pan_out1, pan_out0]


@pytest.mark.parametrize(("depth", "width"), [(0.33, 0.125), (0.67, 0.375)])
def test_the_maps_are_those_of_yolox(tmp_path: Path, depth: float, width: float) -> None:
    tensors = yolox(depth, width)
    network = YOLOv5(3, depth_multiple=depth, width_multiple=width, backbone="yolox").eval()
    load_weights(network, write(tmp_path / "yolox.pth", tensors))
    pixels = np.random.default_rng(0).integers(0, 256, (2, 64, 96, 3), dtype=np.uint8)  # RGB
    rgb, bgr = (
        torch.from_numpy(p.copy()).permute(0, 3, 1, 2).float() for p in (pixels, pixels[..., ::-1])
    )
    with torch.no_grad():
        ours, swapped = (network.neck(network.backbone(image / 255)) for image in (rgb, bgr))
        theirs = maps_of_yolox(tensors, bgr)
    for a, b, c in zip(ours, theirs, swapped, strict=True):
        assert a.shape == b.shape
        assert b.std() > 0.1
        assert (a - b).abs().max() <= 1e-4 * b.abs().max()
        assert (c - b).abs().max() > 1e-2 * b.abs().max(), "the order of the colours matters"


NANO = {
    "backbone": "yolox_depthwise",
    "head": {"class_path": f"{YOLOXHead.__module__}.YOLOXHead", "init_args": {"depthwise": True}},
}


def test_the_predictions_of_yolox_nano() -> None:
    """The real file, whole: boxes in pixels, objectness and scores, by a forward pass of its own."""
    file = shared("weights/yolox_nano.pth")
    network = YOLOv5(80, **NANO).eval()
    assert load_weights(network, file).line == f"{file}: loaded 642 of 642 tensors"
    image = torch.rand(1, 3, 64, 96, generator=torch.Generator().manual_seed(0))  # RGB
    tensors = torch.load(file, weights_only=True)["model"]
    with torch.no_grad():
        found = network.decode(network(image))
        expected = predictions_of_yolox(tensors, maps_of_yolox(tensors, 255 * image.flip(1)))
    assert found.shape == expected.shape == (1, 8 * 12 + 4 * 6 + 2 * 3, 85)
    assert (found - expected).abs().max() <= 1e-4 * expected.abs().max()
    assert (found - expected)[..., 4:].abs().max() <= 1e-4


def test_its_head_on_other_classes() -> None:
    """All but the rows of classes is taken over, unless reuse_head is off."""
    file = shared("weights/yolox_nano.pth")
    network = YOLOv5(3, **NANO)
    tensors = torch.load(file, weights_only=True)["model"]
    fresh = {name: t.clone() for name, t in network.head.state_dict().items()}
    assert "the head starts from random values" in load_weights(network, file).line
    assert same(network.head.state_dict(), fresh)
    assert (
        "class outputs start from random values"
        in load_weights(network, file, reuse_head=True).line
    )
    for name, tensor in network.head.state_dict().items():
        expected = fresh[name] if "cls_preds" in name else tensors[f"head.{name}"]
        assert torch.equal(tensor, expected)


@pytest.mark.parametrize(("classes", "anchors"), [(80, None), (3, [[10, 20] * 2] * 3)])
def test_the_head_starts_fresh(
    tmp_path: Path, classes: int, anchors: list[list[int]] | None
) -> None:
    """For as many classes as the file knows too; and its anchors stay, given or not."""
    network = small(classes, anchors=anchors, **NARROW)
    file = write(tmp_path / "yolox.pth", yolox())
    head = {name: t.clone() for name, t in network.head.state_dict().items()}
    count = len(network.state_dict())
    said = load_weights(network, file, keep_anchors=anchors is not None).line
    taken = f"loaded {count - len(head)} of {count} tensors"
    assert (
        said
        == f"{file}: {taken}; the head starts from random values, as its classes or its kind differ"
    )
    assert same(network.head.state_dict(), head)
    assert network.origins == [("yolox.pth", "Apache-2.0, if published by YOLOX")]


@pytest.mark.parametrize("zip_format", [True, False])
def test_a_file_as_a_training_of_yolox_leaves_it(tmp_path: Path, zip_format: bool) -> None:
    """With its optimizer's state and the best AP, a number of numpy; the tensors in half precision,
    in torch's two formats."""
    tensors = yolox()
    halves = OrderedDict(
        (name, t.half() if t.is_floating_point() else t) for name, t in tensors.items()
    )
    halves._metadata = {"": {"version": 1}}  # type: ignore[attr-defined]
    optimizer = {
        "state": {0: {"momentum_buffer": torch.zeros(3)}},
        "param_groups": [{"lr": 0.01, "params": [0]}],
    }
    more = {"optimizer": optimizer, "best_ap": np.float64(0.4), "curr_ap": None, "amp": {}}
    write(tmp_path / "latest_ckpt.pth", halves, zip_format, **more)
    network = small(seed=1, **NARROW)
    whole = small(seed=1, **NARROW)
    load_weights(network, tmp_path / "latest_ckpt.pth")
    load_weights(whole, write(tmp_path / "whole.pth", tensors))
    assert {t.dtype for t in network.state_dict().values()} == {torch.float32, torch.int64}
    assert same(network.neck.state_dict(), whole.neck.state_dict(), atol=0.01)
    assert same(network.backbone.state_dict(), whole.backbone.state_dict(), atol=0.01)
    assert not same(network.neck.state_dict(), small(seed=1, **NARROW).neck.state_dict(), atol=0.01)


def test_a_fit_starts_from_it(
    small_data: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(here / "yolox.pth", yolox())
    options = [
        "--data.dataset",
        str(small_data),
        "--data.image_size",
        "64",
        "--data.batch_size",
        "4",
        "--data.workers",
        "0",
    ]
    options += [
        "--model.start.weights",
        "yolox.pth",
        *(word for k, v in NARROW.items() for word in (f"--model.network.{k}", str(v))),
    ]
    options += [
        "--model.optim.lr0",
        "0",
        "--warmup.warmup_bias_lr",
        "0",
        "--report.enabled",
        "false",
        "--pictures.enabled",
        "false",
    ]
    options += [
        "--trainer.accelerator",
        "cpu",
        "--trainer.max_epochs",
        "1",
        "--trainer.limit_train_batches",
        "1",
    ]
    cli.main(["fit", *options, "--trainer.limit_val_batches", "1", "--run", "run"])
    assert (
        "the head starts from random values, as its classes or its kind differ"
        in capsys.readouterr().out
    )
    state = torch.load(here / "run/checkpoints/last.ckpt", weights_only=True)["state_dict"]
    assert torch.equal(
        state["network.neck.down.5.conv.weight"], yolox()["backbone.bu_conv1.conv.weight"]
    )


@pytest.mark.parametrize(
    ("depth", "width", "options"),
    [
        (
            0.33,
            0.375,
            "--model.network.depth_multiple 0.33 --model.network.width_multiple 0.375",
        ),  # tiny
        (0.33, 0.5, "--model.network.size s"),
        (0.67, 0.75, "--model.network.size m"),
        (1.0, 1.0, "--model.network.size l"),
        (1.33, 1.25, "--model.network.size x"),
    ],
)
def test_the_error_names_the_options_that_fit(depth: float, width: float, options: str) -> None:
    """Tensors without memory: the shapes say it."""
    layers = layers_of_yolox(depth, width, 80)
    with torch.device("meta"):
        given = {
            f"{name}.conv.weight": torch.empty(b, a, k, k) for name, a, b, k in layers.convolutions
        }
        for name, _, channels, _ in layers.convolutions:
            of_norm = ("weight", "bias", "running_mean", "running_var")
            given |= {f"{name}.bn.{kind}": torch.empty(channels) for kind in of_norm}
            given[f"{name}.bn.num_batches_tracked"] = torch.empty((), dtype=torch.int64)
        given[STEM] = stem_kernel(given[STEM])
    found = options_for({our_name(name): tensor for name, tensor in given.items()})
    assert as_typed(found) == f"--model.network.backbone yolox {options}"


@pytest.mark.parametrize(
    "options",
    [
        {"width_multiple": 0.25},
        {"depth_multiple": 0.67},
        {"backbone": "yolov5"},
        {"levels": [3, 4]},
        {"levels": [3, 4, 5, 6]},
        {"levels": [2, 3, 4, 5]},
    ],
    ids=str,
)
def test_a_network_that_is_made_otherwise(tmp_path: Path, options: dict[str, Any]) -> None:
    network = small(**{**NARROW, **options})
    file = write(tmp_path / "yolox.pth", yolox())
    before = {name: t.clone() for name, t in network.state_dict().items()}
    with pytest.raises(InputError, match=r"yolox.pth: these weights do not fit the network"):
        load_weights(network, file)
    assert same(network.state_dict(), before), "nothing is half loaded"


def depthwise(tensors: Tensors) -> Tensors:
    """As YOLOX-Nano: a 3x3 convolution behind the stem is one of each channel (dconv) and a 1x1 one
    of all (pconv)."""
    changed = {}
    for name, tensor in tensors.items():
        layer, _, leaf = name.rpartition(".conv.")
        if leaf and not layer.endswith("stem.conv") and tensor.shape[2:] == (3, 3):
            changed[f"{layer}.dconv.conv.weight"] = tensor[: tensor.shape[1], :1].clone()
            changed[f"{layer}.pconv.conv.weight"] = tensor[..., :1, :1].clone()
        else:
            changed[name] = tensor
    return changed


def without(part: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {
        name: tensor for name, tensor in tensors.items() if not name.startswith(part)
    }


def plus(name: Any, value: Any = None) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {**tensors, name: torch.zeros(3) if value is None else value}


NO_FIT = "these weights do not fit the network"
NO_YOLOX = "damaged, or not a file of YOLOX"
ODD: dict[str, tuple[Callable[[Tensors], Tensors], str]] = {  # and the words in the message
    "depthwise": (depthwise, NO_FIT),
    "another backbone": (
        plus("backbone.backbone.dark3.2.conv.weight"),
        rf"{NO_FIT} \(1 tensors, like .*dark3.2.conv",
    ),
    "another name": (
        plus("backbone.\nC3\udc80.conv.weight"),
        rf"{NO_FIT} \(1 tensors, like .*C3.*conv.weight",
    ),
    "no stem": (without(STEM), "damaged, or not a YOLOv5 checkpoint"),
    "a stem of another kind": (plus(STEM, torch.zeros(8, 3, 6, 6)), NO_YOLOX),
    "a number as a stem": (plus(STEM, torch.zeros(())), NO_YOLOX),
    "a stem without channels": (plus(STEM, torch.zeros(0, 12, 3, 3)), NO_FIT),
    "too little": (
        without("backbone.C3_n4.conv3"),
        rf"{NO_FIT} \(6 tensors, like 'neck.bottom_up.5.cv3",
    ),
    "too much": (
        plus("backbone.C3_n4.m.1.conv1.conv.weight"),
        rf"{NO_FIT} \(1 tensors, like .*5.m.1.cv1",
    ),
    "a list": (plus(STEM, [1.0]), NO_YOLOX),
    "a number as a name": (plus(3), rf"{NO_FIT} \(1 tensors, like '3'\)"),
    "a huge stem": (plus(STEM, torch.zeros(1).expand(10**9, 12, 3, 3)), NO_YOLOX),
}


@pytest.mark.parametrize("kind", ODD)
def test_odd_files(tmp_path: Path, kind: str) -> None:
    """Nothing is left out in silence, and the message is one sentence in one line."""
    change, words = ODD[kind]
    network = small(**NARROW)
    file = write(tmp_path / "yolox.pth", change(yolox()))
    before = {name: t.clone() for name, t in network.state_dict().items()}
    with pytest.raises(InputError, match=words) as error:
        load_weights(network, file)
    said = str(error.value)
    assert said.startswith(f"{file}: ")
    assert "\n" not in said
    assert same(network.state_dict(), before)


@pytest.mark.parametrize(
    "options",
    [["validate", "--ckpt_path"], ["predict", "--source", "x.png", "--ckpt_path"]],
)
def test_no_detector_without_a_training(
    here: Path, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    write(here / "yolox.pth", yolox())
    (here / "x.png").touch()
    with pytest.raises(SystemExit) as end:
        cli.main([*options, "yolox.pth"])
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert "yolox.pth: YOLOX's weights are no whole detector: train one from them" in said
    assert (
        "fit --model.start.weights yolox.pth --model.network.backbone yolox, and use its checkpoint"
        in said
    )


@pytest.mark.parametrize("place", ["model", "optimizer", "instead of a tensor"])
def test_nothing_in_a_file_is_executed(tmp_path: Path, place: str) -> None:
    marker = tmp_path / "marker"
    file = tmp_path / "yolox.pth"
    call = Call(os.mkdir, str(marker))
    tensors = yolox()
    more: dict[str, Any] = {"optimizer": call} if place == "optimizer" else {}
    model: Any = (
        call
        if place == "model"
        else {**tensors, STEM: call}
        if place == "instead of a tensor"
        else tensors
    )
    write(file, model, **more)
    torch.load(file, weights_only=False)
    assert marker.exists(), "the file does run something where nobody minds"
    marker.rmdir()
    network = small(**NARROW)
    for read in (lambda path: load_weights(network, path), read_trained):
        with pytest.raises(
            InputError, match=rf"yolox.pth: .*it names '{os.name}.mkdir', which is refused"
        ):
            read(file)
        assert not marker.exists()


def test_a_file_cut_anywhere(tmp_path: Path) -> None:
    file = tmp_path / "yolox.pth"
    network = small(**NARROW)
    data = write(file, yolox()).read_bytes()
    for end in range(0, len(data), len(data) // 20):
        file.write_bytes(data[:end])
        with pytest.raises(InputError, match=r"yolox.pth: "):
            load_weights(network, file)
