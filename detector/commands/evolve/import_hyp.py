"""`python cli.py import-hyp`: YOLOv5's flat hyp*.yaml becomes an overlay."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml
from jsonargparse import Namespace

from boltbox.detector.commands.evolve.space import YOLOV5_GENES, read_map
from boltbox.detector.data.formats.format import number
from boltbox.detector.system.atomic_file import write_atomically
from boltbox.detector.system.errors import InputError, nearest
from boltbox.detector.system.rank_zero import print_fact, program

OPTIONS: dict[str, str | None] = {gene.name: gene.option for gene in YOLOV5_GENES.values()}
OPTIONS["label_smoothing"] = "model.loss.label_smoothing"
OPTIONS["iou_t"] = None  # nothing reads it, in YOLOv5 neither


def import_hyp(file: Path, out: Path | None = None) -> None:
    """Make an overlay for `fit --config` of a YOLOv5 file of hyper-parameters, hyp*.yaml.

    Every key becomes the option that has its meaning here, or is reported. The file stays as it is,
    and no file is overwritten.

    Args:
        file: YOLOv5's flat file: lr0, lrf, momentum, ...
        out: The overlay; default: the file's name with _boltbox, in the current folder.

    Raises:
        InputError: the file cannot be read, holds something else or an unknown key or a value that
            is no number, or the overlay is there already.
    """
    values = read_map(file, "lr0: 0.01, as in a hyp*.yaml of YOLOv5")
    target = Path(f"{file.stem}_boltbox.yaml") if out is None else out
    if target.exists():
        raise InputError(
            f"{target}: already exists and is not overwritten; give another name with --out"
        )
    numbers: dict[str, float] = {}
    for key, value in values.items():
        if key not in OPTIONS:
            raise InputError(
                f"{file}: {key}: no hyper-parameter of YOLOv5; {nearest(key, OPTIONS)}"
            )
        numbers[key] = number(value)
        if not math.isfinite(numbers[key]):
            raise InputError(f"{file}: {key} is {value!r:.40}; expected a finite number")
    anchors = round(numbers.pop("anchors", 0))
    if anchors:  # 0: those of the network
        numbers["anchors"] = anchors
    options: dict[str, float | str] = {}
    if "lr0" in numbers:
        options["model.optim.optimizer"] = "SGD"  # which YOLOv5's rates are made for
    for key, option in OPTIONS.items():
        if option and key in numbers:
            options[option] = numbers[key]
    command = f"{program()} fit --config configs/yolov5.yaml --config {target} --data.dataset FILE"
    comments = [f"{file.name}, a hyper-parameter file of YOLOv5, as an overlay:", f"  {command}"]
    write_atomically(target, overlay_text(options, comments))
    print_fact("file", target)
    print_fact("next", command)


def overlay_text(options: Mapping[str, float | str], comments: Sequence[str]) -> str:
    """Make an overlay for `fit --config`.

    Args:
        options: value by option, like data.augment.hsv_h; groups come in the order in which they
            are first named.
        comments: lines before the options.

    Returns:
        The content of the file.
    """
    content = Namespace()
    for option, value in options.items():
        content[option] = value
    head = ""
    for line in comments:
        head += f"# {' '.join(line.splitlines())}\n"
    return head + yaml.safe_dump(content.as_dict(), sort_keys=False, allow_unicode=True)
