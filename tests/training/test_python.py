"""A Trainer of one's own, as docs/python.md tells it."""

import csv
import json
import logging
import re
import warnings
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import LearningRateMonitor, ProgressBar, TQDMProgressBar
from lightning.pytorch.utilities._pytree import _tree_flatten
from made_options import made_detector
from plain_loop import batches
from torch.utils.data import DataLoader

import boltbox
import cli
from boltbox.callbacks import (
    EMA,
    AutoAnchor,
    MetricsFiles,
    Progress,
    Report,
    Warmup,
    recipe,
)
from boltbox.callbacks.configuration import CALLBACKS as WITH_OPTIONS
from boltbox.detector.data.datamodule import DetectionData
from boltbox.detector.model.network import NetworkOptions
from boltbox.detector.system.errors import InputError
from boltbox.detector.training.module import Detector

ROOT = Path(cli.__file__).parent
SMALL = {"image_size": 64, "batch_size": 8, "workers": 0}
QUIET = {
    "accelerator": "cpu",
    "precision": "32-true",
    "enable_progress_bar": False,
    "limit_train_batches": 1,
    "limit_val_batches": 1,
}


def test_lightnings_tips_are_not_repeated(
    here: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("lightning.pytorch"), "propagate", True)
    # a command of an earlier test may have raised it
    with (
        caplog.at_level(logging.INFO, "lightning.pytorch"),
        warnings.catch_warnings(record=True) as told,
    ):
        warnings.simplefilter("always")
        L.Trainer(**recipe(run="run", accelerator="cpu"))
        _tree_flatten(1)  # as Lightning's loaders call it
    assert "GPU available" in caplog.text
    assert not [str(each.message) for each in told if "LeafSpec" in str(each.message)]


def program(replaced: dict[str, str]) -> str:
    """The one of docs/python.md and the notebook, smaller."""
    text = re.findall("```python\n(.*?)```", (ROOT / "docs/python.md").read_text(), re.S)[0]
    cells = json.loads((ROOT / "examples/train.ipynb").read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert "\n\n".join(code) == text.rstrip()
    for old, new in replaced.items():
        assert text.count(old) == 1
        text = text.replace(old, new)
    return text


def options(**given: Any) -> dict[str, Any]:
    """Of a tiny Trainer by the recipe that draws nothing."""
    own = [
        boltbox.callbacks.Pictures(enabled=False),
        Report(enabled=False),
        boltbox.callbacks.DoctorCheck(enabled=False),
    ]
    return recipe(
        **{"max_epochs": 1, **QUIET, **given, "callbacks": [*own, *given.get("callbacks", [])]}
    )


def small_detector(data: DetectionData, **given: Any) -> Detector:
    return made_detector(
        data.names, **{"width_multiple": 0.125, "depth_multiple": 0.1, "levels": [5], **given}
    )


def test_the_program_trains_what_the_command_trains(
    small_data: Path, here: Path, capsys: pytest.CaptureFixture
) -> None:
    """Bit for bit; it leaves the same files, says the same, and its folder is one that commands
    take."""
    replaced = {
        '"demo", image_size=128, batch_size=64': f'"{small_data}", image_size=64, batch_size=8, workers=0',
        "max_epochs=60": 'max_epochs=1, accelerator="cpu", precision="32-true", limit_train_batches=1, callbacks=[Report(enabled=False)]',
        "from boltbox import": "from boltbox.callbacks import Report\nfrom boltbox import",
        "conf=0.25": "conf=0.001",
    }
    exec(compile(program(replaced), "docs/python.md", "exec"), {"__name__": "__main__"})
    told = capsys.readouterr().out
    assert "run:       runs/fit-1 (new)\n" in told
    assert "not the whole recipe" not in told
    assert len(re.findall(r"^\S*/images/val/\S+ \['.*'\]$", told, re.M)) == 3

    line = "--data.image_size 64 --data.batch_size 8 --data.workers 0 --trainer.max_epochs 1"
    line += " --trainer.accelerator cpu --trainer.precision 32-true --report.enabled false"
    line += " --trainer.limit_train_batches 1"
    cli.main(["fit", "--data.dataset", str(small_data), *line.split(), "--run", "command"])
    ours, theirs = (
        torch.load(here / run / "checkpoints/last.ckpt", weights_only=True)
        for run in ("runs/fit-1", "command")
    )
    assert ours["state_dict"].keys() == theirs["state_dict"].keys()
    assert any(name.startswith("ema.") for name in ours["state_dict"])
    assert all(
        torch.equal(value, theirs["state_dict"][name]) for name, value in ours["state_dict"].items()
    )
    assert {k: v for k, v in ours["hyper_parameters"].items() if k != "_class_path"} == {
        k: v
        for k, v in theirs["hyper_parameters"].items()
        if k not in ("_class_path", "_instantiator")
    }
    files = [
        {str(p.relative_to(here / run)) for p in (here / run).rglob("*") if p.is_file()}
        for run in ("runs/fit-1", "command")
    ]
    assert files[1] - files[0] == {"changed.yaml"}
    assert files[0] <= files[1]
    tables = []
    for run in ("runs/fit-1", "command"):
        with open(here / run / "metrics.csv", newline="") as file:
            tables.append(
                [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]
            )
    assert tables[0] == tables[1]

    capsys.readouterr()
    line = "validate --ckpt_path runs/fit-1/checkpoints/last.ckpt --trainer.accelerator cpu"
    cli.main([*line.split(), "--report.enabled", "false"])
    figures = re.search(r"^all +\d+ .* (\S+)\n", capsys.readouterr().out, re.M)
    assert figures
    assert float(figures[1]) == pytest.approx(float(tables[0][-1]["val/coco/AP"]), abs=5.1e-4)


def test_a_plain_trainer_says_what_it_lacks(capsys: pytest.CaptureFixture) -> None:
    plain: dict[str, Any] = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_model_summary": False,
        **QUIET,
    }

    def told(**given: Any) -> list[str]:
        trainer = L.Trainer(max_epochs=1, **plain, **given)
        trainer.fit(
            made_detector(["a", "b"], width_multiple=0.125, levels=[5], image_size=64),
            DataLoader(batches()[:1], batch_size=None),  # type: ignore[arg-type]
        )
        return [
            line
            for line in capsys.readouterr().out.splitlines()
            if line.startswith("not the whole recipe")
        ]

    (line,) = told()
    assert "Warmup, EMA, AutoAnchor of boltbox.callbacks" in line
    assert "recipe(...)" in line

    class Own(Warmup):
        pass

    (line,) = told(callbacks=[Own(), EMA(enabled=False)])
    assert line.startswith("not the whole recipe: AutoAnchor of boltbox.callbacks")


