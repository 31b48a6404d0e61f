"""A folder for the Hugging Face Hub, written and read back."""

import json

import huggingface_hub
import numpy as np
import pytest
from made_networks import same
from made_predictions import checkpoint_file, pictures_folder  # noqa: F401
from made_runs import type_line

from boltbox import Detector, Predictor
from boltbox.detector.model.network import Origin
from boltbox.detector.system.errors import InputError
from boltbox.detector.training.hub_folder import METRICS


def test_a_folder_and_back(checkpoint, pictures, here, capsys):
    """Tensors, detections, origins and card; damaged or foreign folders are refused."""
    (here / "run").mkdir()
    values = {name: number / 10 for number, name in enumerate(METRICS)}
    content = values | {"images": 9, "split": "val", METRICS[-1]: None}
    del values[METRICS[-1]]
    (here / "run/metrics.json").write_text(json.dumps(content))
    (here / "run/config.yaml").write_text("data: {dataset: 'sets/pets: all/data.yaml'}")
    detector = Detector.load(checkpoint, "cpu")
    detector.network.origins = [Origin("a.pt", "MIT")]
    convs = detector.network.head.convs
    convs[1].bias = convs[0].bias  # a head whose layers share a tensor
    detector.save_pretrained("hub", "run", "me/pets")
    back = Detector.from_pretrained("hub", "cpu")
    assert same(back.network.state_dict(), detector.network.state_dict())
    assert back.network.origins == detector.network.origins
    before = detector.make_predictor(conf=0.0005).predict("pictures", image_size=64)
    after = Predictor.load("hub", conf=0.0005).predict("pictures", image_size=64)
    for a, b in zip(before, after, strict=True):
        assert len(a)
        assert np.array_equal(a.xyxy, b.xyxy)
    type_line("strip hub --out small.ckpt")
    assert "(0.0 MB" not in capsys.readouterr().out
    card = huggingface_hub.ModelCard.load("hub/README.md").data
    assert card.license == "mit"
    assert {result.dataset_name for result in card.eval_results} == {"pets: all"}
    assert {result.metric_type: result.metric_value for result in card.eval_results} == values

    written = (here / "hub/config.json").read_bytes()
    with pytest.raises(InputError):
        detector.save_pretrained("hub")
    other_head = json.loads(written)
    other_head["hyper_parameters"]["network"]["head"] = {"class_path": "os.system"}
    tensors_file = here / "hub/model.safetensors"
    for config, cut in (
        (b"[]", 0),
        (json.dumps(other_head).encode(), 0),
        (written.replace(b'"cross"', b'"cross", "hat"'), 0),
        (written, 1),
    ):
        (here / "hub/config.json").write_bytes(config)
        tensors_file.write_bytes(tensors_file.read_bytes()[: -cut or None])
        with pytest.raises(InputError):
            Detector.from_pretrained("hub", "cpu")
