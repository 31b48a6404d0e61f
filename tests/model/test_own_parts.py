"""A head, an assigner and a loss of the user's own, as docs/parts.md shows them."""

import copy
import csv
import os
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from forked import forks

import cli
from benchmarks.resume_fuzz import command, difference
from boltbox.detector.inference.predictor import forward_function
from boltbox.detector.inference.tta import PASSES, augmented, scaled
from boltbox.detector.model.assigner import Assigner
from boltbox.detector.model.head import AnchorHead, Head
from boltbox.detector.model.loss import Loss
from boltbox.detector.model.network import NetworkOptions, YOLOv5
from boltbox.detector.model.parts import build_part, find_part, part_config
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.trusted import trusting
from boltbox.detector.training.module import Detector
from boltbox.detector.weights.start import StartOptions

ROOT = Path(cli.__file__).parent
OWN = [
    "--model.network.head",
    "my_parts.FreeHead",
    "--model.network.head.init_args.hidden",
    "8",
    "--model.loss.assigner",
    "my_parts.BestCells",
]
SMALL = ["--data.image_size", "64", "--data.workers", "0", "--data.batch_size", "12", "--model.network.width_multiple", "0.125",
         "--model.network.depth_multiple", "0.1", "--trainer.accelerator", "cpu", "--trainer.precision", "32-true",
         "--trainer.enable_progress_bar", "false", "--report.enabled", "false", "--pictures.enabled", "false"]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the page's files are, outside the tree."""
    made = tmp_path_factory.mktemp("own")
    parts, loss = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs/parts.md").read_text(), re.DOTALL
    )
    assert len(parts.splitlines()) < 80
    (made / "my_parts.py").write_text(parts)
    (made / "my_loss.py").write_text(loss)
    return made


@pytest.fixture
def own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """They can be imported."""
    monkeypatch.syspath_prepend(str(folder))
    return folder


def fit(line: list[str], folder: Path, kill: str = "") -> int:
    """A training in a process of its own; its exit code."""
    environment = {
        **os.environ,
        "BOLTBOX_KILL": kill,
        "PYTHONPATH": f"{ROOT}:{folder}",
        "OMP_NUM_THREADS": "1",
    }
    for name in ("BOLTBOX_RUN", "PYTEST_XDIST_WORKER"):
        environment.pop(name, None)
    log = folder / "log"
    with forks(), log.open("a") as file:
        done = subprocess.run(
            line,
            env=environment,
            cwd=folder,
            stdout=file,
            stderr=file,
            start_new_session=True,
            check=False,
        )
    code = done.returncode
    assert code in (0, -signal.SIGKILL), log.read_text()[-3000:]
    return code


@pytest.fixture(scope="module")
def trained(folder: Path, small_data: Path) -> Path:
    """A run that was killed and resumed, where the command trusts the parts that the run names,
    beside one that was not; they are the same."""
    whole = folder / "whole"
    run = folder / "run"
    # Six steps leave scores that differ by rounding errors only, unless statistics lag: an export
    # could not tell them apart.
    short = ["--trainer.max_epochs", "2", "--trainer.limit_train_batches", "3"]
    short += ["--trainer.limit_val_batches", "1", "--model.network.bn_momentum", "0.03"]
    short += ["--doctor.enabled", "false"]
    assert fit([*command(small_data, whole, 0, 1, False), *short, *OWN], folder) == 0
    assert (
        fit([*command(small_data, run, 0, 1), *short, *OWN], folder, "batch:4") == -signal.SIGKILL
    )
    assert (
        fit(
            [
                *command(small_data, run, 0, 1)[:3],
                "--ckpt_path",
                "last",
                "--run",
                str(run),
                "--trust_parts",
                "true",
            ],
            folder,
        )
        == 0
    )
    assert not difference(run, whole)
    return run


def test_they_train_and_resume_to_the_bit(trained: Path) -> None:
    content = torch.load(trained / "checkpoints/last.ckpt", weights_only=True)
    options = content["hyper_parameters"]
    assert options["network"]["head"] == {
        "class_path": "my_parts.FreeHead",
        "init_args": {"hidden": 8},
    }
    assert options["loss"]["assigner"] == {
        "class_path": "my_parts.BestCells",
        "init_args": {"top": 2, "side": 4.0},
    }
    assert any(name.startswith("network.head.branches.0.") for name in content["state_dict"])
    assert "network.head.anchors" not in content["state_dict"]
    # one line a start
    assert (trained.parent / "log").read_text().count("anchors: FreeHead has none") == 3


