"""A command line before anything is imported that takes seconds: its options by name, typos, lines
of YOLOv5, and paths that do not exist."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from glob import has_magic
from os.path import exists, isfile
from pathlib import Path
from typing import Any, NamedTuple

from boltbox.detector.commands.yolov5_line import (
    COMMAND_WORDS,
    KEYS,
    YOLOV5_OPTIONS,
    translated,
)
from boltbox.detector.system.configuration import flatten
from boltbox.detector.system.errors import InputError, nearest
from boltbox.detector.system.rank_zero import is_first_process, program
from boltbox.detector.system.text_file import parse_yaml, read_text
from boltbox.detector.weights.published import PUBLISHED, unfit

CONFIGS = Path(__file__).parents[2] / "configs"  # wherever boltbox is installed
# Written from the parsers by `python tests/helpers/option_names.py`.
OPTION_NAMES: dict[str, list[str]] = json.loads(
    Path(__file__).with_name("option_names.json").read_text(encoding="utf-8")
)
SHARED = "with a Trainer"  # names of OPTION_NAMES that all such commands have
LOGGERS_WITH_FOLDER = ("CSVLogger", "TensorBoardLogger")
DATA_CLASS = re.compile(r"\w+(\.\w+)*\.[A-Z]\w*")  # an import path, and no file of YOLOv5's
DATA_CLASS_COMMANDS = ("fit", "validate", "test")
WITHOUT_VALUE = ("--help", "-h", "--print_config")
# the option that the word after a command is
SUBJECTS = {"predict": "source", "detect": "source"} | dict.fromkeys(
    ("fit", "train", "validate", "val", "test", "anchors", "doctor", "benchmark", "evolve"),
    "data.dataset",
)


class Command(NamedTuple):
    """A command.

    Attributes:
        place: Its function, as `module:function`.
        help: Its line in the help.
        needs_trainer: The function takes a Trainer, the model and the data module before its own
            options, and the command has their options too. Else it is a plain function, whose
            parameters are the options.
    """

    place: str
    help: str
    needs_trainer: bool = True


def config_path(name: str) -> str:
    """The file that `--config` means: the one of this name or, if there is none, the shipped one,
    of which `configs/` and `.yaml` may be left out.

    >>> [Path(config_path(name)).name for name in ("configs/yolo.yaml", "hyp/low", "mine.yaml")]
    ['yolo.yaml', 'low.yaml', 'mine.yaml']
    """
    shipped = CONFIGS / f"{name.removeprefix('configs/').removesuffix('.yaml')}.yaml"
    return str(shipped) if not isfile(name) and isfile(shipped) else name


def as_options(words: Sequence[str]) -> list[str]:
    """A line whose words after the command are options: of `fit pets`, of YOLOv5's `train.py`, and
    of Ultralytics' `detect train data=d.yaml`.

    >>> as_options(["detect", "train", "data=d.yaml"]), as_options(["val.py", "--half"])
    (['train', '--data=d.yaml'], ['val', '--half'])
    >>> as_options(["yolo", "task=detect", "mode=val", "model=a.pt"])
    ['val', '--task=detect', '--model=a.pt']
    >>> as_options(["predict", "photos", "--conf", "0.5"])
    ['predict', '--source=photos', '--conf', '0.5']
    >>> as_options(["compare", "lr=0.1", "lr=0.2"])
    ['compare', 'lr=0.1', 'lr=0.2']
    """
    if not words:
        return [""]
    if words[0] == "yolo":  # Ultralytics' program, where the mode may come later
        words = sorted(words[1:], key=lambda word: not word.startswith("mode="))
    if (
        words[0] == "detect"
        and len(words) > 1
        and words[1] in (*COMMAND_WORDS, "predict", "export")
    ):
        words = words[1:]
    command = words[0].removeprefix("mode=").removesuffix(".py")
    rest = list(words[1:])
    # a value, and the name of a run, may have a = too
    if command not in ("compare", "report") and not any(word.startswith("-") for word in rest):
        rest = [re.sub(r"^(\w+=)", r"--\1", word) for word in rest]
    if rest and command in SUBJECTS and not rest[0].startswith("-") and "=" not in rest[0]:
        rest[0] = f"--{SUBJECTS[command]}={rest[0]}"
    return [command, *rest]


def split_options(words: Sequence[str]) -> list[list[str]]:
    """Each option with the words that are its value; words before the first option are by
    themselves.

    >>> split_options(["runs/a", "--img", "640", "--json", "--run=b", "-c", "x.yaml"])
    [['runs/a'], ['--img', '640'], ['--json'], ['--run', 'b'], ['--config', 'x.yaml']]
    """
    parts: list[list[str]] = []
    for word in words:
        if word.startswith("--") or word in ("-c", "-h"):
            name, equals, value = word.partition("=")
            parts.append(["--config" if name == "-c" else name])
            if equals:
                parts[-1].append(value)
        elif parts and parts[-1][0].startswith("-"):
            parts[-1].append(word)
        else:
            parts.append([word])
    return parts


def joined(option: str, values: Sequence[str]) -> list[str]:
    """An option and its values as words, see `split_options`."""
    return [f"{option}={values[0]}"] if len(values) == 1 else [option, *values]


class CommandLine:
    """A command and its options.

    Args:
        words: The command and the words after it.

    Raises:
        InputError: A file of options cannot be read, or holds none.

    Attributes:
        command: Name of the command.
        typed: The words after it.
        words: The same for the parser: files of options as their text, switches with `true`.
        wants_all: Whether the help shows all options.
        options: Values by flat name, as typed or as in a file; later ones count.
        files: The file of each option that was not typed.
        data_class: Of `--data my.DataModule`, whose arguments are the options data.* then.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.command, *self.typed = as_options(words)
        self.wants_all = False
        self.words: list[str] = []
        self.options: dict[str, Any] = {}
        self.files: dict[str, str] = {}
        self.data_class = ""
        if "-h" in words or "--help" in words:
            self.wants_all = "all" in words
            self.typed = ["--help"]
        for option, *values in split_options(self.typed):
            if option.startswith("-"):
                self._add(option, values)
            else:
                self.words.append(option)
        logger = self.options.get("trainer.logger", self.options.get("trainer.logger.class_path"))
        has_folder = any(name.endswith(".save_dir") for name in self.options)
        if str(logger).endswith(LOGGERS_WITH_FOLDER) and not has_folder:
            self.words.append("--trainer.logger.save_dir=")  # the run's folder

    def _add(self, option: str, values: list[str]) -> None:
        name = option.lstrip("-").removesuffix("+")
        if name == "data" and values and DATA_CLASS.fullmatch(values[0]):
            self.data_class = values[0]
            self.options["data"] = values[0]
            return
        if name == "config" and values:
            values = [self._read_options(config_path(values[0]))]
        else:
            if not values and option not in WITHOUT_VALUE:
                values = ["true"]
            self.options[name] = values[0] if len(values) == 1 else values
            self.files.pop(name, None)
        self.words += joined(option, values)

    def _read_options(self, path: str) -> str:
        """Add the options of a file, and return its text."""
        try:
            text = read_text(path, pipe=True)
            content = parse_yaml(text, path)
        except InputError as e:
            raise InputError(f"--config {e}") from None
        if not isinstance(content, Mapping):
            raise InputError(
                f"--config {path}: it holds no options. They are in groups, as in a run's"
                " config.yaml"
            )
        options = flatten({str(key): value for key, value in content.items()})
        self.options |= options
        self.files |= dict.fromkeys(options, path)
        return text

    def check(self, commands: Mapping[str, Command]) -> None:
        """Check the names of the command and its options, and the paths of its input.

        Raises:
            InputError: There is no such command, option or path. It names the nearest one; for
                options of YOLOv5, the equivalent line.
        """
        command = COMMAND_WORDS.get(self.command, self.command)
        if command not in commands:
            wrong = f"there is no command '{command}'" if command else "a command is missing"
            raise InputError(f"{wrong}; {nearest(command, commands)}")
        if command not in OPTION_NAMES:  # a custom one
            return
        known = list(OPTION_NAMES[command])
        if commands[command].needs_trainer:
            known += OPTION_NAMES[SHARED]
        if self.data_class:
            known.append("data")  # with any arguments
            if command not in DATA_CLASS_COMMANDS:
                raise InputError(
                    f"--data {self.data_class}: {command} takes no custom data module. Give a"
                    " --data.dataset FILE"
                )
        unknown = [name for name in self.options if not is_known(name, known)]
        self._check_files(command, known, [name for name in unknown if name in self.files])
        if unknown or command != self.command:
            line = translated(split_options(self.typed), command, known, unknown)
            what = f"option --{unknown[0]}" if unknown else f"command {self.command}"
            raise InputError(f"unknown {what}; {line}")
        is_help = any(word in WITHOUT_VALUE for word in self.typed)
        # another machine may lack the files, which it does not read
        if not is_help and not self.data_class and is_first_process():
            check_paths(self.options)

    def _check_files(self, command: str, known: Collection[str], unknown: Sequence[str]) -> None:
        """Raises InputError if a file of options has unknown ones; it knows the files of YOLOv5."""
        if not unknown:
            return
        name = next((name for name in unknown if name in KEYS), unknown[0])
        file = self.files[name]
        hint = f"{nearest(name, known)} (a dataset is given as --data.dataset FILE)"
        if name in KEYS:
            hint = KEYS[name]
        hint = hint.replace("FILE", file).replace("PROGRAM", program())
        raise InputError(f"--config {file}: '{name}' is no option of {command}; {hint}")


