"""YOLOX's published weights: one of them whole, and files with their names, against a forward pass of
their network written from the paper (arXiv 2107.08430), which does not know how the reader names
things."""

import re

import numpy as np
import pytest
import torch
from made_networks import MULTIPLES, copied, same, small
from made_runs import column, load, train
from shared import shared
from torch.nn.functional import batch_norm, conv2d, interpolate, max_pool2d, silu

from boltbox.detector.model.network import YOLOv5, empty_network
from boltbox.detector.system.errors import InputError
from boltbox.detector.weights.start import load_weights
from boltbox.detector.weights.trained import as_typed
from boltbox.detector.weights.yolox import PARTS, STEM, options_for
from examples.yolox_head import YOLOXHead

NARROW = MULTIPLES | {"backbone": "yolox"}


def yolox(**options):
    """A file's tensors by YOLOX's names. Those of the stem keep the maps near 1 for an image of
    0..255; of the head there is one."""
    names = {ours: theirs for theirs, ours in PARTS.items()}
    tensors = {}
    for name, tensor in small(**(NARROW | options)).state_dict().items():
        for ours, theirs in names.items():
            if name.startswith(f"{ours}."):
                rest = re.sub(r"\.cv(\d)", r".conv\1", name.removeprefix(ours))
                tensors[theirs + rest] = tensor
    random = torch.Generator().manual_seed(0)
    tensors[STEM] = torch.randn(len(tensors[STEM]), 12, 3, 3, generator=random) / 700
    tensors["head.stems.0.conv.weight"] = torch.zeros(3)
    return tensors


def write(path, model, zip_format=True, **more):
    content = {"start_epoch": 300, "model": model} | more
    torch.save(content, path, _use_new_zipfile_serialization=zip_format)
    return path


