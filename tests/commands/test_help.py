"""Help, names and ranges of options, what is wrong with a line; names of YOLOv5."""

import contextlib
import os
import platform
import re
from importlib.metadata import version

import pytest
from made_runs import ROOT, read, type_line
from option_names import FILE, parser_of, text

from boltbox.detector.commands.command_line import COMMANDS, SHARED
from boltbox.detector.commands.evolve.space import YOLOV5_GENES
from boltbox.detector.commands.parser import HELP
from boltbox.detector.commands.yolov5_line import COMMAND_NAMES, TABLE

CONTENT = read(FILE)
LISTED = {}  # all options of each command
for name, command in COMMANDS.items():
    LISTED[name] = set(CONTENT[name])
    if command.needs_trainer:
        LISTED[name].update(CONTENT[SHARED])


def test_names_of_options_are_those_of_the_parsers():
    """After a change: python -m tests.helpers.option_names."""
    assert FILE.read_text() == text()


def test_words_for_help(printed, capfd, monkeypatch):
    listed = printed("--help")
    lines = listed.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines if line.startswith("  ")] == list(COMMANDS)
    assert printed("help") == listed
    assert printed("", 2) == listed, "a script that forgot the command must not go on"
    assert printed("help predict") == printed("predict --help")
    type_line("version")
    assert capfd.readouterr().out.startswith("boltbox ")
    monkeypatch.setenv("COLUMNS", "1")
    assert printed("predict --help")
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as left, contextlib.redirect_stdout(left):
        type_line("version")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_for_people(command, printed):
    """A line of usage, options with type and default in the width of the terminal, no Python."""
    short = printed(f"{command} --help")
    lines = short.splitlines()
    assert lines[0].startswith(f"usage: python cli.py {command} [options]")
    assert max(map(len, lines)) <= 80
    assert len(lines) < 75
    assert not re.search(r"known subclasses|Union|Literal|paramref|``|<class", short)


def test_all_options_of_fit(printed):
    """For the help nothing is read."""
    short = printed("fit --config nowhere.yaml --help")
    shown = set(re.findall(r"^  --([\w.]+)", short, re.M))
    assert shown == LISTED["fit"] & set(HELP["shown"] + HELP["shown_for_training"])
    assert set(CONTENT["review"]) <= set(HELP["shown"])
    everything = printed("fit --help all")
    names = re.findall(r"^  --([\w.]+)", everything, re.M)
    assert set(names) > shown - {"config"}
    assert names[0] == "ckpt_path", "its own come first"
    assert "\n  --data.workers (int, default: 8)  " in everything
    assert "Default: ``" not in everything
    assert not {"trainer.max_steps", "trainer.accumulate_grad_batches"} & set(names)


def test_yolov5s_names_have_a_counterpart():
    assert set(COMMAND_NAMES.values()) <= COMMANDS.keys()
    options = set[str]().union(*LISTED.values())
    for name, ours in TABLE["options"].items():
        words = ours.split()
        assert not words or words[0] in options, name
        for word in words:
            if word.startswith("configs/"):
                assert (ROOT / word).is_file()
    for command in COMMANDS.keys() & TABLE.keys():
        rows = [ours.split()[0] for ours in TABLE[command].values() if ours]
        assert set(rows) <= LISTED[command]


LINES = {
    "train --img 640 --batch 16 --epochs 3 --data d.yaml --weights yolov5s.pt": "fit --data.image_size 640"
    " --data.batch_size 16 --trainer.max_epochs 3 --data.dataset d.yaml --model.start.weights yolov5s.pt",
    "train --weights= --cfg models/yolov5n.yaml --batch-size -1 --hyp data/hyps/hyp.scratch-low.yaml":
    "fit --config configs/yolov5.yaml --config configs/hyp/low.yaml --model.network.size n --data.batch_size auto"
    " (left out: --weights)",
    "fit --device 0 --cache --hyp hyps/my.yaml --freeze 0 1": "import-hyp hyps/my.yaml && python cli.py fit --config"
    " configs/yolov5.yaml --config my_boltbox.yaml --trainer.devices 1 --data.cache ram --model.start.freeze '[0,1]'",
    "fit --device 0,1 --cache disk --name N": "fit --trainer.devices 0,1 --data.cache disk --run runs/N",
    "train --resume --device cpu": "fit --ckpt_path last --trainer.accelerator cpu",
    "train --name N --data my.yaml --evolve --project P": "evolve --run P/N --data.dataset my.yaml --evolve.generations 300",
    "fit --upload_dataset --quad --data.rect true": "fit --data.rect true (left out: --upload_dataset, --quad)",
    "val --weights a.pt --conf-thres 0.1 --half": "validate --ckpt_path a.pt --conf 0.1 --trainer.precision 16-true",
    "val --task test --weights a.pt": "test --ckpt_path a.pt",
    "detect photos --save-txt --classes 0 2 --nosave": "predict --source photos --labels true --classes 0 2"
    " --images false",
    "export --include engine onnx --imgsz 320 640 --half --device 0": "export --format tensorrt --image_size '[320,640]'"
    " --half (left out: --include onnx, --device 0)",
    "train.py pets": "fit --data.dataset pets",
}  # fmt: skip


@pytest.mark.parametrize("line", LINES)
def test_a_line_of_yolov5(line, refused):
    assert refused(line).partition("in boltbox: python cli.py ")[2].strip() == LINES[line]


def test_what_is_resumed_needs_no_first_weights(here, printed):
    line = "fit --ckpt_path auto --model.start.weights gone.pt --data.dataset demo --print_config"
    printed(line)


def test_evolution_and_the_defaults_keep_to_the_ranges():
    """And numbers stay plain ones, as a checkpoint holds them."""
    parser = parser_of("fit")
    for bound in ("low", "high"):
        genes = [gene for gene in YOLOV5_GENES.values() if gene.name != "anchors"]
        options = parser.parse_args([f"--{g.option}={getattr(g, bound)}" for g in genes])
    values = vars(options.as_flat()).values()
    numbers = {type(value) for value in values if isinstance(value, int | float)}
    assert numbers == {bool, int, float}


@pytest.mark.parametrize(("typed", "kept"), [("1", 1), ("1.0", 1.0)])
def test_one_batch_is_not_all_of_them(typed, kept, here, printed):
    """Lightning reads 1 as one batch and 1.0 as all."""
    config = printed(f"fit --trainer.limit_train_batches {typed} --print_config")
    assert f"  limit_train_batches: {kept}\n" in config


def test_env_prints_what_a_report_of_a_problem_needs(capsys):
    type_line("env")
    told = capsys.readouterr().out
    for name, fact in {
        "boltbox": version("boltbox"),
        "torch": version("torch"),
        "system": platform.system(),
    }.items():
        assert re.search(f"^{name}: +{re.escape(fact)}", told, re.M)
