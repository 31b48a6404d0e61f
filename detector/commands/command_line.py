"""The table of commands; and a command line before anything is imported that takes seconds: its
options by name, typos, names of YOLOv5, and paths that do not exist."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from glob import has_magic
from os.path import exists, isfile
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NamedTuple

from boltbox.detector.commands.yolov5_line import COMMAND_NAMES, FILES, YOLOV5_OPTIONS, in_boltbox
from boltbox.detector.data.public_datasets import public_name
from boltbox.detector.system.configuration import flatten
from boltbox.detector.system.errors import InputError, nearest
from boltbox.detector.system.rank_zero import is_first_process, program
from boltbox.detector.system.text_file import parse_yaml, read_text
from boltbox.detector.weights.published import PUBLISHED, unfit

CONFIGS = Path(__file__).parents[2] / "configs"  # wherever boltbox is installed
# Written from the parsers by `python -m tests.helpers.option_names`.
OPTION_NAMES: dict[str, list[str]] = json.loads(
    Path(__file__).with_name("option_names.json").read_text(encoding="utf-8")
)
SHARED = "with a Trainer"  # names of OPTION_NAMES that all such commands have
LOGGERS_WITH_FOLDER = ("CSVLogger", "TensorBoardLogger")
DATA_CLASS = re.compile(r"\w+(\.\w+)*\.[A-Z]\w*")  # an import path, and no file of YOLOv5's
DATA_CLASS_COMMANDS = ("fit", "validate", "test")
WITHOUT_VALUE = ("--help", "-h", "--print_config")
# paths that are checked early, with the words that they may be instead
PATHS: dict[str, tuple[str, ...]] = {
    "data.dataset": ("demo",),
    "ckpt_path": ("last", "best", "auto", *PUBLISHED),
    "model.start.weights": tuple(PUBLISHED),
    "source": (),
}


class Command(NamedTuple):
    """A command.

    Attributes:
        function_path: Its function, as `module:function`.
        help: Its line in the help.
        needs_trainer: The function takes a Trainer, the model and the data module before its own
            options, and the command has their options too. Else it is a plain function, whose
            parameters are the options.
    """

    function_path: str
    help: str
    needs_trainer: bool = True

    @property
    def function(self) -> Callable[..., None]:
        """The function itself, whose module is imported now."""
        return resolve_name(self.function_path)


HERE = "boltbox.detector.commands"
COMMANDS = {
    # without False: with a Trainer, whose options and those of the model, the data and the
    # callbacks they share; with False: plain functions
    "fit": Command(f"{HERE}.fit:fit", "Train a detector, or resume a run"),
    "evolve": Command(f"{HERE}.evolve.search:run_evolution", "Search for better hyper-parameters"),
    "anchors": Command(
        f"{HERE}.anchors:anchors", "Measure how well anchors fit the labels, and fit them"
    ),
    "benchmark": Command(
        f"{HERE}.benchmark.command:benchmark",
        "Find the fastest precision and number of workers of this machine",
    ),
    "doctor": Command(
        f"{HERE}.doctor.command:run_doctor",
        "Find faults of a dataset; --fix DIR writes a repaired copy",
    ),
    "review": Command(
        f"{HERE}.review.command:run_review",
        "Find labels that are wrong; --apply FILE writes a repaired copy",
    ),
    "convert": Command(
        f"{HERE}.convert:convert",
        "Make a data.yaml from labels of CVAT, labelme, VIA",
        False,
    ),
    "import-hyp": Command(
        f"{HERE}.evolve.import_hyp:import_hyp",
        "Make a file of options from a YOLOv5 hyp*.yaml",
        False,
    ),
    "predict": Command(
        f"{HERE}.predict:predict", "Detect objects in images, videos and streams", False
    ),
    "export": Command(
        f"{HERE}.export.command:export", "Convert a checkpoint for other runtimes", False
    ),
    "strip": Command(f"{HERE}.strip:strip", "Shrink a checkpoint for inference", False),
    "validate": Command(f"{HERE}.validate:validate", "Evaluate on the val split"),
    "test": Command(f"{HERE}.validate:validate", "Evaluate on the test split"),
    "report": Command(
        f"{HERE}.report:report",
        "Write a page on a run: curves, confusion, errors",
        False,
    ),
    "compare": Command(f"{HERE}.compare:compare", "Compare runs: options, metrics, curves", False),
    "env": Command(
        f"{HERE}.env:env", "Print versions and devices, for a report of a problem", False
    ),
}
# the option that the word after a command is, as in `fit pets`
SUBJECTS = {name: "--data.dataset" for name, row in COMMANDS.items() if row.needs_trainer}
SUBJECTS["predict"] = "--source"


def config_path(name: str) -> str:
    """The file that `--config` means: the one of this name or, if there is none, the shipped one,
    of which `configs/` and `.yaml` may be left out.

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
        InputError: A file of options cannot be read, holds none, or has one that is typed before
            it.

    Attributes:
        command: Name of the command.
        typed: The words after it; --help alone, if it is among them.
        words: The same for the parser: files of options as their text, switches with `true`.
        wants_short_help: Whether to print the help, without `all`.
        options: Values by flat name, as typed or as in a file; later ones count.
        origins: By the same names, the file that the value is from; "": it was typed.
        data_class: Of `--data my.DataModule`, whose arguments are the options data.* then.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.command, *self.typed = words
        subject = SUBJECTS.get(COMMAND_NAMES.get(self.command, self.command))
        if subject and self.typed and not self.typed[0].startswith("-"):
            self.typed[0] = f"{subject}={self.typed[0]}"
        self.words: list[str] = []
        self.options: dict[str, Any] = {}
        self.origins: dict[str, str] = {}
        self.data_class = ""
        wants_help = "-h" in words or "--help" in words
        self.wants_short_help = wants_help and "all" not in words
        if wants_help:
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
            values[0] = self._read_options(config_path(values[0]))
        else:
            if not values and option not in WITHOUT_VALUE:
                values = ["true"]
            value = values[0] if len(values) == 1 else values
            self.options[name] = None if value == "null" else value
            self.origins[name] = ""
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
        for name in filter(self.is_typed, options):
            raise InputError(
                f"--config {path} would replace --{name}, which is typed before it. Give --config"
                " first"
            )
        self.options |= options
        self.origins |= dict.fromkeys(options, path)
        return text

    def is_typed(self, name: str) -> bool:
        """Whether an option was typed, and is not from a file."""
        return self.origins.get(name) == ""

    @property
    def run_folder(self) -> Path | None:
        """The run folder that was typed."""
        for name in ("run", "trainer.default_root_dir"):
            folder = self.options.get(name)
            if folder not in (None, ""):
                return Path(str(folder))  # from a file it may be a number
        return None

    @property
    def only_prints(self) -> bool:
        """Whether the command prints its help or its options and does nothing."""
        return any(word in WITHOUT_VALUE for word in self.typed)

    def check(self) -> None:
        """Check the names of the command and its options, and the paths of its input.

        Raises:
            InputError: There is no such command, option or path. It names the nearest one; for
                names of YOLOv5, the line in boltbox.
        """
        command = COMMAND_NAMES.get(self.command, self.command)
        if command not in COMMANDS:
            raise InputError(f"there is no command '{command}'; {nearest(command, COMMANDS)}")
        if command not in OPTION_NAMES:  # a custom one
            return
        known = list(OPTION_NAMES[command])
        if COMMANDS[command].needs_trainer:
            known += OPTION_NAMES[SHARED]
        if self.data_class:
            known.append("data")  # with any arguments
            if command not in DATA_CLASS_COMMANDS:
                raise InputError(
                    f"--data {self.data_class}: {command} takes no custom data module. Give a"
                    " --data.dataset FILE"
                )
        unknown = [name for name in self.options if not is_known(name, known)]
        for name in unknown:
            if self.origins[name]:
                raise self._unknown_in_file(name, known)
        if unknown or command != self.command:
            line = in_boltbox(split_options(self.typed), command, known, unknown)
            what = f"option --{unknown[0]}" if unknown else f"command {self.command}"
            raise InputError(f"unknown {what}; {line}")
        # another machine may lack the files, which it does not read
        if not self.only_prints and not self.data_class and is_first_process():
            check_paths(self.options)

    def _unknown_in_file(self, name: str, known: Collection[str]) -> InputError:
        """The error for an unknown option of a file, which may be one of YOLOv5's files."""
        file = self.origins[name]
        hint = f"{nearest(name, known)} (a dataset is given as --data.dataset FILE)"
        for hint_of_file, keys in FILES.items():
            if name in keys:
                hint = hint_of_file
        hint = hint.replace("FILE", file).replace("PROGRAM", program())
        return InputError(f"--config {file}: '{name}' is no option of {self.command}; {hint}")


def is_known(name: str, known: Collection[str]) -> bool:
    """Whether an option exists or may exist: it may stand for a group, or be an argument of a class
    (trainer.logger.init_args.name), which only the parser can check."""
    if any(f"{name}.".startswith(f"{each}.") for each in known):
        return True
    return name not in YOLOV5_OPTIONS and any(each.startswith(f"{name}.") for each in known)


def check_paths(options: Mapping[str, Any]) -> None:
    """Check paths early; the readers of the files check again.

    Args:
        options: Values by flat name, see `CommandLine`.

    Raises:
        InputError: A dataset, checkpoint, file of weights or source does not exist, or the weights
            are of another network.
    """
    for name, words in PATHS.items():
        path = options.get(name)
        if not isinstance(path, str) or path in words:
            continue
        if name == "model.start.weights" and "ckpt_path" in options:
            continue  # a run that is resumed does not need its first weights
        if name in ("data.dataset", "source") and "://" in path:
            continue  # an address
        if name == "data.dataset" and public_name(path):
            continue
        if name == "source" and (path.isdecimal() or has_magic(path)):
            continue  # a camera, a pattern
        if not exists(path):
            why = unfit(path)
            raise InputError(why if why else f"{name} {path}: no such file or folder")
