"""`python cli.py import-hyp`: YOLOv5's flat hyp*.yaml becomes an overlay."""

import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from detector.commands.evolve.overlay import overlay_text
from detector.commands.evolve.space import YOLOV5_GENES
from detector.system.atomic_file import write_atomically
from detector.system.errors import InputError, nearest
from detector.system.rank_zero import rank_zero_print
from detector.system.text_file import read_text
from detector.system.yaml_text import NO_YAML, load_yaml

OPTIONS = {**{gene.name: gene.option for gene in YOLOV5_GENES.values()}, "label_smoothing": "model.label_smoothing"}
UNUSED = {"iou_t": "nothing reads it, in YOLOv5 neither"}
MOST_ANCHORS = 20  # a level
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")  # also 1e-3, which YAML 1.1 takes for a word


def import_hyp(file: str, out: str | None = None) -> None:
    """Make an overlay for `fit --config` of a YOLOv5 file of hyper-parameters, hyp*.yaml.

    Every key is taken over under the option that has its meaning here, or named. The file stays as it is, and no file is
    written over.

    Args:
        file: YOLOv5's flat file: lr0, lrf, momentum, ...
        out: The overlay; default: the file's name with _boltbox, in the current folder.

    Raises:
        InputError: the file cannot be read, holds something else or an unknown key or a value that is no number, or the overlay
            is there already.
    """
    source = Path(file)
    values = _read(source)
    unknown = [key for key in values if key not in OPTIONS and key not in UNUSED]
    if unknown:
        hints = ", ".join(f"'{key}'{_hint(key)}" for key in unknown)
        what = "no hyper-parameters of YOLOv5" if len(unknown) > 1 else "no hyper-parameter of YOLOv5"
        raise InputError(f"{source}: {hints}: {what}; correct the key or take it out, nothing was written")
    target = Path(out) if out else Path(f"{source.stem}_boltbox.yaml")
    if target.exists():
        raise InputError(f"{target}: is there already and is not written over; give another name with --out")
    numbers = {key: _number(source, key, value) for key, value in values.items()}
    notes = [f"  {key} {numbers[key]:g}: left out; {why}" for key, why in UNUSED.items() if key in numbers]
    options: dict[str, float] = {OPTIONS[key]: numbers[key] for key in OPTIONS if key in numbers}
    if "anchors" in numbers:
        notes.append(_take_anchors(source, numbers["anchors"], options))
    if not options:
        raise InputError(f"{source}: none of its keys means anything here; nothing was written")
    train = f"python cli.py fit --config configs/yolov5.yaml --config {target} --data.dataset FILE"
    rates = {"model.optimizer": "SGD"} if "model.lr0" in options else {}  # which YOLOv5's rates are made for
    text = overlay_text(
        {**rates, **options}, [f"{source.name}, a hyper-parameter file of YOLOv5, as an overlay:", f"  {train}"]
    )
    try:
        write_atomically(target, lambda place: place.write(text.encode()))
    except OSError as e:
        raise InputError(f"{target}: cannot be written ({e.strerror or e}); give another place with --out") from None
    lines = [f"{target} holds {len(options)} of the {len(values)} keys of {source}", *notes, f"train with it: {train}"]
    rank_zero_print("\n".join(lines))


def _read(path: Path) -> dict[str, Any]:
    """The keys and values of a flat file."""
    try:
        text = read_text(path)
        content = load_yaml(text)
        tree = yaml.compose(text, yaml.SafeLoader)
    except OSError as e:
        raise InputError(f"{path}: cannot be read ({e.strerror or e}); give a hyp*.yaml of YOLOv5") from None
    except InputError as e:
        raise InputError(f"{e}; give a hyp*.yaml of YOLOv5") from None
    except NO_YAML as e:
        raise InputError(f"{path}: not valid YAML ({' '.join(str(e).split())})") from None
    if content is None or content == {}:
        raise InputError(f"{path}: is empty; give a hyp*.yaml of YOLOv5")
    if not isinstance(content, dict):
        raise InputError(f"{path}: expected one key and number a line, like lr0: 0.01; give a hyp*.yaml of YOLOv5")
    if any(isinstance(content.get(group), dict) for group in ("model", "data", "warmup", "trainer")):
        raise InputError(f"{path}: is already an overlay: give it with --config {path}")
    keys = [node.value for node, _ in tree.value] if isinstance(tree, yaml.MappingNode) else []
    twice = next((key for key, times in Counter(map(str, keys)).items() if times > 1), None)
    if twice:
        raise InputError(f"{path}: holds the key {twice} twice; take one of them out")
    return {str(key): value for key, value in content.items()}


def _hint(key: str) -> str:
    """The nearest key, if one is near."""
    hint = nearest(key, [*OPTIONS, *UNUSED])
    return f" ({hint})" if hint.startswith("did you mean") else ""


def _number(path: Path, key: str, value: Any) -> float:
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{path}: {key} is {value!r}; expected a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise InputError(f"{path}: {key} is {number}; expected a finite number")
    return number


def _take_anchors(path: Path, value: float, options: dict[str, float]) -> str:
    """Replace what stands for `anchors` by a whole number of them, or take it out; a line that says so."""
    option, count = OPTIONS["anchors"], round(value)
    if value == 0:
        del options[option]
        return "  anchors 0: left out; the anchors of the network's size are used"
    if not 1 <= count <= MOST_ANCHORS:
        raise InputError(f"{path}: anchors is {value:g}; expected 1 to {MOST_ANCHORS} anchors a level")
    options[option] = count
    return f"  anchors {value:g}: {option} {count}; AutoAnchor finds so many for each level"
