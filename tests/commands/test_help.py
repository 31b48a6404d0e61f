"""Help, names and ranges of options; lines of YOLOv5."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from option_names import FILE, parser_of, text

import cli
from boltbox.detector.commands.command_line import SHARED
from boltbox.detector.commands.evolve.space import YOLOV5_GENES
from boltbox.detector.commands.main import COMMANDS
from boltbox.detector.commands.parser import HELP
from boltbox.detector.commands.yolov5_line import COMMAND_WORDS, TABLE

ROOT = Path(cli.__file__).parent
METHODS = [name for name, command in COMMANDS.items() if command.needs_trainer]


CONTENT = json.loads(FILE.read_text())
LISTED: dict[str, set[str]] = {
    name: {*found, *(CONTENT[SHARED] if COMMANDS[name].needs_trainer else [])}
    for name, found in CONTENT.items()
    if name != SHARED
}


def told(words: str, capsys: pytest.CaptureFixture[str], code: int = 0) -> str:
    """What a command line prints that ends at once."""
    with pytest.raises(SystemExit) as leaving:
        cli.main(words.split())
    assert leaving.value.code == code
    captured = capsys.readouterr()
    return captured.err if code else captured.out


def test_names_of_options_are_those_of_the_parsers() -> None:
    """After a change: python tests/helpers/option_names.py."""
    assert FILE.read_text() == text()


def test_the_program_names_its_commands(capsys: pytest.CaptureFixture[str]) -> None:
    lines = told("--help", capsys).splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines if line.startswith("  ")] == [*COMMANDS]
    assert {"train:", "data:", "use:", "inspect:"} <= {*lines}


def test_other_words_for_help(capsys: pytest.CaptureFixture[str]) -> None:
    listed = told("--help", capsys)
    assert told("help", capsys) == listed
    assert told("", capsys, code=2) == listed, "a script that forgot the command must not go on"
    assert told("help predict", capsys) == told("predict --help", capsys)
    assert told("help predict all", capsys) == told("predict --help", capsys)
    cli.main(["version"])
    assert capsys.readouterr().out.startswith("boltbox ")


@pytest.mark.parametrize(
    "command", ["validate", "test", "evolve", "benchmark", "doctor", "anchors"]
)
def test_help_of_a_command_with_a_trainer(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Its own options come first; nothing that is refused, and one default."""
    own = {*CONTENT[command], "evolve"}  # a group too
    for line in (f"{command} --help", f"{command} --help all"):
        text = told(line, capsys)
        shown = re.findall(r"^  --([\w.]+)", text, re.M)
        number = len(own & set(shown))
        assert number
        assert set(shown[:number]) <= own
        assert "Default: ``" not in text
        assert not {"trainer.max_steps", "trainer.overfit_batches"} & set(shown)
        assert "trainer.accumulate_grad_batches" not in shown


