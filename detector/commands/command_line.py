"""A command line before anything is imported that takes seconds: its options by name, typos, and
lines of YOLOv5."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from os.path import isfile
from pathlib import Path
from typing import Any, NamedTuple

from boltbox.detector.commands.paths import check_paths
from boltbox.detector.commands.yolov5_line import (
    COMMAND_WORDS,
    KEYS,
    YOLOV5_OPTIONS,
    as_options,
    translated,
)
from boltbox.detector.system.configuration import flatten
from boltbox.detector.system.errors import InputError, nearest
from boltbox.detector.system.rank_zero import is_first_process, program
from boltbox.detector.system.text_file import parse_yaml, read_text

CONFIGS = Path(__file__).parents[2] / "configs"  # wherever boltbox is installed
# Written from the parsers by `python tests/helpers/option_names.py`.
OPTION_NAMES: dict[str, list[str]] = json.loads(
    Path(__file__).with_name("option_names.json").read_text(encoding="utf-8")
)
SHARED = "with a Trainer"  # names of OPTION_NAMES that all such commands have
DATA_SET = "(a data set is given as --data.dataset FILE)"
WITH_FOLDER = ("CSVLogger", "TensorBoardLogger")
DATA_CLASS = re.compile(r"\w+(\.\w+)*\.[A-Z]\w*")  # an import path, and no file of YOLOv5's
OWN_DATA = ("fit", "validate", "test")  # commands that take a data module of the user's own
WITHOUT_VALUE = ("--help", "-h", "--print_config")


class Command(NamedTuple):
    """A command: the function that does it, as `module:function`, and its line in the help.

    needs_trainer: the function takes a Trainer, the model and the data module before its own
    options; its command has their options too. Else it is a plain function, whose parameters are
    the options.
    """

    place: str
    help: str
    needs_trainer: bool = True


def config_path(name: str) -> str:
    """The file that `--config` means: the one of this name or, if there is none here, the shipped
    one, of which `configs/` and `.yaml` may be left out.

    >>> [Path(config_path(name)).name for name in ("configs/yolo.yaml", "hyp/low", "mine.yaml")]
    ['yolo.yaml', 'low.yaml', 'mine.yaml']
    """
    shipped = CONFIGS / f"{name.removeprefix('configs/').removesuffix('.yaml')}.yaml"
    return str(shipped) if not isfile(name) and isfile(shipped) else name


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
            parts.append(["--config" if name == "-c" else name, *([value] if equals else [])])
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

    command: its name · typed: the words after it · words: the same for the parser: files of options
    as their text, switches with `true` · wants_all: the help is to show all options · options: by
    flat name the values, as typed or as in a file; later ones count · files: the file that an
    option stands in, of those not typed · data_class: `--data my.DataModule`, whose arguments are
    the options data.* then.

    Raises:
        InputError: a file of options cannot be read, or holds none.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.command, *self.typed = as_options(words)
        if {"-h", "--help"} & set(words):
            self.wants_all, self.typed = "all" in words, ["--help"]
        self.words: list[str] = []
        self.options: dict[str, Any] = {}
        self.files: dict[str, str] = {}
        self.data_class = ""
        for option, *values in split_options(self.typed):
            if not option.startswith("-"):
                self.words.append(option)
                continue
            name = option.lstrip("-").removesuffix("+")
            if name == "data" and values and DATA_CLASS.fullmatch(values[0]):
                self.data_class = self.options["data"] = values[0]
                continue
            if name == "config" and values:
                path = config_path(values[0])
                values = [self._read_options(path)]
            else:
                values = values or ([] if option in WITHOUT_VALUE else ["true"])
                self.options[name] = values[0] if len(values) == 1 else values
                self.files.pop(name, None)
            self.words += joined(option, values)
        logger = self.options.get("trainer.logger", self.options.get("trainer.logger.class_path"))
        has_folder = any(name.endswith(".save_dir") for name in self.options)
        if str(logger).endswith(WITH_FOLDER) and not has_folder:
            self.words.append("--trainer.logger.save_dir=")  # the run's folder

    def _read_options(self, path: str) -> str:
        """The text of a file of options, which count from here on."""
        try:
            text = read_text(path, pipe=True)
            content = parse_yaml(text, path)
        except InputError as e:
            raise InputError(f"--config {e}") from None
        if not isinstance(content, Mapping):
            raise InputError(
                f"--config {path}: it holds no options; they stand in it as in a run's config.yaml"
            )
        found = flatten({str(key): value for key, value in content.items()})
        self.options |= found
        self.files |= dict.fromkeys(found, path)
        return text

    def check(self, commands: Mapping[str, Command]) -> None:
        """Raises InputError for a command or an option that does not exist, with the nearest name
        or, of YOLOv5's words, the whole line in ours; and for a path that leads nowhere."""
        command = COMMAND_WORDS.get(self.command, self.command)
        if command not in commands:
            wrong = f"there is no command '{command}'" if command else "a command is missing"
            raise InputError(f"{wrong}; {nearest(command, commands)}")
        if command not in OPTION_NAMES:  # one of your own
            return
        shared = OPTION_NAMES[SHARED] if commands[command].needs_trainer else []
        known = [*OPTION_NAMES[command], *shared]
        if self.data_class:
            known.append("data")  # and whatever it takes
            if command not in OWN_DATA:
                raise InputError(
                    f"--data {self.data_class}: a data module of your own is for"
                    f" {', '.join(OWN_DATA)}; give {command} a --data.dataset FILE"
                )
        unknown = [name for name in self.options if not is_known(name, known)]
        if in_files := [name for name in unknown if name in self.files]:
            name = next((name for name in in_files if name in KEYS), in_files[0])
            hint = KEYS.get(name) or f"{nearest(name, known)} {DATA_SET}"
            hint = hint.replace("FILE", self.files[name]).replace("PROGRAM", program())
            raise InputError(
                f"--config {self.files[name]}: '{name}' is no option of {command}; {hint}"
            )
        if unknown or command != self.command:
            line = translated(split_options(self.typed), command, known, unknown)
            what = [f"--{name}" for name in unknown] or [self.command]
            more = f" and {len(what) - 5} more" if len(what) > 5 else ""
            raise InputError(f"{', '.join(what[:5])}{more}: not a word of boltbox; {line}")
        reads_files = not set(WITHOUT_VALUE) & set(self.typed) and not self.data_class
        if reads_files and is_first_process():  # another machine may lack what it does not read
            check_paths(self.options)


def is_known(name: str, known: Collection[str]) -> bool:
    """Whether an option exists, or may exist: it stands for a whole group, or is within one that
    takes a class (trainer.logger.init_args.name), which only the whole parser knows."""
    parts = name.split(".")
    above = {".".join(parts[: k + 1]) for k in range(len(parts))}
    is_group = name not in YOLOV5_OPTIONS and any(each.startswith(f"{name}.") for each in known)
    return is_group or not above.isdisjoint(known)
