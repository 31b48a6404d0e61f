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
COMMAND_OF = {"evolve": "evolve", "task test": "test"}  # options that are commands here
LISTS = (("fit", "model.start.freeze"), ("export", "image_size"))
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
    table: dict[str, str] = YOLOV5_OPTIONS | TABLE.get(command, {})
    before = ""  # a command that has to run first
    shown_command = command
    configs: list[str] = []
    words: list[str] = []
    left_out: list[str] = []
    typed = {option: values for option, *values in parts}
    for option, *values in parts:
        typed_name = option.lstrip("-")
        if typed_name not in unknown:
            words += [option, *values]
            continue
        name = typed_name.replace("_", "-")
        if name == "project" and "--name" in typed:
            continue
        if name == "name":  # --run P/N
            values = ["/".join(typed.get("--project", ["runs"]) + values)]
        of_value = f"{name} {Path(values[0]).name}" if values else ""
        entry = of_value if of_value in table else name
        if entry not in table:
            raise InputError(f"there is no option {option}; {_hint(typed_name, known)}")
        ours, *words_of_table = table[entry].split() or [""]
        is_for_any_value = entry == name

        if entry in COMMAND_OF:
            shown_command = COMMAND_OF[entry]
        elif ours not in known or values == [""]:
            left_out.append(option if is_for_any_value else f"{option} {values[0]}")
            continue
        if len(values) > 1 and (command, ours) in LISTS:
            values = [f"[{','.join(values)}]"]
        elif len(values) > 1:
            left_out.append(shlex.join([option, *values[1:]]))
        if name == "hyp":
            configs += ["--config", *words_of_table]
            if values and is_for_any_value:
                before = f"import-hyp {shlex.quote(values[0])} && {program()} "
                configs += ["--config", f"{Path(values[0]).stem}_boltbox.yaml"]
        elif ours:
            words.append(f"--{ours}")
            words += values[:1] if values and is_for_any_value else words_of_table
    # a file replaces what is typed before it
    line = f"in boltbox: {program()} {before}{shlex.join([shown_command, *configs, *words])}"
    if left_out:
        line += f" (left out: {', '.join(left_out)})"
    return re.sub(r"(://[^:/\s]*:)[^/\s]*@", r"\1***@", line)  # a password


def _hint(name: str, known: Collection[str]) -> str:
    """What to give instead of an option that does not exist."""
    if name.rpartition(".")[2] in CLASSES:
        return "the classes are the `names` of the dataset (--data.dataset FILE)"
    return nearest(name, known)
