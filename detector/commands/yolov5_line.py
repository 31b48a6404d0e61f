"""Lines of YOLOv5 in boltbox's words."""

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from boltbox.detector.system.errors import InputError, nearest
from boltbox.detector.system.text_file import load_yaml

TABLE: dict[str, Any] = load_yaml(
    Path(__file__).with_name("yolov5.yaml").read_text(encoding="utf-8")
)
COMMAND_WORDS: dict[str, str] = TABLE["commands"]
YOLOV5_OPTIONS: dict[str, str] = TABLE["options"]
KEYS = {key: hint for hint, keys in TABLE["files"].items() for key in keys}  # of YOLOv5's files


def translated(
    parts: Sequence[Sequence[str]], command: str, known: Collection[str], unknown: Collection[str]
) -> list[str]:
    """The words of a line in which each option that does not exist has given way to ours.

    Args:
        parts: of the line, see `split_options`.
        known: options of the command.
        unknown: those of the line that it has not.

    Raises:
        InputError: an option is none of YOLOv5's either; it names the nearest.
    """
    table = {**YOLOV5_OPTIONS, **TABLE.get(command, {})}
    words: list[str] = []
    for option, *values in parts:
        name = option.lstrip("-")
        if name not in unknown:
            words += [option, *values]
            continue
        leaf = name.rpartition(".")[2].replace("-", "_")
        same = [each for each in known if each.rpartition(".")[2] == leaf]
        ours = table.get(" ".join([name, *values]))  # of YOLOv5's own files and devices
        if ours is None and (name in table or len(same) == 1):
            ours, _, usual = table.get(name, "".join(same)).partition(" ")
            # yolov5s.yaml is a size
            values = [re.sub(r"^yolov5(\w+)\.yaml$", r"\1", value) for value in values]
            values = list(dict.fromkeys(values)) or usual.split()
            ours += (
                f" [{','.join(values)}]" if len(values) > 1 else "".join(f" {v}" for v in values)
            )
        if ours is None:
            raise InputError(f"there is no option --{name}; {nearest(name, known)}")
        words += f"--{ours}".split() if ours else []
    return words
