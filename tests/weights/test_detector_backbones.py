"""The backbones of other people's detectors, which are timm's: files with the names and shapes that
are published, against a forward pass of timm's own model."""

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import Tensor

from boltbox.detector.model.network import YOLOv5
from boltbox.detector.model.timm_backbone import TimmBackbone
from boltbox.detector.system.errors import InputError
from boltbox.detector.weights.start import StartOptions

LITE = "tf_efficientnet_lite0"
HGNET = "hgnetv2_b0"
# names in the files of effdet's EfficientDet-Lite0, and of D-FINE, DEIM and RT-DETRv4
PUBLISHED = {
    LITE: (
        "backbone.conv_stem.weight",
        "backbone.blocks.1.0.conv_pw.weight",
        "backbone.blocks.6.0.bn3.bias",
    ),
    HGNET: (
        "backbone.stem.stem2a.lab.scale",
        "backbone.stages.0.blocks.0.aggregation.0.conv.weight",
        "backbone.stages.2.blocks.0.layers.0.conv1.bn.running_var",
        "backbone.stages.3.downsample.conv.weight",
    ),
}
REST = {
    LITE: {"fpn.resample.3.conv.conv.weight": torch.zeros(4), "class_net.predict.conv_pw.bias": torch.zeros(4)},
    HGNET: {"encoder.input_proj.0.conv.weight": torch.zeros(4), "decoder.enc_score_head.bias": torch.zeros(4)},
}  # fmt: skip


def other(name: str) -> Any:
    """The backbone, with weights and statistics that differ from a fresh one's."""
    torch.manual_seed(7)
    body = timm.create_model(name, features_only=True)
    for module in body.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 2)
    return body.eval()


def detector_file(name: str, body: Any, path: Path) -> Path:
    """As its authors' training leaves it: of the backbone what gives the maps, and the rest."""
    own = {key.replace("stages_", "stages."): t for key, t in body.state_dict().items()}
    tensors: dict[str, Tensor] = {f"backbone.{key}": t for key, t in own.items()} | REST[name]
    assert set(PUBLISHED[name]) <= tensors.keys()
    torch.save({"model": {}, "ema": {"module": tensors}} if name == HGNET else tensors, path)
    return path


@pytest.mark.parametrize("name", [LITE, HGNET])
def test_the_maps_are_those_of_the_detector(name: str, tmp_path: Path) -> None:
    """Of D-FINE's family the image is not normalised, as there."""
    body = other(name)
    network = YOLOv5(3, backbone=f"timm/{name}").eval()
    StartOptions(backbone_weights=str(detector_file(name, body, tmp_path / "d.pth"))).load(
        network, [], False
    )
    image = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    backbone = network.backbone
    assert isinstance(backbone, TimmBackbone)
    with torch.no_grad():
        found = backbone.body(backbone.normalise(image))
        expected = body(image if name == HGNET else (image - 0.5) / 0.5)[-3:]
    for ours, theirs in zip(found, expected, strict=True):
        assert theirs.std() > 0
        torch.testing.assert_close(ours, theirs)


def test_a_detector_with_another_backbone(tmp_path: Path) -> None:
    file = detector_file(LITE, other(LITE), tmp_path / "lite.pth")
    network = YOLOv5(3, backbone=f"timm/{HGNET}")
    with pytest.raises(InputError, match=f"lite.pth: these are not of timm/{HGNET}"):
        StartOptions(backbone_weights=str(file)).load(network, [], False)
