"""Lines of YOLOv5 in boltbox's words, by the table yolov5.yaml."""

import re
import shlex
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from boltbox.detector.system.errors import InputError, nearest
from boltbox.detector.system.rank_zero import program
from boltbox.detector.system.text_file import load_yaml

TABLE: dict[str, Any] = load_yaml(
    Path(__file__).with_name("yolov5.yaml").read_text(encoding="utf-8")
)
COMMAND_NAMES: dict[str, str] = TABLE["commands"]
YOLOV5_OPTIONS: dict[str, str] = TABLE["options"]
FILES: dict[str, list[str]] = TABLE["files"]  # keys of YOLOv5's files, by a hint
CLASSES = ("classes", "nc", "num_classes", "names")


def in_boltbox(
    parts: Sequence[Sequence[str]], command: str, known: Collection[str], unknown: Collection[str]
) -> str:
    """The same line with boltbox's names, and the options that have no counterpart.

    Args:
        parts: Options with their values, see `split_options`.
        command: Command of boltbox.
        known: Its options.
        unknown: Options of the line that it does not have.

    Raises:
        InputError: One of these is not YOLOv5's either. It names the nearest option.
    """
    rows: dict[str, str] = YOLOV5_OPTIONS | TABLE.get(command, {})
    words = [command]
    left_out: list[str] = []
    for option, *values in parts:
        name = option.lstrip("-").replace("_", "-")
        first = Path(values[0]).name if values else ""
        if option.lstrip("-") not in unknown:
            words += [option] + values
        elif f"{name} {first}" in rows:  # a row for this value, such as a device
            words += f"--{rows[f'{name} {first}']}".split()
        elif name not in rows:
            raise InputError(f"there is no option {option}; {_hint(option.lstrip('-'), known)}")
        elif not rows[name] or values == [""]:
            left_out.append(option)
        else:
            ours, *default = rows[name].split()
            if name == "evolve":
                words[0] = name  # here it is a command
            words += [f"--{ours}"] + (values or default)
    line = f"in boltbox: {program()} {shlex.join(words)}"
    line = re.sub("(://[^:/]*:)[^@]*@", r"\1***@", line)  # a password
    return f"{line} (left out: {', '.join(left_out)})" if left_out else line


def _hint(name: str, known: Collection[str]) -> str:
    """What to give instead of an option that does not exist."""
    if name.rpartition(".")[2] in CLASSES:
        return "the classes are the `names` of the dataset (--data.dataset FILE)"
    return nearest(name, known)
