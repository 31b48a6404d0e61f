"""Checkpoints that are whole and harmless, and hold something else than they should: one sentence,
and nothing half done."""

import copy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from made_networks import small, yolov5_converter  # noqa: F401
from small_fit import small_fit

import cli
from boltbox.detector.checkpoint.reader import newest_valid, read_checkpoint
from boltbox.detector.checkpoint.writer import AtomicCheckpointIO
from boltbox.detector.model.network import YOLOv5
from boltbox.detector.system.errors import InputError
from boltbox.detector.training.module import Detector
from boltbox.detector.weights.start import load_weights
from boltbox.detector.weights.trained import read_trained


@pytest.fixture(scope="module")
def run(small_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one epoch, not to be written to: `previous.ckpt` is from before its last batch, with
    a window of gradients open."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    options = "--data.batch_size 4 --model.optim.nominal_batch_size 8 --warmup.warmup_epochs 0"
    options += " --trainer.limit_train_batches 4 --checkpoints.every_minutes 1e-9"
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("BOLTBOX_RUN", raising=False)
        cli.main(small_fit(small_data, folder, "--trainer.max_epochs", "1", *options.split()))
    return folder


@pytest.fixture(scope="module")
def whole(run: Path) -> dict[str, Any]:
    return torch.load(run / "checkpoints/previous.ckpt", weights_only=True)


def test_real_checkpoints_pass(run: Path, whole: dict[str, Any]) -> None:
    """In the middle of an epoch and after it."""
    assert whole["processes"][0]["gradients"]
    assert whole["optimizer_states"][0]["state"]
    for name in ("previous", "last", "best"):
        assert read_checkpoint(run / f"checkpoints/{name}.ckpt")


Craft = Callable[[dict[str, Any]], object]
CRAFTED: dict[str, Craft] = {  # the command that meets it, and what
    "fit: no loops": lambda c: c.pop("loops"),
    "fit: progress": lambda c: c["loops"]["fit_loop"].update(epoch_progress={"total": []}),
    "fit: batch progress": lambda c: c["loops"]["fit_loop"].update(
        {"epoch_loop.batch_progress": 3}
    ),
    "fit: no optimizer": lambda c: c.update(optimizer_states=[]),
    "fit: callbacks": lambda c: c.update(callbacks={"EMA": 3}),
    "fit: processes": lambda c: c.update(processes=[{"gradients": []}]),
    "fit: data": lambda c: c.update(DetectionData={"class_maps": 3}),
    "fit: tensors": lambda c: c.update(state_dict={"network.a": 1}),
    "start: tensors": lambda c: c.update(state_dict={"network.a": 1}),
    "start: a tensor larger than the file": lambda c: c["state_dict"].update(
        {"ema.backbone.stem.conv.weight": torch.zeros(1).expand(10**11)}
    ),
    "validate: names": lambda c: c["hyper_parameters"].update(names={"a": 1}),
    "validate: no names": lambda c: c["hyper_parameters"].update(names=[]),
    "predict: names that cannot be written": lambda c: c["hyper_parameters"].update(
        names=["\ud800", *"bcde"]
    ),
    "predict: a tensor less": lambda c: c["state_dict"].pop("ema.head.anchors"),
    "predict: a huge network": lambda c: c["hyper_parameters"]["network"].update(
        depth_multiple=1e9
    ),
    "ensemble: levels": lambda c: c["hyper_parameters"]["network"].update(levels="345"),
    "export: a word": lambda c: c["hyper_parameters"]["network"].update(depth_multiple="much"),
    "python: options": lambda c: c["hyper_parameters"]["network"].update(size=3),
}


@pytest.mark.parametrize("case", CRAFTED)
def test_one_sentence_and_nothing_lost(
    case: str,
    run: Path,
    whole: dict[str, Any],
    small_data: Path,
    here: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    content = copy.deepcopy(whole)
    CRAFTED[case](content)
    shutil.copytree(run, here / "run")
    crafted = str(here / "run/checkpoints/best.ckpt")
    good = str(here / "run/checkpoints/last.ckpt")
    torch.save(content, crafted)
    command = case.partition(":")[0]
    data = ["--data.dataset", str(small_data)]
    image = ["--source", str(next(small_data.parent.rglob("*.jpg")))]
    line = {
        "fit": ["fit", "--ckpt_path", "best", "--run", "run"],
        "start": small_fit(small_data, Path("new"), "--model.start.weights", crafted),
        "validate": ["validate", "--ckpt_path", crafted, *data],
        "predict": ["predict", "--ckpt_path", crafted, *image],
        "ensemble": ["predict", "--ckpt_path", good, "--ensemble", f"[{crafted}]", *image],
        "export": ["export", "--ckpt_path", crafted],
    }
    if command == "python":
        with pytest.raises(InputError, match=r"best\.ckpt: "):
            Detector.load(crafted)
        return
    before = {path: path.read_bytes() for path in (here / "run/checkpoints").iterdir()}
    with pytest.raises(SystemExit) as leaving:
        cli.main(line[command])
    told = capsys.readouterr().err.strip()
    assert leaving.value.code == 2
    assert told.startswith("error: ")
    assert len(told.splitlines()) == 1
    assert len(told) < 1000
    assert {path: path.read_bytes() for path in (here / "run/checkpoints").iterdir()} == before
    assert not (here / "new").exists()


def cyclic(model: Any) -> None:
    model._modules["model"]._modules["0"] = model


def anchors(tensor: torch.Tensor) -> Callable[[Any], object]:
    return lambda model: model.get_submodule("model.24")._buffers.update(anchors=tensor)


YOLOV5: dict[str, Callable[[Any], object]] = {
    "names are a number": lambda m: setattr(m, "names", 3),
    "names with unusual keys": lambda m: setattr(m, "names", {"a": "b", 1: "c"}),
    "nc is a word": lambda m: setattr(m, "nc", "three"),
    "nc is huge": lambda m: setattr(m, "nc", 10**12),
    "buffers are a list": lambda m: m.__dict__.update(_buffers=[1]),
    "modules are a word": lambda m: m.__dict__.update(_modules="x"),
    "a module holds itself": cyclic,
    "anchors are a number": anchors(torch.zeros(())),
    "anchors are many": anchors(torch.zeros(3, 1, 2).expand(3, 10**8, 2)),
    "a sparse tensor": anchors(torch.eye(3).to_sparse()),
    "multiples are huge": lambda m: setattr(
        m, "yaml", {"depth_multiple": 1e12, "width_multiple": 1e12}
    ),
    "multiples are no numbers": lambda m: setattr(
        m, "yaml", {"depth_multiple": float("nan"), "width_multiple": "x"}
    ),
    "yaml is a list": lambda m: setattr(m, "yaml", [1]),
}


@pytest.mark.parametrize("case", YOLOV5)
def test_crafted_files_of_yolov5(case: str, tmp_path: Path, as_yolov5: Callable[..., Any]) -> None:
    """One sentence, from `predict`, `export` and an ensemble, which read it alike, and as weights
    to start from."""
    model = as_yolov5(small(3), yaml={"depth_multiple": 0.33, "width_multiple": 0.125})
    if "nc" not in case:
        model.names = ["a", "b", "c"]
    YOLOV5[case](model)
    torch.save({"model": model}, tmp_path / "crafted.pt")
    with pytest.raises(InputError, match=r"crafted.pt: ") as told:
        read_trained(tmp_path / "crafted.pt")
    assert len(str(told.value).splitlines()) == 1
    network = YOLOv5(4, depth_multiple=0.33, width_multiple=0.25)
    with pytest.raises(InputError, match=r"crafted.pt: "):
        load_weights(network, tmp_path / "crafted.pt")


class Own:
    """What weights_only does not read."""


@pytest.mark.parametrize(
    "content", [{"a": Path("b")}, {"a": Own()}, [1]], ids=["a path", "an object", "a list"]
)
def test_what_could_not_be_read_again_is_not_saved(
    content: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "last.ckpt"
    good = dict.fromkeys(
        ("state_dict", "hyper_parameters", "optimizer_states", "loops", "callbacks")
    )
    AtomicCheckpointIO().save_checkpoint(good, path)
    AtomicCheckpointIO().save_checkpoint(content, path)
    assert f"warning: {path} could not be saved" in capsys.readouterr().out
    assert newest_valid(tmp_path) == (path, good)
