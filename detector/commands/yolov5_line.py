"""Lines of YOLOv5 and Ultralytics in boltbox's words."""

import re
import shlex
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from boltbox.detector.system.errors import InputError, nearest
from boltbox.detector.system.rank_zero import program
from boltbox.detector.system.text_file import load_yaml
from boltbox.detector.weights.published import unfit

TABLE: dict[str, Any] = load_yaml(
    Path(__file__).with_name("yolov5.yaml").read_text(encoding="utf-8")
)
COMMAND_WORDS: dict[str, str] = TABLE["commands"]
YOLOV5_OPTIONS: dict[str, str] = TABLE["options"]
# what the word after a command is
SUBJECTS = {"predict": "source", "detect": "source"} | dict.fromkeys(
    ("fit", "train", "validate", "val", "test", "anchors", "doctor", "benchmark", "evolve"),
    "data.dataset",
)
FORMATS = ("onnx", "openvino")  # of an export
LEFT_OUT = {*TABLE["left out"]}
KEYS = {key: hint for hint, keys in TABLE["files"].items() for key in keys}  # of YOLOv5's files
OF_THE_DATA = ("classes", "nc", "num_classes", "names")


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
    if words[:1] == ["yolo"]:  # Ultralytics' program, where the mode may come later
        words = sorted(words[1:], key=lambda word: not word.startswith("mode="))
    command, *rest = words or [""]
    command = command.removeprefix("mode=")
    if command == "detect" and rest and rest[0] in (*COMMAND_WORDS, "predict", "export"):
        command, *rest = rest
    command = command.removesuffix(".py")
    # a value, and the name of a run, may have a = too
    if command not in ("compare", "report") and not any(word.startswith("-") for word in rest):
        rest = [re.sub(r"^(\w+=)", r"--\1", word) for word in rest]
    if rest and command in SUBJECTS and not rest[0].startswith("-") and "=" not in rest[0]:
        rest[0] = f"--{SUBJECTS[command]}={rest[0]}"
    return [command, *rest]


def translated(
    parts: Sequence[Sequence[str]], command: str, known: Collection[str], unknown: Collection[str]
) -> str:
    """A line in boltbox's words, after what it lacks and what has to be done first.

    Args:
        parts: its options, see `split_options`.
        known: options of the command.
        unknown: those of the line that it has not; each gives way to ours.

    Raises:
        InputError: none of its options is one of YOLOv5's; it names the nearest to the first.
    """
    own = TABLE.get(command, {})
    table = {**YOLOV5_OPTIONS, **own}
    typed = {option.lstrip("-"): given[0] for option, *given in parts if given and given[0]}
    run = str(Path(typed.get("project", ""), typed.get("name", "exp")))
    words: list[str] = []
    left_out: list[str] = []
    missing: list[str] = []  # names that are nobody's
    remarks: list[str] = []
    for option, *given in parts:
        name = option.lstrip("-")
        if name not in unknown:
            words += _option(option, given)
            continue
        word, values = name.replace("_", "-"), [value for value in given if value]
        typed_words = " ".join([option, *given])
        if why := next(filter(None, map(unfit, values)), ""):
            left_out.append(f"{typed_words} ({why.partition(' ')[2]})")
            continue
        if word == "model" and values and values[0].endswith(".yaml"):
            word = "cfg"
        if word == "project" and "name" in typed:
            continue
        if word in ("project", "name"):
            values = [run]
        if word == "include":
            made = next((value for value in values if value in FORMATS), "")
            if others := " ".join(value for value in values if value != made):
                left_out.append(f"--include {others} (one format at a time: {', '.join(FORMATS)})")
            values = given = [made]
        whole = " ".join([word, *(Path(value).name for value in values)])
        ours = (own if word in own else table).get(whole)
        if ours is not None:  # with its value, as a file of YOLOv5's own or a device
            values = []
        elif LEFT_OUT & {word, whole} and word not in table:
            if values != ["False"]:  # what is switched off is no loss
                left_out.append(typed_words)
            continue
        else:
            leaf = name.rpartition(".")[2].replace("-", "_")
            same = [each for each in known if each.rpartition(".")[2] == leaf]
            ours = table.get(word, same[0] if len(same) == 1 else None)
        if ours is None:
            missing.append(name)
            left_out.append(f"{typed_words} (no such option; {_hint(name, known)})")
            continue
        is_elsewhere = ours.startswith("/")
        if is_elsewhere:  # in another command
            command, _, ours = ours[1:].partition(" ")
        ours, *usual = ours.split() or [""]
        if not is_elsewhere and ours not in ("", "config", *known):
            left_out.append(typed_words)
            continue
        if usual and usual != ["true"] and values == ["False"]:  # as it is anyway
            continue
        if usual and values == ["True"]:
            values = usual
        values = [value.lower() if value in ("True", "False") else value for value in values]
        if word == "hyp" and values:  # a file of the user's own
            remarks.append(f"first {program()} import-hyp {shlex.join(values)}")
            overlay = f"{Path(values[0]).stem}_boltbox.yaml"
            words += ["--config", "configs/yolov5.yaml", "--config", overlay]
        elif ours and given != [""]:
            # yolov5s.yaml is a size
            values = [re.sub(r"^(?:.*/)?yolov5(\w+)\.yaml$", r"\1", value) for value in values]
            words += _option(f"--{ours}", values or usual)
    if missing and len(missing) == len(unknown):
        raise InputError(f"there is no option --{missing[0]}; {_hint(missing[0], known)}")
    if left_out:
        remarks.append(f"left out: {', '.join(left_out)}")
    remarks.append(f"equivalent command: {program()} {shlex.join([command, *words])}")
    return "; ".join(remarks)


def _hint(name: str, known: Collection[str]) -> str:
    """What to give in place of an option that does not exist."""
    if name.rpartition(".")[2] in OF_THE_DATA:
        return "the classes are the `names` of the data set (--data.dataset FILE)"
    return nearest(name, [*known, *YOLOV5_OPTIONS])


def _option(name: str, values: Sequence[str]) -> list[str]:
    """An option; several values are a list, several checkpoints an ensemble."""
    if name == "--ckpt_path" and len(values) > 1:
        return [name, values[0], "--ensemble", f"[{','.join(values[1:])}]"]
    different = [*dict.fromkeys(values)]
    is_list = len(different) > 1 and "--config" not in values  # of which there may be several
    return [name, f"[{','.join(different)}]"] if is_list else [name, *different]