def test_they_predict_and_validate(trained: Path, own: Path, here: Path, small_data: Path) -> None:
    last = str(trained / "checkpoints/last.ckpt")
    images = small_data.parent / "images" / "val"
    cli.main(["predict", "--ckpt_path", last, "--source", str(images), "--conf", "0.001", "--tta", "true",
              "--csv", "true", "--run", "found", "--device", "cpu",
              "--trust_parts", "true"])  # fmt: skip
    assert len(list(csv.reader((here / "found/predictions.csv").open()))) > 8
    again = Detector.load(last, "cpu").predict(sorted(images.glob("*"))[0], conf=0.001)
    assert len(again) > 0
    cli.main(["validate", "--ckpt_path", last, "--run", "valid", "--ensemble", f"[{last}]", *SMALL[-4:],
              "--trust_parts", "true"])  # fmt: skip
    assert (here / "valid/metrics.json").is_file()


def test_they_export(
    trained: Path, own: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`export` itself compares the file with PyTorch, and refuses one that differs."""
    cli.main(["export", "--ckpt_path", str(trained / "checkpoints/last.ckpt"), "--format", "onnx", "--out", "a.onnx",
              "--nms", "true", "--conf", "0.001", "--trust_parts", "true"])  # fmt: skip
    assert (here / "a.onnx").exists()
    assert "largest difference" in capsys.readouterr().out


def test_a_head_without_anchors_is_told(
    own: Path, here: Path, small_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cli.main(["anchors", "--data.dataset", str(small_data), "--run", "a", *SMALL[:-2], *OWN[:2]])
    assert "anchors: FreeHead has none" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        cli.main(
            ["fit", "--data.dataset", str(small_data), *SMALL, *OWN, "--model.network.anchors", "3"]
        )
    assert "model.network.anchors" in capsys.readouterr().err


def test_a_loss_with_a_part_more(
    own: Path, here: Path, small_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its name is everywhere; chosen in a file."""
    (here / "own.yaml").write_text(
        "model: {loss: {function: {class_path: my_loss.Modest, init_args: {price: 0.5, box: 0.1}}}}\n"
    )
    cli.main(["fit", "--config", "own.yaml", "--data.dataset", str(small_data), *SMALL, "--trainer.max_epochs", "1",
              "--trainer.limit_train_batches", "1", "--trainer.limit_val_batches", "1", "--model.network.levels", "[5]",
              "--autoanchor.enabled", "false", "--doctor.enabled", "false", "--run", "run"])  # fmt: skip
    rows = list(csv.DictReader((here / "run/metrics.csv").open()))
    assert all(float(rows[0][f"{split}/sure_loss"]) > 0 for split in ("train", "val"))
    assert "epoch    box    obj    cls   sure" in capsys.readouterr().out
    content = torch.load(here / "run/checkpoints/last.ckpt", weights_only=True)
    assert content["processes"][0]["epoch_losses"]["sure_loss"] > 0
    assert Detector.load(here / "run/checkpoints/last.ckpt", "cpu").loss.price == 0.5


def test_a_class_that_is_missing(
    trained: Path, here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Said with its name and what to do, wherever a checkpoint is read."""
    monkeypatch.delitem(sys.modules, "my_parts", raising=False)
    run = trained.parent / "run"
    for line in (["predict", "--ckpt_path", str(run / "checkpoints/last.ckpt"), "--source", "0"],
                 ["export", "--ckpt_path", "best", "--run", str(run)],
                 ["fit", "--ckpt_path", "last", "--run", str(run)]):  # fmt: skip
        with pytest.raises(SystemExit):
            cli.main([*line, "--trust_parts", "true"])
        told = capsys.readouterr().err
        assert re.search(r"model\.(network\.head|loss\.assigner)\b.*my_parts", told)
        assert "PYTHONPATH" in told


def test_a_class_of_another_script() -> None:
    hint = "__main__ has no class Head"
    with pytest.raises(InputError, match=hint):
        find_part({"class_path": "__main__.Head"}, Head, "model.network.head")


def test_a_checkpoint_calls_nothing_else(
    trained: Path, own: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither functions nor other classes; and modules of others are not imported."""
    with trusting(["my_parts"]):  # and nothing else
        content = torch.load(trained / "checkpoints/last.ckpt", weights_only=True)
        (here / "trap.py").write_text(
            "import pathlib\npathlib.Path('sprung').touch()\n\ndef Trap(*a): ...\n"
        )
        monkeypatch.syspath_prepend(str(here))
        for option, base in (
            ("network.head", Head),
            ("loss.assigner", Assigner),
            ("loss.function", Loss),
        ):
            group, name = option.split(".")
            changed = copy.deepcopy(content["hyper_parameters"])
            changed[group][name] = {"class_path": "trap.Trap", "init_args": {}}
            torch.save({**content, "hyper_parameters": changed}, here / "odd.ckpt")
            with pytest.raises(InputError, match=f"model.{option}"):
                Detector.load(here / "odd.ckpt", "cpu")
            for path in (
                "os.system",
                "pathlib.Path",
                "subprocess.Popen",
                "trap",
                "boltbox.detector.model.head.nms",
                "",
            ):
                with pytest.raises(InputError, match=f"model.{option}"):
                    build_part({"class_path": path, "init_args": {}}, base, f"model.{option}")
        assert not (here / "sprung").exists()


def test_a_script_gives_classes(own: Path) -> None:
    from my_parts import FreeHead

    made = Detector(
        ["a", "b"],
        network=NetworkOptions(width_multiple=0.125, head=partial(FreeHead, hidden=4)),
    )
    assert made.hparams["network"]["head"] == {
        "class_path": "my_parts.FreeHead",
        "init_args": {"hidden": 4},
    }
    for wrong, told in (
        (FreeHead([8], [8], 2), "give a class, or functools.partial"),
        (
            partial(FreeHead, hidden=torch.zeros(1)),
            "model.network.head.init_args: a checkpoint cannot hold this (Object of type Tensor",
        ),
        (dict, "dict is no subclass of boltbox.detector.model.head.Head"),
    ):
        with pytest.raises(InputError, match=re.escape(told)):
            Detector(["a"], network=NetworkOptions(head=wrong))
    with pytest.raises(InputError, match="cannot be made"):
        Detector(["a"], network=NetworkOptions(head=partial(FreeHead, hidden=4, colour=1)))
    with pytest.raises(InputError, match="cannot be made"):
        build_part(
            {"class_path": "boltbox.detector.model.loss.Loss", "init_args": {}},
            Loss,
            "model.loss.function",
        )
    assert find_part({"class_path": "my_parts.FreeHead"}, Head, "model.network.head") is FreeHead
    assert part_config(None, Head, "model.network.head") is None


def test_test_time_augmentation_asks_the_head(own: Path) -> None:
    """The first pass loses the coarsest level's rows, the last those of the finest; of a head that
    does not tell, none go."""
    head = {"class_path": "my_parts.FreeHead", "init_args": {"hidden": 4}}
    network = YOLOv5(2, width_multiple=0.125, depth_multiple=0.1, head=head).eval()
    images = torch.rand(1, 3, 96, 64)
    with torch.no_grad():
        passes = [forward_function(network)(scaled(images, scale, 32)) for scale, _ in PASSES]
        rows = augmented(forward_function(network), network.head.rows_per_level, 32)(images)
        everything = augmented(forward_function(network), lambda h, w: None, 32)(images)
    assert passes[0].shape[1] == 12 * 8 + 6 * 4 + 3 * 2
    assert torch.equal(rows[:, : 12 * 8 + 6 * 4], passes[0][:, : 12 * 8 + 6 * 4])
    last = sum(network.head.rows_per_level(96, 64)[1:])
    assert torch.equal(rows[:, -last:, 4:], passes[2][:, -last:, 4:])
    assert rows.shape[1] == passes[0].shape[1] - 6 + passes[1].shape[1] + last
    assert everything.shape[1] == sum(p.shape[1] for p in passes)


def test_weights_of_another_head(
    own: Path, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Backbone and neck are taken, whichever of the two heads is new."""
    last = str(trained / "checkpoints/last.ckpt")
    content = torch.load(last, weights_only=True)["state_dict"]
    names = torch.load(last, weights_only=True)["hyper_parameters"]["names"]
    made = Detector(
        names,
        network=NetworkOptions(width_multiple=0.125, depth_multiple=0.1, levels=[5]),
        start=StartOptions(weights=last),
    )
    assert isinstance(made.network.head, AnchorHead)
    assert torch.equal(
        made.network.backbone.stem.conv.weight, content["ema.backbone.stem.conv.weight"]
    )
    assert "the head starts from random values" in capsys.readouterr().out
