"""Lines of YOLOv5 and Ultralytics as lines of boltbox."""

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
COMMAND_WORDS: dict[str, str] = TABLE["commands"]
YOLOV5_OPTIONS: dict[str, str] = TABLE["options"]
LEFT_OUT = "-"  # row of an option that boltbox lacks
KEYS: dict[str, str] = {}  # key of a file of YOLOv5 -> hint
for _hint_of_file, _keys in TABLE["files"].items():
    KEYS |= dict.fromkeys(_keys, _hint_of_file)


def translated(
    parts: Sequence[Sequence[str]], command: str, known: Collection[str], unknown: Collection[str]
) -> str:
    """The equivalent line of boltbox, and the options that it lacks.

    Args:
        parts: Options with their values, see `split_options`.
        command: Command of boltbox.
        known: Options of the command.
        unknown: Options of the line that it does not have.

    Raises:
        InputError: No option of the line is one of YOLOv5's. It names the nearest to the first.
    """
    rows_of_command: dict[str, str] = TABLE.get(command, {})
    rows = dict.fromkeys(TABLE["left out"], LEFT_OUT) | YOLOV5_OPTIONS | rows_of_command
    typed = {part[0].lstrip("-"): part[1] for part in parts if len(part) > 1}
    run = Path(typed.get("project", ""), typed.get("name", "exp"))
    words: list[str] = []
    left_out: list[str] = []
    missing: list[str] = []
    for option, *values in parts:
        name = option.lstrip("-")
        key = name.replace("_", "-")
        text = " ".join([option] + values)
        if name not in unknown:
            words += _option(option, values)
            continue
        if values == [""] or (key == "project" and "name" in typed):
            continue
        if key in ("project", "name"):
            values = [str(run)]
        if key == "model" and text.endswith(".yaml"):
            key = "cfg"
        # a row for this value, such as a file of YOLOv5's own or a device
        key_and_value = " ".join([key] + [Path(value).name for value in values])
        row = (rows_of_command if key in rows_of_command else rows).get(key_and_value)
        if row is not None:
            values = []
        else:
            row = rows.get(key, _same_name(name, known))
        if row is None:
            missing.append(name)
            left_out.append(f"{text} (no such option; {_hint(name, known)})")
            continue
        is_elsewhere = row.startswith("/")
        if is_elsewhere:
            command, _, row = row[1:].partition(" ")
        ours, _, default = row.partition(" ")
        is_off = values == ["False"]
        if not ours or (is_off and default not in ("", "true")):
            continue  # nothing to set
        if is_elsewhere or ours in known:
            words += _option(f"--{ours}", _values(values, default))
        elif not is_off:
            left_out.append(text)
    if missing and len(missing) == len(unknown):
        raise InputError(f"there is no option --{missing[0]}; {_hint(missing[0], known)}")
    line = f"equivalent command: {program()} {shlex.join([command] + words)}"
    return f"left out: {', '.join(left_out)}; {line}" if left_out else line


def _same_name(name: str, known: Collection[str]) -> str | None:
    """The only option of boltbox with this name in any group."""
    leaf = name.rpartition(".")[2].replace("-", "_")
    same = [option for option in known if option.rpartition(".")[2] == leaf]
    return same[0] if len(same) == 1 else None


def _values(typed: Sequence[str], default: str) -> list[str]:
    """Values in boltbox's words; default: that of a switch that is on."""
    if not typed or (typed == ["True"] and default):
        return default.split()
    words = {"True": "true", "False": "false"}
    # yolov5s.yaml is a size
    sizes = [re.sub(r"^(?:.*/)?yolov5(\w+)\.yaml$", r"\1", value) for value in typed]
    return [words.get(value, value) for value in sizes]


def _hint(name: str, known: Collection[str]) -> str:
    """What to give instead of an option that does not exist."""
    if name.rpartition(".")[2] in ("classes", "nc", "num_classes", "names"):
        return "the classes are the `names` of the dataset (--data.dataset FILE)"
    return nearest(name, [*known, *YOLOV5_OPTIONS])


def _option(name: str, values: Sequence[str]) -> list[str]:
    """An option; several values are a list, several checkpoints an ensemble."""
    if name == "--ckpt_path" and len(values) > 1:
        return [name, values[0], "--ensemble", f"[{','.join(values[1:])}]"]
    different = list(dict.fromkeys(values))
    if len(different) > 1 and "--config" not in values:
        return [name, f"[{','.join(different)}]"]
    return [name] + different