def is_known(name: str, known: Collection[str]) -> bool:
    """Whether an option exists or may exist: it may stand for a group, or be an argument of a class
    (trainer.logger.init_args.name), which only the parser can check."""
    parts = name.split(".")
    if any(".".join(parts[:n]) in known for n in range(1, len(parts) + 1)):
        return True
    return name not in YOLOV5_OPTIONS and any(each.startswith(f"{name}.") for each in known)


def check_paths(options: Mapping[str, Any]) -> None:
    """Check paths early; the readers of the files check again.

    Args:
        options: Values by flat name, see `CommandLine`.

    Raises:
        InputError: A dataset, checkpoint, file of weights or source does not exist.
    """
    paths = {name: value for name, value in options.items() if isinstance(value, str)}
    dataset = paths.get("data.dataset", "demo")
    if dataset not in ("demo", "null") and not exists(dataset):
        raise InputError(f"{dataset}: no such file (data.dataset)")
    checkpoint = paths.get("ckpt_path", "null")
    _check_weights(
        checkpoint,
        exists,
        f"ckpt_path {checkpoint}: no such file. Give a checkpoint, a"
        " run folder, `last`, `best` or `auto`",
    )
    if "ckpt_path" not in options:  # a run that is resumed does not need its first weights
        weights = paths.get("model.start.weights", "null")
        _check_weights(
            weights,
            isfile,
            f"{weights}: no such weights file (model.start.weights)."
            " Published ones: docs/weights.md",
        )
    source = paths.get("source", "null")
    is_stream = "://" in source or source.isdecimal() or source == "null"
    if not is_stream and not has_magic(source) and not exists(source):
        raise InputError(f"source {source}: no image or video file there")


def _check_weights(path: str, is_there: Callable[[str], bool], message: str) -> None:
    why = unfit(path)
    if why:
        raise InputError(why)
    if path not in ("null", "last", "best", "auto", *PUBLISHED) and not is_there(path):
        raise InputError(message)
