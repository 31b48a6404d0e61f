"""Exported files: graphs that are made once, images, the comparison with PyTorch."""

import copy

import numpy as np
import pytest
import torch

from boltbox.detector.data.demo import draw_image
from boltbox.detector.data.transforms.letterbox import letterbox
from boltbox.detector.inference import onnx_formats, torch_formats


@pytest.fixture(scope="module", autouse=True)
def graphs():
    """torch.export takes seconds, to ONNX it takes more: each is done once for a network, whatever
    it is written as."""
    made = {}

    def once(function):
        def copied(graph, metadata):
            shape = None if metadata.dynamic else (metadata.batch, metadata.image_size)
            weights = [(p.dtype, float(p.double().abs().sum())) for p in graph.parameters()]
            key = str((function, type(graph), metadata.nms, shape, weights))
            if key not in made:
                made[key] = function(graph, metadata)
            return copy.deepcopy(made[key])

        return copied

    with pytest.MonkeyPatch.context() as patch:
        for module in (onnx_formats, torch_formats):
            patch.setattr(module, "exported_program", once(module.exported_program))
        patch.setattr(onnx_formats, "onnx_model", once(onnx_formats.onnx_model))
        yield


def images(batch, height, width):
    """Other images than the command has looked at."""
    drawn = []
    for i in range(batch):
        image = draw_image(np.random.default_rng(50 + i))[0]
        drawn.append(letterbox(image, (height, width))[0])
    return torch.from_numpy(np.stack(drawn)).permute(0, 3, 1, 2).float() / 255


def compare(exported, network, seen, tolerance):
    with torch.no_grad():
        expected = network(seen)
    assert expected[..., 4].std() > 0.03  # the output is not the same everywhere
    torch.testing.assert_close(exported(seen), expected, rtol=0, atol=tolerance)
