"""Networks whose output is not finite, and checkpoints with an impossible size: one sentence at
every door, not an empty result."""

from pathlib import Path

import lightning as L
import pytest
import torch
import yaml
from made_predictions import checkpoint_file, pictures_folder  # noqa: F401
from made_runs import read

import cli
from boltbox.detector.inference.predictor import Predictor
from boltbox.detector.system.errors import InputError
from boltbox.detector.training.module import Detector

WEIGHT = "backbone.stem.conv.weight"
DOORS = {
    "predict": "predict --ckpt_path bad.ckpt",
    "ensemble": "predict --ckpt_path good.ckpt --ensemble [bad.ckpt]",
    "validate": "validate --ckpt_path bad.ckpt",
    "validate ensemble": "validate --ckpt_path good.ckpt --ensemble [bad.ckpt]",
    "export": "export --ckpt_path bad.ckpt",
}
OPTIONS = {
    "predict": "--source pictures --run out --device cpu --workers 0",
    "validate": "--data.dataset data.yaml --data.workers 0 --run out --trainer.accelerator cpu"
    " --data.image_size 64",
    "export": "",
}


def bad_checkpoint(checkpoint, factor=1.0, **changed):
    """good.ckpt and bad.ckpt in the working folder."""
    content = torch.load(checkpoint, weights_only=True)
    torch.save(content, "good.ckpt")
    for name, tensor in content["state_dict"].items():
        if name.startswith("ema.backbone") and tensor.ndim == 4:
            tensor *= factor
    torch.save(content | changed, "bad.ckpt")


def refused(door, data, capsys):
    names = read(data)["names"]
    images = str(data.parent / "images/val")
    Path("data.yaml").write_text(yaml.safe_dump({"train": images, "val": images, "names": names}))
    words = DOORS[door].split()
    capsys.readouterr()
    with pytest.raises(SystemExit) as leaving:
        cli.main(words + OPTIONS[words[0]].split())
    assert leaving.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    return next(text for text in lines if text.startswith("error: "))


@pytest.mark.parametrize("door", DOORS)
def test_at_every_door(
    door,
    checkpoint,
    pictures,
    small_data,
    capsys,
):
    """Weights that are not finite; but for ensembles, an output of weights that are, and an
    impossible size."""
    bad_checkpoint(checkpoint, factor=float("nan"))
    told = refused(door, small_data, capsys)
    assert "bad.ckpt: " in told
    assert WEIGHT in told
    if "ensemble" in door:
        return
    bad_checkpoint(checkpoint, factor=1e30)
    assert "output" in refused(door, small_data, capsys)
    bad_checkpoint(checkpoint, image_size=-64)
    told = refused(door, small_data, capsys)
    assert "bad.ckpt: " in told
    assert "-64" in told


def test_in_python(checkpoint, pictures):
    """A Detector whose weights became NaN in memory too."""
    bad_checkpoint(checkpoint, factor=float("nan"))
    for load in (Predictor.load, Detector.load):
        with pytest.raises(InputError, match=f"bad.ckpt: .*{WEIGHT}"):
            load("bad.ckpt", device="cpu")
    detector = Detector.load("good.ckpt", "cpu")
    image = pictures / "0000.jpg"
    predictor = detector.make_predictor()
    with torch.no_grad():
        detector.network.backbone.stem.conv.weight.fill_(float("nan"))
    with pytest.raises(InputError, match=WEIGHT):
        detector.predict(image)
    assert predictor.predict(image) is not None  # it has a copy of the weights
    trainer = L.Trainer(accelerator="cpu", logger=False, enable_progress_bar=False)
    with pytest.raises(InputError, match=WEIGHT):
        trainer.predict(detector, torch.utils.data.DataLoader(torch.rand(2, 3, 64, 64)))
