"""A head, an assigner and a loss of the user's own, as docs/parts.md shows them."""

import re
import sys
from functools import partial

import pytest
import torch
from made_options import made_detector
from made_runs import code_of, load, rows, train, type_line

from boltbox.detector.model.head import AnchorHead, Head
from boltbox.detector.model.loss import Loss
from boltbox.detector.model.network import NetworkOptions
from boltbox.detector.model.parts import build_part, find_part, part_config
from boltbox.detector.system.errors import InputError
from boltbox.detector.training.module import Detector

HEAD = "--model.network.head my_parts.FreeHead"
OWN = f"{HEAD} --model.loss.assigner my_parts.BestCells --model.network.head.init_args.hidden 8"
SHORT = "--trainer.limit_train_batches 2 --trainer.limit_val_batches 1 --trainer.max_epochs 1"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the page's files are, outside the tree."""
    made = tmp_path_factory.mktemp("own")
    parts, loss = code_of("parts")
    (made / "my_parts.py").write_text(parts)
    (made / "my_loss.py").write_text(loss)
    return made


@pytest.fixture
def own(folder, monkeypatch):
    """They can be imported."""
    monkeypatch.syspath_prepend(str(folder))
    return folder


@pytest.fixture(scope="module")
def trained(folder, small_data):
    """A run that was resumed, where the command trusts the parts that the run names."""
    run = folder / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        train(small_data, run, f"{OWN} {SHORT}")
        resumed = f"fit --ckpt_path last --run {run} --trust_parts true --trainer.max_epochs 2"
        type_line(resumed)
    return run


def test_they_train_and_resume(trained):
    content = load(trained / "checkpoints/last.ckpt")
    options = content["hyper_parameters"]
    head = {"class_path": "my_parts.FreeHead", "init_args": {"hidden": 8}}
    assert options["network"]["head"] == head
    assigner = {"class_path": "my_parts.BestCells", "init_args": {"top": 2, "side": 4.0}}
    assert options["loss"]["assigner"] == assigner
    assert content["epoch"] == 1
    assert "network.head.anchors" not in content["state_dict"]


def test_they_predict_validate_and_export(trained, own, here, small_data, capfd):
    """`export` itself compares the file with PyTorch, and refuses one that differs. What a file drops
    is missing in its metrics."""
    last = f"--ckpt_path {trained}/checkpoints/last.ckpt --trust_parts true"
    source = small_data.parent / "images/val"
    predict = f"predict {last} --source {source} --conf 0.001 --tta true --csv true --run found"
    type_line(predict)
    assert len(rows(here / "found", "predictions.csv")) > 7
    type_line(f"validate {last} --run valid --report.enabled false")
    assert (here / "valid/metrics.json").is_file()
    type_line(f"export {last} --format onnx --out a.onnx --nms true --conf 0.002")
    type_line(f"validate --ckpt_path a.onnx --data.dataset {small_data} --report.enabled false")
    assert "detections below 0.002 are missing" in capfd.readouterr().out


def test_a_head_without_anchors_is_told(own, here, small_data, capfd, refused):
    type_line(f"anchors --data.dataset {small_data} {HEAD}")
    assert "FreeHead has none" in capfd.readouterr().out
    told = refused(f"fit --data.dataset {small_data} {OWN} --model.network.anchors 3")
    assert "model.network.anchors" in told


def test_a_loss_with_a_term_more(own, here, small_data):
    """Its name is everywhere; chosen in a file."""
    (here / "own.yaml").write_text(
        "model: {loss: {function: {class_path: my_loss.Modest, init_args: {price: 0.5, box: 0.1}}}}\n"
    )
    train(small_data, "run", f"{SHORT} --config own.yaml")
    (row,) = rows(here / "run")
    for name in ("train", "val"):
        assert float(row[f"{name}/sure_loss"]) > 0
    content = load(here / "run/checkpoints/last.ckpt")
    assert content["processes"][0]["epoch_losses"]["sure_loss"] > 0
    assert Detector.load(here / "run/checkpoints/last.ckpt", "cpu").loss.price == 0.5


def test_a_class_that_is_missing(trained, here, refused, monkeypatch):
    """Said with its name and what to do, wherever a checkpoint is read."""
    monkeypatch.delitem(sys.modules, "my_parts", raising=False)
    for line in (
        f"predict --ckpt_path {trained}/checkpoints/last.ckpt --source 0",
        f"fit --ckpt_path last --run {trained}",
    ):
        told = refused(f"{line} --trust_parts true")
        assert re.search(r"model\.(network\.head|loss\.assigner)\b.*my_parts.*PYTHONPATH", told)


@pytest.mark.parametrize(
    "path",
    ["os.system", "pathlib.Path", "boltbox.detector.model.head.nms", "Head", "", "__main__.Head"]
    + ["boltbox.detector.model.loss.Loss"],
)
def test_nothing_else_is_called(path):
    """Neither functions nor other classes nor abstract ones."""
    with pytest.raises(InputError, match=r"model\.loss\.function"):
        build_part({"class_path": path, "init_args": {}}, Loss, "model.loss.function")


def test_a_class_within_a_function():
    """A checkpoint could not name it."""

    class Inner(AnchorHead):
        pass

    with pytest.raises(InputError, match=r"model\.network\.head: .*<locals>\.Inner"):
        part_config(Inner, Head, "model.network.head")


def test_a_script_gives_classes(own):
    from my_parts import FreeHead

    def made(head):
        return Detector(["a", "b"], network=NetworkOptions(width_multiple=0.125, head=head))

    expected = {"class_path": "my_parts.FreeHead", "init_args": {"hidden": 4}}
    assert made(partial(FreeHead, hidden=4)).hparams["network"]["head"] == expected
    assert find_part({"class_path": "my_parts.FreeHead"}, Head, "x") is FreeHead

    class Inner(FreeHead):
        pass

    for wrong in (
        FreeHead([8], [8], 2),
        dict,
        Inner,
        partial(print),
        partial(FreeHead, hidden=torch.zeros(1)),
        partial(FreeHead, hidden=4, colour=1),
    ):
        with pytest.raises(InputError, match=r"model\.network\.head"):
            made(wrong)


def test_weights_of_another_head(own, trained):
    """Backbone and neck are taken."""
    last = trained / "checkpoints/last.ckpt"
    content = load(last)
    options = {"width_multiple": 0.125, "depth_multiple": 0.1, "levels": [5]}
    names = content["hyper_parameters"]["names"]
    network = made_detector(names, weights=str(last), **options).network
    assert isinstance(network.head, AnchorHead)
    stem = content["state_dict"]["ema.backbone.stem.conv.weight"]
    assert torch.equal(network.backbone.stem.conv.weight, stem)