def convolved(tensors, name, x, stride=1):
    """A convolution with batch norm and SiLU; YOLOX-Nano's: of each channel alone, then of all."""
    if f"{name}.dconv.conv.weight" in tensors:
        return convolved(tensors, f"{name}.pconv", convolved(tensors, f"{name}.dconv", x, stride))
    kernel = tensors[f"{name}.conv.weight"]
    norm = f"{name}.bn."
    groups = x.shape[1] // kernel.shape[1]
    x = conv2d(x, kernel, None, stride, (kernel.shape[-1] - 1) // 2, groups=groups)
    mean = tensors[f"{norm}running_mean"]
    var = tensors[f"{norm}running_var"]
    x = batch_norm(x, mean, var, tensors[f"{norm}weight"], tensors[f"{norm}bias"], eps=1e-3)
    return silu(x)


def predictions_of_yolox(tensors, maps):
    """(B, cells of all levels, 5 + C): boxes in pixels, objectness and class scores."""
    levels = []
    for level, x in enumerate(maps):
        x = convolved(tensors, f"head.stems.{level}", x)
        outputs = []
        for name, way in (("reg", "reg"), ("obj", "reg"), ("cls", "cls")):
            y = convolved(tensors, f"head.{way}_convs.{level}.0", x)
            y = convolved(tensors, f"head.{way}_convs.{level}.1", y)
            last = f"head.{name}_preds.{level}"
            outputs.append(conv2d(y, tensors[f"{last}.weight"], tensors[f"{last}.bias"]))
        box, obj, cls = outputs
        cells = torch.meshgrid(*map(torch.arange, box.shape[:1:-1]), indexing="xy")
        centres = box[:, :2] + torch.stack(cells)
        box = torch.cat((centres, box[:, 2:].exp()), 1) * (8 << level)
        levels.append(torch.cat((box, obj.sigmoid(), cls.sigmoid()), 1).flatten(2))
    return torch.cat(levels, 2).transpose(1, 2)


def maps_of_yolox(tensors, image):
    """What YOLOX's neck gives for a BGR image (B, 3, H, W) of 0..255: maps of strides 8, 16 and
    32."""

    def conv(name, x, stride=1):
        return convolved(tensors, name, x, stride)

    def csp(name, x, shortcut=False):
        inner = conv(f"{name}.conv1", x)
        i = 0
        while f"{name}.m.{i}.conv1.conv.weight" in tensors:
            y = conv(f"{name}.m.{i}.conv2", conv(f"{name}.m.{i}.conv1", inner))
            inner = inner + y if shortcut else y
            i = i + 1
        return conv(f"{name}.conv3", torch.cat([inner, conv(f"{name}.conv2", x)], 1))

    def up(x):
        return interpolate(x, scale_factor=2, mode="nearest")

    body = "backbone.backbone"
    corners = [image[..., row::2, column::2] for row, column in ((0, 0), (1, 0), (0, 1), (1, 1))]
    x = conv(f"{body}.stem.conv", torch.cat(corners, 1))
    x = csp(f"{body}.dark2.1", conv(f"{body}.dark2.0", x, 2), shortcut=True)
    x2 = csp(f"{body}.dark3.1", conv(f"{body}.dark3.0", x, 2), shortcut=True)
    x1 = csp(f"{body}.dark4.1", conv(f"{body}.dark4.0", x2, 2), shortcut=True)
    x = conv(f"{body}.dark5.1.conv1", conv(f"{body}.dark5.0", x1, 2))
    x = torch.cat([x] + [max_pool2d(x, side, 1, side // 2) for side in (5, 9, 13)], 1)
    x0 = csp(f"{body}.dark5.2", conv(f"{body}.dark5.1.conv2", x))

    def join(name, a, b):
        return csp(f"backbone.C3_{name}", torch.cat([a, b], 1))

    fpn_out0 = conv("backbone.lateral_conv0", x0)
    fpn_out1 = conv("backbone.reduce_conv1", join("p4", up(fpn_out0), x1))
    pan_out2 = join("p3", up(fpn_out1), x2)
    pan_out1 = join("n3", conv("backbone.bu_conv2", pan_out2, 2), fpn_out1)
    return [pan_out2, pan_out1, join("n4", conv("backbone.bu_conv1", pan_out1, 2), fpn_out0)]


def test_the_maps_are_those_of_yolox(tmp_path):
    network = small(seed=1, **NARROW).eval()
    tensors = yolox()
    load_weights(network, write(tmp_path / "yolox.pth", tensors))
    rgb = torch.randint(256, (2, 3, 64, 96), generator=torch.Generator().manual_seed(0)).float()
    with torch.no_grad():
        ours = network.neck(network.backbone(rgb / 255))
        expected = maps_of_yolox(tensors, rgb.flip(1))
    for a, b in zip(ours, expected, strict=True):
        assert a.shape == b.shape
        assert b.std() > 0.01
        assert (a - b).abs().max() <= 1e-4 * b.abs().max()


NANO = {
    "backbone": "yolox_depthwise",
    "head": {"class_path": f"{YOLOXHead.__module__}.YOLOXHead", "init_args": {"depthwise": True}},
}


def test_the_predictions_of_yolox_nano():
    """The real file, whole: boxes in pixels, objectness and scores, by a forward pass of its own."""
    file = shared("weights/yolox_nano.pth")
    network = YOLOv5(80, **NANO).eval()
    assert load_weights(network, file).line == f"{file}: loaded 642 of 642 tensors"
    image = torch.rand(1, 3, 64, 96, generator=torch.Generator().manual_seed(0))  # RGB
    tensors = load(file)["model"]
    with torch.no_grad():
        found = network.head.decode(network(image))
        expected = predictions_of_yolox(tensors, maps_of_yolox(tensors, 255 * image.flip(1)))
    assert found.shape == expected.shape == (1, 8 * 12 + 4 * 6 + 2 * 3, 85)
    assert (found - expected).abs().max() <= 1e-4 * expected.abs().max()
    assert (found - expected)[..., 4:].abs().max() <= 1e-4

    # on other classes: all but their rows is taken over, unless reuse_head is off
    other = YOLOv5(3, **NANO)
    fresh = copied(other.head)
    assert "the head starts from random values" in load_weights(other, file).line
    assert same(other.head.state_dict(), fresh)
    line = load_weights(other, file, reuse_head=True).line
    assert "class outputs start from random values" in line
    for name, tensor in other.head.state_dict().items():
        expected = fresh[name] if "cls_preds" in name else tensors[f"head.{name}"]
        assert torch.equal(tensor, expected)


@pytest.mark.parametrize("zip_format", [True, False])
def test_a_file_as_a_training_of_yolox_leaves_it(tmp_path, zip_format):
    """With its optimizer's state and the best AP, a number of numpy; the tensors in half precision,
    in torch's two formats. The head starts fresh, and its anchors stay."""
    halves = {n: t.half() if t.is_floating_point() else t for n, t in yolox().items()}
    optimizer = {"state": {0: {"momentum_buffer": torch.zeros(3)}}, "param_groups": [{"lr": 0.01}]}
    more = {"optimizer": optimizer, "best_ap": np.float64(0.4), "curr_ap": None}
    file = write(tmp_path / "yolox.pth", halves, zip_format, **more)
    network = small(seed=1, anchors=[[10, 20] * 2] * 3, **NARROW)
    head = copied(network.head)
    assert not load_weights(network, file, reuse_head=True).has_head
    assert set(column(network.state_dict().values(), "dtype")) == {torch.float32, torch.int64}
    assert same(network.neck.state_dict(), small(**NARROW).neck.state_dict(), atol=0.01)
    assert same(network.head.state_dict(), head)
    assert network.origins == [("yolox.pth", "Apache-2.0, if published by YOLOX")]


def test_the_error_names_the_options_that_fit():
    tiny = {"depth_multiple": 0.33, "width_multiple": 0.375}
    for options in ({"size": "s"}, tiny):
        given = options | {"backbone": "yolox"}
        assert options_for(empty_network(80, given).state_dict()) == given
    expected = "--model.network.depth_multiple 0.33 --model.network.width_multiple 0.375"
    assert as_typed(tiny) == expected


def without(part):
    return lambda tensors: {n: t for n, t in tensors.items() if not n.startswith(part)}


def plus(name, value):
    return lambda tensors: tensors | {name: value}


@pytest.mark.parametrize(
    ("options", "change"),
    [
        ({"width_multiple": 0.25}, dict),
        ({}, plus("backbone.\nC3\udc80.conv.weight", torch.zeros(3))),
        ({}, without("backbone.C3_n4.conv3")),
        ({}, plus(STEM, torch.zeros(8, 3, 6, 6))),
        ({}, plus(STEM, torch.zeros(1).expand(10**9, 12, 3, 3))),
    ],
)
def test_files_that_do_not_fit(tmp_path, options, change):
    """Nothing is left out in silence or half loaded, and the message is one sentence in one
    line."""
    network = small(seed=1, **(NARROW | options))
    file = write(tmp_path / "yolox.pth", change(yolox()))
    before = copied(network)
    with pytest.raises(InputError, match=r"yolox\.pth: ") as error:
        load_weights(network, file)
    assert "\n" not in str(error.value)
    assert same(network.state_dict(), before)


def test_it_starts_a_fit_and_is_no_detector(small_data, here, refused):
    tensors = yolox(depth_multiple=0.1)
    write(here / "yolox.pth", tensors)
    options = "--model.network.backbone yolox --model.network.levels [3,4,5] --model.optim.lr0 0"
    options += " --warmup.warmup_bias_lr 0 --model.start.weights yolox.pth --trainer.max_epochs 1"
    options += " --trainer.limit_train_batches 1 --trainer.limit_val_batches 1"
    train(small_data, here / "run", options)
    ours = load(here / "run/checkpoints/last.ckpt")["state_dict"]["network.neck.down.5.conv.weight"]
    assert torch.equal(ours, tensors["backbone.bu_conv1.conv.weight"])
    told = refused("validate --ckpt_path yolox.pth")
    assert "fit --model.start.weights yolox.pth" in told
