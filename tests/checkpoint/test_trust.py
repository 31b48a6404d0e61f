"""Somebody else's run folder or checkpoint: what it names is neither imported nor called unless the
user trusts it."""

import contextlib
import shutil
import sys
from pathlib import Path

import pytest
import torch
import yaml
from jsonargparse._typehints import ActionTypeHint
from made_runs import load, read, type_line
from option_names import parser_of

from boltbox.detector.system.errors import InputError
from boltbox.detector.training.module import Detector

MODEL = {
    "model.network.head",
    "model.loss.assigner",
    "model.loss.function",
    "model.optim.optimizer",
}
TRAINER = {
    "trainer.accelerator",
    "trainer.strategy",
    "trainer.logger",
    "trainer.callbacks",
    "trainer.profiler",
    "trainer.plugins",
}
WITHIN = {"data.augment.after", "data.augment.albumentations"}  # classes within maps and lists
# by another way: an import path, a file of options
OTHER = {"data.format", "model", "data", "data.augment", "ema", "config"}
OPTIONS = sorted(MODEL | TRAINER | WITHIN | OTHER)
TRAP = """
from pathlib import Path
from boltbox.detector.data.formats.yolo_txt import YoloText
from boltbox.detector.model.head import AnchorHead
Path({mark!r}).touch()
class Trap(AnchorHead):
    pass
class Form(YoloText):
    pass
"""


@pytest.fixture
def foreign(trained, here):
    """A run folder that may be changed."""
    shutil.copytree(trained, here / "run")
    return here / "run"


@pytest.fixture
def mark(here, monkeypatch):
    """A file that is there once code of the modules `trap` or `trap_2` or a shell command has
    run."""
    (here / "code").mkdir()
    for name in ("trap", "trap_2"):
        (here / f"code/{name}.py").write_text(TRAP.format(mark=str(here / "mark")))
    monkeypatch.syspath_prepend(str(here / "code"))
    yield here / "mark"
    for name in ("trap", "trap_2"):
        sys.modules.pop(name, None)


def payloads(mark):
    """What a file may give in place of a class."""
    shell = {"class_path": "os.system", "init_args": {"command": f"touch {mark}"}}
    pickle = {"f": str(mark.parent / "pickle.pt"), "weights_only": False}
    lambdas = "lightning.pytorch.callbacks.LambdaCallback"
    (mark.parent / "options.yaml").write_text(yaml.safe_dump(shell))
    return {
        "module": {"class_path": "trap.Trap"},
        "shell": shell,
        "of torch": shell | {"class_path": "torch.os.system"},
        "function": {"class_path": "torch.load", "init_args": pickle},
        "within": {"class_path": lambdas, "init_args": {"on_fit_start": "trap.Trap"}},
        "name": "trap.Trap",
        "text": str(shell),
        "file": str(mark.parent / "options.yaml"),
    }


def put(folder, option, value):
    """Give config.yaml this value."""
    file = folder / "config.yaml"
    content = read(file)
    *groups, name = option.split(".")
    place = content
    for group in groups:
        place = place[group]
    if option == "data.augment.after":
        value = {"hsv": [value]}
    elif option in ("data.augment.albumentations", "trainer.callbacks", "trainer.plugins"):
        value = [value]
    place[name] = value
    file.write_text(yaml.safe_dump(content))


@pytest.fixture
def told(capsys):
    """What a command says that ends with an error or, if it knows better, well."""

    def run(line):
        capsys.readouterr()
        with contextlib.suppress(SystemExit):
            type_line(line)
        out, err = capsys.readouterr()
        assert err.count("\n") <= 1, err
        return f"{out}{err}"

    return run


def test_all_options_that_take_a_class_are_here(here):
    found = set()
    for action in parser_of("fit")._actions:
        kind = getattr(action, "_typehint", None)
        if isinstance(action, ActionTypeHint) and (
            action.is_callable_typehint(kind) or action.is_subclass_typehint(kind, all_subtypes=False)
            or "Callable" in str(kind) or "Any" in str(kind)
        ):  # fmt: skip
            found.add(action.dest)
    assert {name for name in found if not name.endswith(".help")} == MODEL | TRAINER | WITHIN


@pytest.mark.parametrize("option", OPTIONS)
def test_a_resume_runs_nothing(option, foreign, mark, told):
    """Every option with one payload, callbacks with each. What is no class there may be taken as the
    text that it is."""
    original = (foreign / "config.yaml").read_text()
    kinds = ("file", "text") if option in OTHER else ("module", "shell")
    names = [kinds[OPTIONS.index(option) % 2]]
    if option == "trainer.callbacks":
        names = set(payloads(mark)) - {"file", "text"}
    for name in names:
        payload = payloads(mark)[name]
        (foreign / "config.yaml").write_text(original)
        put(foreign, option, payload)
        said = told(f"fit --ckpt_path last --run {foreign} --trainer.max_epochs 1")
        assert not mark.exists(), name
        assert "trap" not in sys.modules, name
        if isinstance(payload, dict) and option in MODEL | TRAINER | {"data.augment.after"}:
            assert f"{foreign}/config.yaml: {option}" in said, name