NOISE = re.compile(r"known subclasses|Union|Literal|paramref|``|Path to a configuration|<class")


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_for_people(
    command: str, width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line of usage, options with type and default in the width of the terminal, no Python."""
    monkeypatch.setenv("COLUMNS", str(width))
    lines = told(f"{command} --help", capsys).splitlines()
    assert lines[0].startswith(f"usage: python cli.py {command} [options]")
    assert lines[1] == ""
    assert max(map(len, lines)) <= width
    assert len(lines) < 75
    assert not NOISE.search("\n".join(lines))


def test_help_of_all_options(capsys: pytest.CaptureFixture[str]) -> None:
    everything = told("fit --help all", capsys)
    assert not NOISE.search(everything)
    assert "\n  --data.batch_size (int or auto, default: 16)  " in everything


def test_short_help(capsys: pytest.CaptureFixture[str]) -> None:
    """Of the file that is given nothing is read."""
    short = told("fit --config nowhere.yaml --help", capsys)
    shown = set(re.findall(r"^  --([\w.]+)", short, re.M))
    assert shown == LISTED["fit"] & {*HELP["shown"], *HELP["shown_for_training"]}
    assert short.partition("examples:")[2].count("\n  python cli.py fit ") == 3
    everything = told("fit --help all", capsys)
    assert set(re.findall(r"^  --([\w.]+)", everything, re.M)) > shown - {"config"}
    assert len(short) < len(everything) / 3
    for command in ("export", "compare", "report", "import-hyp"):
        assert told(f"{command} --help", capsys).startswith("usage: ")


@pytest.mark.parametrize("command", COMMANDS)
def test_ours_in_place_of_yolov5s_words_exist(command: str) -> None:
    for name, ours in TABLE.get(command, {}).items():
        to, *words = ours.split() if ours.startswith("/") else [f"/{command}", *ours.split()]
        assert not words or words[0] in LISTED[to[1:]], name
    assert set(COMMAND_WORDS.values()) <= COMMANDS.keys()
    everywhere = set[str]().union(*LISTED.values())
    for name, ours in TABLE["options"].items():
        words = ours.split()
        assert not ours or words[0] in everywhere, name
        shipped = [word for word in words if word.startswith("configs/")]
        assert all((ROOT / file).is_file() for file in shipped)


TYPOS = ("fti", "export --nsm", "fit --img 3", "fit --model.lr 1")
NOWHERE = {
    "fit --data.dataset nowhere.yaml": "nowhere.yaml: no such file",
    "fit --config nowhere.yaml": "--config nowhere.yaml: no such file",
    "fit --ckpt_path nowhere.ckpt": "ckpt_path nowhere.ckpt: no such file",
    "export --ckpt_path nowhere/best.ckpt": "ckpt_path nowhere/best.ckpt: no such file",
    "predict --source nowhere.jpg": "source nowhere.jpg: no image",
    "fit --model.start.weights nowhere.pt": "nowhere.pt: no such weights file",
    "fit --model.start.weights yolov8n.pt": "yolov8n.pt does not fit",
    "test --ckpt_path yolo11n.pt": "yolo11n.pt does not fit",
}


def test_nothing_slow_is_imported_for_it() -> None:
    """For the list of commands, for typos, and for paths that lead nowhere."""
    check = "import sys, cli, contextlib\n"
    check += f"for line in {['--help', '', *TYPOS, *NOWHERE]}:\n"
    check += " with contextlib.suppress(SystemExit): cli.main(line.split())\n"
    check += "assert not {'torch', 'lightning', 'numpy', 'cv2', 'optuna', 'jsonargparse'} & sys.modules.keys()\n"
    done = subprocess.run(
        [sys.executable, "-c", check], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == len(TYPOS) + len(NOWHERE)
    for error, told in zip(errors[len(TYPOS) :], NOWHERE.values(), strict=True):
        assert told in error


def test_what_need_not_be_there(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is resumed is not started from weights; for the help nothing is read."""
    line = "fit --ckpt_path auto --model.start.weights gone.pt --data.dataset demo --print_config"
    told(line, capsys)
    told("fit --data.dataset nowhere --help", capsys)
    error = told("predict --ckpt_path best --source *.jpg", capsys, code=2)
    assert "source *.jpg: no image" in error


WORDS = {
    "fti": "did you mean 'fit'?",
    "fit --model.lr 1": "did you mean 'model.optim.lr0'?",
    "fit --lr0 1": "--model.optim.lr0 1",
    "fit --trainer.lr0 1": "--model.optim.lr0 1",
    "fit --model.wieght_decay 1": "did you mean 'model.optim.weight_decay'?",
    "fit --data.augment.mosiac 1": "did you mean 'data.augment.mosaic'?",
    "fit --img 320 --nothing 3": "left out: --nothing 3 (no such option",
    "fit --model.classes 3": "there is no option --model.classes; the classes are the `names` of",
    "fit --model.network.size yolov5s": "model.network.size 'yolov5s' is not known; did you mean 's'?",
    "fit --model.start.weights yolov8n.pt": "yolov8n.pt does not fit this network; yolov5n.pt does",
    "validate --ckpt_path yolo11m.pt": "yolo11m.pt does not fit this network; yolov5n.pt does",
    "fit --model.network.head nowhere.Head": "No module named 'nowhere'",
    "fit --model.network.head torch.nn.Conv2d": "model.network.head: Expected 'torch.nn.Conv2d' to be a subclass of Head",
    "fit --model.network.head boltbox.detector.model.head.AnchorHed": "has no attribute 'AnchorHed'",
    "fit --trainer.callbacks LearningRateMonitor --trainer.callbacks.wrong 3": "there is no option 'wrong'",
    "fit --data.image_size": "data.image_size is true; it must be int >0",
    "fit --trainer.precision fp16": "trainer.precision is fp16; it must be ",
    "fit --model.network.levels five": 'it must be a list like "[a,b]" or null',
    "fit --model.optim.optimizer sgd": "model.optim.optimizer is sgd; it must be SGD, Adam, AdamW, Muon, auto or ",
    "fit --data.rect maybe": "data.rect is maybe; it must be true or false",
    "fit --trainer.max_epochs many": "trainer.max_epochs is many; it must be int >=0 or null",
    "export --format x": "format x: choose onnx or openvino; for TensorRT",
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
    "categories: []\nimages: []\n": "given as --data.dataset FILE",
    "- 1\n": "it holds no options",
}


@pytest.mark.parametrize("content", FILES)
def test_config_files_that_hold_something_else(
    content: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "FILE").write_text(content)
    assert FILES[content] in told("fit --config FILE", capsys, code=2)


OUT_OF_RANGE = {
    "model.optim.lr0": ("-0.1", "float >=0 or null"),
    "model.optim.momentum": ("1", "float >0 and <1 or null"),
    "model.optim.nominal_batch_size": ("0", "int >0 or auto"),
    "data.augment.mosaic": ("7", "float >=0 and <=1"),
    "data.image_size": ("2.5", "int >0"),
    "trainer.max_epochs": ("-1", "int >=0 or null"),
    "warmup.warmup_epochs": ("nan", "float >=0"),
}


def test_ranges(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything is read, typed or in a file."""
    (here / "empty.yaml").touch()
    for option, (value, allowed) in OUT_OF_RANGE.items():
        error = told(f"fit --data.dataset empty.yaml --{option} {value}", capsys, code=2)
        assert error == f"error: {option} is {value}; it must be {allowed}\n"
    (here / "options.yaml").write_text("data: {dataset: empty.yaml, batch_size: 0}\n")
    error = told("fit --config options.yaml", capsys, code=2)
    assert error == "error: options.yaml: data.batch_size is 0; it must be int >0 or auto\n"


def test_evolution_and_the_defaults_keep_to_the_ranges() -> None:
    """And numbers stay plain ones, as a checkpoint holds them."""
    parser = parser_of("fit")
    for bound in ("low", "high"):
        genes = [g for g in YOLOV5_GENES.values() if g.option != "model.network.anchors"]
        options = parser.parse_args([f"--{g.option}={getattr(g, bound)}" for g in genes])
    numbers = [
        value for value in vars(options.as_flat()).values() if isinstance(value, int | float)
    ]
    assert {type(number) for number in numbers} == {bool, int, float}


@pytest.mark.parametrize(("given", "kept"), [("1", 1), ("1.0", 1.0), ("0.5", 0.5), ("7", 7)])
def test_one_batch_is_not_all_of_them(
    given: str, kept: Any, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lightning reads 1 as one batch and 1.0 as all."""
    printed = told(f"fit --trainer.limit_train_batches {given} --print_config", capsys)
    assert f"  limit_train_batches: {kept}\n" in printed