def test_a_detector_follows_its_data(small_data: Path, here: Path) -> None:
    """The gains of the loss and the image size of the checkpoint are theirs."""
    data = DetectionData(str(small_data), seed=7, **SMALL)
    given = small_detector(data, image_size=64, batch_size=8)
    follows = small_detector(data)
    assert follows.loss.gains != given.loss.gains
    L.Trainer(**options(run="run")).fit(follows, data)
    assert follows.loss.gains == given.loss.gains
    assert follows.image_size == given.image_size
    assert (follows.batch_size, follows._seed) == (8, 7)
    assert Detector.load(here / "run/checkpoints/last.ckpt").image_size == 64

    stranger = made_detector(["a", "b"], width_multiple=0.125)
    sentence = r"knows the classes \['a', 'b'\], its data have \['disc', .*give it data.names"
    with pytest.raises(InputError, match=sentence):
        L.Trainer(**options(run="other")).fit(stranger, data)
    with pytest.raises(InputError, match=r"run already holds a run: .*checkpoints/last.ckpt"):
        L.Trainer(**options(run="run")).fit(small_detector(data), data)
    assert not (here / "other").exists()


def test_a_script_resumes(small_data: Path, here: Path, capsys: pytest.CaptureFixture) -> None:
    """An interrupted run ends with the weights of one that was not. Lightning's words for
    checkpoints are those of the run."""
    data = DetectionData(str(small_data), **SMALL)
    for run in ("whole", "part"):
        L.seed_everything(0)
        steps = {"max_steps": -1 if run == "whole" else 1}
        trainer = L.Trainer(**options(run=run, max_epochs=2) | steps)
        trainer.fit(small_detector(data), data)
    told = capsys.readouterr().out
    best: Any = trainer.checkpoint_callback
    assert best.best_model_path == "part/checkpoints/best.ckpt"
    (found,) = trainer.validate(small_detector(data), data, ckpt_path="best", verbose=False)
    with open(here / "part/metrics.csv", newline="") as file:
        (row,) = csv.DictReader(file)
    assert found["val/box_loss"] == pytest.approx(float(row["val/box_loss"]), rel=1e-4)
    line = 'stopped after 1 of 2 epochs; resume with: trainer.fit(detector, data, ckpt_path="part/checkpoints/last.ckpt")'
    assert told.count(line) == 1
    L.Trainer(**options(run="part", max_epochs=2)).fit(small_detector(data), data, ckpt_path="last")
    assert "run:       part (continued in epoch 2)\n" in capsys.readouterr().out
    whole, part = (
        torch.load(here / run / "checkpoints/last.ckpt", weights_only=True)["state_dict"]
        for run in ("whole", "part")
    )
    assert all(torch.equal(value, part[name]) for name, value in whole.items())