@pytest.mark.parametrize(
    "line",
    [
        "validate --ckpt_path {run}/checkpoints/last.ckpt",
        "predict --ckpt_path {run}/checkpoints/last.ckpt --source {image}",
        "export --ckpt_path {run}/checkpoints/last.ckpt --format pt2 --out made_pt2",
        "report {run}",
    ],
)
def test_other_commands_run_nothing(line, foreign, mark, small_data, told):
    """validate takes over the classes; the others do their work without."""
    put(foreign, "data.format", "trap.Form")
    said = told(line.format(run=foreign, image=next(small_data.parent.rglob("*.jpg"))))
    assert not mark.exists()
    assert "trap" not in sys.modules
    refusal = f"error: {foreign}/config.yaml: data.format names trap.Form"
    assert (refusal in said) == ("error" in said) == line.startswith("validate")


def change_checkpoint(foreign, head):
    """A copy of its last checkpoint, with this class of a head in its options."""
    path = foreign / "alone.ckpt"
    content = load(foreign / "checkpoints/last.ckpt")
    named = {"class_path": head, "init_args": {}}
    content["hyper_parameters"]["network"]["head"] = named
    config = yaml.safe_load(content["run"]["config"])
    config["model"]["network"]["head"] = named
    content["run"]["config"] = yaml.safe_dump(config)
    torch.save(content, path)
    return path


@pytest.mark.parametrize(
    "line",
    [
        "fit --ckpt_path {file}",
        "predict --ckpt_path {file} --source {data}",
        "export --ckpt_path {file}",
        "validate --ckpt_path run/checkpoints/last.ckpt --ensemble [{file}] --data.dataset {data}",
    ],
)
def test_a_checkpoint_alone(line, foreign, mark, small_data, told):
    checkpoint = change_checkpoint(foreign, head="trap.Trap")
    said = told(line.format(file=checkpoint, data=small_data.parent))
    assert "model.network.head names trap.Trap" in said
    assert "--trust_parts true" in said
    assert not mark.exists()


def test_a_script(foreign, mark):
    """It trusts what it has imported itself. (What it has not: test_what_the_user_trusts.)"""
    checkpoint = change_checkpoint(foreign, head="trap.Trap")
    __import__("trap")
    assert type(Detector.load(checkpoint, "cpu").network.head).__name__ == "Trap"


def test_what_the_user_trusts(foreign, mark, told):
    """Named on the command line, in a file that is given there, or all of it; to name one class is
    not to trust another. (A resume that trusts all: tests/model/test_own_parts.py.)"""
    put(foreign, "model.network.head", {"class_path": "trap.Trap"})
    change_checkpoint(foreign, head="trap.Trap").rename(foreign / "checkpoints/last.ckpt")
    line = f"fit --ckpt_path last --run {foreign} --trainer.max_epochs 2"
    named = f"{line} --model.network.head trap.Trap"
    assert "not part of boltbox" in told(line)
    put(foreign, "model.loss.assigner", "trap_2.Trap")
    assert "trap_2.Trap, which is not part of boltbox" in told(named)
    assert "trap_2" not in sys.modules
    put(foreign, "model.loss.assigner", {"class_path": "torch.load", "init_args": {"f": "x"}})
    said = told(f"{named} --data.augment.after.hsv [torch.nn.Identity]")
    assert "model.loss.assigner names torch.load" in said
    put(foreign, "model.loss.assigner", None)
    assert "error" not in told(named)
    other = change_checkpoint(foreign, head="trap_2.Trap")
    last = foreign / "checkpoints/last.ckpt"
    for command in (
        f"export --ckpt_path {other} --format pt2",
        f"validate --ckpt_path {last} --ensemble [{other}]",
    ):
        assert "error" not in told(f"{command} --trust_parts true")
        sys.modules.pop("trap_2", None)
        with pytest.raises(InputError, match="import trap_2 first"):  # trust ends with the command
            Detector.load(other, "cpu")
    assert "trust_parts" not in Path("runs/validate-1/config.yaml").read_text()


def test_a_run_of_our_own_classes_resumes(foreign, mark, told):
    """Loggers, callbacks, strategies of Lightning; transforms and parts of boltbox: nothing has to
    be trusted."""
    lightning = "lightning.pytorch"
    flip = "boltbox.detector.data.transforms.colour.RandomFlip"
    for option, path, given in (
        ("trainer.callbacks", f"{lightning}.callbacks.LearningRateMonitor", {}),
        ("trainer.logger", f"{lightning}.loggers.CSVLogger", {"save_dir": "."}),
        ("trainer.profiler", f"{lightning}.profilers.SimpleProfiler", {}),
        ("trainer.strategy", f"{lightning}.strategies.SingleDeviceStrategy", {}),
        ("model.loss.assigner", "boltbox.detector.model.assigner.YOLOv5Assigner", {}),
        ("data.augment.after", flip, {"axis": 1, "p": 0.5}),
    ):
        put(foreign, option, {"class_path": path, "init_args": given})
    put(foreign, "data.augment.albumentations", {"Blur": {"p": 0.1}})
    checkpoint = f"--ckpt_path {foreign}/checkpoints/last.ckpt"
    assert "error" not in told(f"fit --ckpt_path last --run {foreign} --trainer.max_epochs 1")
    assert "error" not in told(f"validate {checkpoint} --report.enabled false")
