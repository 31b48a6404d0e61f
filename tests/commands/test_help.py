"""Help, names and ranges of options: what is told before anything that takes seconds is
imported."""

import contextlib
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import boltbox.callbacks
import cli
from boltbox.detector.commands.evolve.space import YOLOV5_GENES
from boltbox.detector.commands.main import COMMANDS, LINE
from boltbox.detector.commands.parsing.short_help import CHOSEN
from boltbox.detector.commands.parsing.table import CALLBACKS
from boltbox.detector.system.ranges import RANGES

ROOT = Path(cli.__file__).parent
METHODS = [name for name, command in COMMANDS.items() if command.needs_trainer]
FUNCTIONS = [name for name, command in COMMANDS.items() if not command.needs_trainer]


def told(words: str, capsys: pytest.CaptureFixture[str], code: int = 0) -> str:
    """What a command line prints that ends at once."""
    with pytest.raises(SystemExit) as leaving:
        cli.main(words.split())
    assert leaving.value.code == code
    captured = capsys.readouterr()
    return captured.err if code else captured.out


@pytest.mark.parametrize("command", METHODS)
def test_names_from_the_source_are_those_of_the_parser(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing that exists is refused before the imports, and no more is let through; the defaults
    are the same. `.help` of classes (--trainer.strategy.help) only the parser knows."""
    listed = told(f"{command} --help all", capsys)
    parsers = {
        re.split(r"[ ,=\[]", name)[0]
        for name in re.findall(r"^  (?:-\w[^-]*, )?--(\S+)", listed, re.M)
    }
    assert LINE.names(command) == {name for name in parsers if not re.search(r".\.help$", name)}
    flat = " ".join(listed.split())
    shown = dict(re.findall(r"--([\w.]+) \S+ (?:(?! --).)*?default: ([^),]+)[),]", flat))
    assert len(shown) > 60
    for option in LINE.options(command):
        if option.name in shown and option.default:
            assert shown[option.name].strip("'\"").lower() == option.default.lower(), option.name


def test_names_of_the_other_commands(capsys: pytest.CaptureFixture[str]) -> None:
    for command in FUNCTIONS:
        listed = told(f"{command} --help", capsys)
        parsers = {
            re.split(r"[ ,=\[]", name)[0]
            for name in re.findall(r"^  (?:-\w, )?--(\S+)", listed, re.M)
        }
        optional = {option.name for option in LINE.options(command) if not option.required}
        assert optional | {"help"} == parsers - {"print_config", "config"}


def test_the_program_names_its_commands(capsys: pytest.CaptureFixture[str]) -> None:
    lines = told("--help", capsys).splitlines()
    assert max(map(len, lines)) <= 80
    assert (
        [line.split()[0] for line in lines if line.startswith("  ")]
        == [*METHODS, *FUNCTIONS]
        == [*COMMANDS]
    )


@pytest.mark.parametrize("command", METHODS)
def test_short_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    short = told(f"{command} --config nowhere.yaml --help", capsys)
    assert max(map(len, short.splitlines())) <= 80
    assert len(short.splitlines()) < 70
    assert re.findall(r"^  --(\S+)", short, re.M) == [
        name for names in CHOSEN[command].values() for name in names
    ]
    if command == "fit":
        assert re.search(
            r"--data.image_size +Longer side .*\n.*\[640\]|--data.image_size +.*\[640\]", short
        )
        assert "[100]" in short.partition("--trainer.max_epochs")[2].partition("--")[0]


def test_headings_are_whole_sentences(capsys: pytest.CaptureFixture[str]) -> None:
    lines = told("fit --help all", capsys)
    headings = dict(re.findall(r"^([a-z_]+):\n((?:  [\w`].*\n)+)", lines, re.M))
    for group, place in CALLBACKS.items():
        first = " ".join(
            (inspect.getdoc(getattr(boltbox.callbacks, place.rpartition(":")[2])) or "")
            .partition("\n\n")[0]
            .split()
        )
        assert " ".join(headings[group].split()) == first


def test_nothing_slow_is_imported_for_it() -> None:
    """Neither for help nor for a typo."""
    check = "import sys, cli, contextlib\n"
    check += "for line in ('--help', 'fit --help', 'fti', 'fit --model.lr 1', ''):\n"
    check += " with contextlib.suppress(SystemExit): cli.main(line.split())\n"
    check += "assert not {'torch', 'lightning', 'numpy', 'cv2', 'optuna', 'jsonargparse'} & sys.modules.keys()\n"
    done = subprocess.run(
        [sys.executable, "-c", check], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stderr.splitlines()) == 3


WORDS = {
    "detect": "did you mean 'predict'?",
    "train": "did you mean 'fit'?",
    "val": "did you mean 'validate'?",
    "fti": "did you mean 'fit'?",
    "fit --model.lr 1": "did you mean 'model.optim.lr0'?",
    "fit --lr0 1": "did you mean 'model.optim.lr0'?",
    "fit --trainer.lr0 1": "did you mean 'model.optim.lr0'?",
    "fit --model.wieght_decay 1": "did you mean 'model.optim.weight_decay'?",
    "fit --data.augment.mosiac 1": "did you mean 'data.augment.mosaic'?",
    "predict --conf-thres 0.3": "here it is --model.conf",
    "export --weights x.pt": "here it is --ckpt_path",
    "fit --trainer.precision fp16": "trainer.precision is fp16; it must be ",
    "fit --model.classes cat": "model.classes is cat; it must be a list like [1, 2] or null",
    "fit --model.optim.optimizer sgd": "model.optim.optimizer is sgd; it must be SGD, Adam, AdamW, Muon or auto",
    "fit --data.rect maybe": "data.rect is maybe; it must be true or false",
    "fit --trainer.max_epochs many": "trainer.max_epochs is many; it must be a whole number or null",
    "evolve --evolve.prune x": "evolve.prune is x; it must be none or halving",
    "export --format x": "format is x; it must be onnx, openvino or exported-program",
}


@pytest.mark.parametrize("words", WORDS)
def test_what_is_wrong_is_said_in_a_sentence(
    words: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = told(words, capsys, code=2)
    assert error.startswith("error: ")
    assert WORDS[words] in error
    assert not re.search(r"typing|<class|Union|Subtypes", error)


FILES = {
    "path: .\ntrain: a\nval: b\nnames: {0: x}\n": "that is the file of a data set; give it as --data.dataset FILE",
    "backbone: []\nhead: []\n": "--model.network.size",
    "lr0: 0.1\nlrf: 0.2\n": "python cli.py import-hyp FILE",
    "model: {lr: 0.1}\n": "'model.lr' is no option of fit; did you mean 'model.optim.lr0'?",
    "categories: []\nimages: []\n": "a data set is given as --data.dataset FILE",
    "- 1\n": "it holds no options",
}


@pytest.mark.parametrize("content", FILES)
def test_config_files_that_hold_something_else(
    content: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "FILE").write_text(content)
    assert FILES[content] in told("fit --config FILE", capsys, code=2)


OUT_OF_RANGE = {
    "model.optim.lr0": "-0.1",
    "model.optim.momentum": "1",
    "model.optim.weight_decay": "-1",
    "model.optim.lrf": "-1",
    "model.conf": "25",
    "model.iou": "1.5",
    "model.max_det": "0",
    "model.loss.cls_pw": "-1",
    "model.loss.fl_gamma": "-1",
    "data.augment.mosaic": "7",
    "data.augment.hsv_h": "-0.1",
    "data.batch_size": "0",
    "data.image_size": "-640",
    "data.workers": "-1",
    "trainer.max_epochs": "-1",
    "ema.tau": "0",
    "warmup.warmup_epochs": "-1",
}


@pytest.mark.parametrize("option", OUT_OF_RANGE)
def test_ranges(option: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything starts: the data set need not be there."""
    error = told(
        f"fit --data.dataset nowhere.yaml --{option} {OUT_OF_RANGE[option]}", capsys, code=2
    )
    assert (
        error
        == f"error: {option} is {float(OUT_OF_RANGE[option]):g}; it must be {RANGES[option]}\n"
    )


def test_what_evolution_and_the_defaults_may_give_is_in_range() -> None:
    for gene in YOLOV5_GENES.values():
        if gene.option in RANGES:
            assert gene.low in RANGES[gene.option], gene
            assert gene.high in RANGES[gene.option], gene
    for command in METHODS:
        for option in LINE.options(command):
            with contextlib.suppress(ValueError):
                assert option.name not in RANGES or float(option.default) in RANGES[option.name], (
                    option
                )
    known = LINE.names("fit") | LINE.names("predict")
    assert {name for name in RANGES if name not in known} == {"data.seed"}


def test_ranges_hold_in_files_too(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "options.yaml").write_text("data: {dataset: nowhere.yaml, batch_size: 0}\n")
    assert "data.batch_size is 0; it must be at least 1" in told(
        "fit --config options.yaml", capsys, code=2
    )


@pytest.mark.parametrize(("given", "kept"), [("1", 1), ("1.0", 1.0), ("0.5", 0.5), ("7", 7)])
def test_one_batch_is_not_all_of_them(
    given: str, kept: Any, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lightning reads 1 as one batch and 1.0 as all."""
    printed = told(f"fit --trainer.limit_train_batches {given} --print_config", capsys)
    assert f"  limit_train_batches: {kept}\n" in printed