def test_a_baseline_before_the_fit(small_data: Path, here: Path) -> None:
    """Validation has a folder of its own, whichever comes first."""
    data = DetectionData(str(small_data), **SMALL)
    detector = small_detector(data)
    trainer = L.Trainer(**options(run="run", max_epochs=1))
    for _ in range(2):
        trainer.validate(detector, data, verbose=False)
    assert [path.name for path in (here / "run").iterdir()] == ["machine.json"]
    trainer.fit(detector, data)
    found = sorted(str(path.parent) for path in Path().rglob("metrics.json"))
    assert found == ["run", "runs/validate-1", "runs/validate-2"]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"max_steps": 3}, "trainer.max_steps 3: schedule and warm-up go by epochs"),
        ({"accumulate_grad_batches": 4}, "model.optim.nominal_batch_size"),
        ({"overfit_batches": 1}, "give a data.yaml whose train has few images"),
        ({"precision": "64-true"}, "images are float32"),
        ({"precision": "16-true"}, "most steps of a training are smaller"),
    ],
)
def test_what_the_recipe_refuses(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        recipe(**given)


class OwnGroups(Detector):
    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def test_a_plain_trainer_whose_precision_is_refused(small_data: Path, here: Path) -> None:
    module = DetectionData(str(small_data), **SMALL)
    trainer = L.Trainer(**options(run="run") | {"precision": "bf16-true", "callbacks": []})
    with pytest.raises(InputError, match="precision bf16-true"):
        trainer.fit(small_detector(module), module)


def test_an_optimizer_by_a_method_of_ones_own(small_data: Path, here: Path) -> None:
    data = DetectionData(str(small_data), **SMALL)
    detector = OwnGroups(data.names, NetworkOptions(width_multiple=0.125, levels=[5]))
    with pytest.raises(InputError, match=r"give the class instead, OptimOptions\(optimizer="):
        L.Trainer(**options(max_epochs=1)).fit(detector, data)


def test_own_callbacks_take_the_place_of_the_recipes(here: Path) -> None:
    warmup = Warmup(warmup_epochs=1)
    rates = LearningRateMonitor()
    bar = TQDMProgressBar()
    given = recipe(
        max_epochs=7, gradient_clip_val=5.0, callbacks=[warmup, rates], precision="bf16-mixed"
    )
    assert (given["max_epochs"], given["gradient_clip_val"], given["precision"]) == (
        7,
        5.0,
        "bf16-mixed",
    )
    assert given["default_root_dir"] == "runs/fit-1"
    kinds = [type(c) for c in given["callbacks"]]
    assert len(kinds) == len(set(kinds))
    assert {*WITH_OPTIONS.values(), Progress} <= set(kinds)
    assert warmup in given["callbacks"]
    assert kinds[-1] is LearningRateMonitor
    assert Progress not in [type(c) for c in recipe(enable_progress_bar=False)["callbacks"]]
    assert [c for c in recipe(callbacks=[bar])["callbacks"] if isinstance(c, ProgressBar)] == [bar]


def test_callbacks_work_alone(small_data: Path, here: Path, capsys: pytest.CaptureFixture) -> None:
    """A report without the recipe's other files; a line on what needs boltbox's data."""
    data = DetectionData(str(small_data), **SMALL)
    plain: dict[str, Any] = {
        "max_epochs": 1,
        "logger": False,
        "enable_model_summary": False,
        **QUIET,
        "default_root_dir": here,
    }
    trainer = L.Trainer(
        callbacks=[Warmup(), EMA(), MetricsFiles(), Report()], enable_checkpointing=False, **plain
    )
    trainer.fit(small_detector(data), data)
    told = capsys.readouterr().out
    assert "warning" not in told
    assert f"report:    {here / 'report.html'}\n" in told
    assert not (here / "config.yaml").exists()

    loader: Any = DataLoader(batches()[:1], batch_size=None)
    L.Trainer(
        callbacks=[AutoAnchor(), boltbox.callbacks.RunFolder(), boltbox.callbacks.DoctorCheck()],
        **plain | {"default_root_dir": here / "own"},
    ).fit(made_detector(["a", "b"], width_multiple=0.125, levels=[5], image_size=64), loader)
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("data of your own: ")] == [
        "data of your own: anchors stay as they are; they are not compared with the labels",
        "data of your own: the doctor does not check them",
    ]


def test_the_names_of_the_package() -> None:
    """Each is there, and what `import boltbox` names is what a type checker sees."""
    assert boltbox.Detector is Detector
    assert boltbox.recipe is recipe
    assert [name for name in boltbox.__all__ if getattr(boltbox, name) is None] == []
    with pytest.raises(AttributeError, match="no attribute 'Yolo'"):
        boltbox.Yolo  # noqa: B018
