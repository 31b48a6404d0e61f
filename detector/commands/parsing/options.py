"""Names of options: those of a command, YOLOv5's names for them, hints for those that do not
exist."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from boltbox.detector.commands.evolve.space import YOLOV5_GENES
from boltbox.detector.system.errors import InputError, nearest
from boltbox.detector.system.shipped import config_path
from boltbox.detector.system.text_file import exists, read_text
from boltbox.detector.system.yaml_text import NO_YAML, load_yaml

YOLOV5_OPTIONS = {  # what people type from memory
    "epochs": "trainer.max_epochs",
    "img": "data.image_size",
    "imgsz": "data.image_size",
    "img-size": "data.image_size",
    "batch": "data.batch_size",
    "batch-size": "data.batch_size",
    "workers": "data.workers",
    "single-cls": "data.single_class",
    "rect": "data.rect",
    "image-weights": "data.image_weights",
    "cache": "data.cache",
    "source": "data.source",
    "weights": "model.start.weights",
    "cfg": "model.network.size",
    "optimizer": "model.optim.optimizer",
    "cos-lr": "model.optim.lr_schedule cosine",
    "label-smoothing": "model.loss.label_smoothing",
    "multi-scale": "model.multi_scale",
    "freeze": "model.start.freeze",
    "conf-thres": "model.conf",
    "iou-thres": "model.iou",
    "max-det": "model.max_det",
    "agnostic-nms": "model.agnostic",
    "classes": "model.classes",
    "augment": "model.tta true",
    "half": "trainer.precision 16-true",
    "vid-stride": "data.frame_step",
    "save-txt": "save.labels true",
    "save-conf": "save.confidences true",
    "save-crop": "save.crops true",
    "save-csv": "save.csv true",
    "save-json": "save.json true",
    "nosave": "save.images false",
    "hide-labels": "save.hide_labels true",
    "hide-conf": "save.hide_confidences true",
    "line-thickness": "save.line_width",
    "patience": "early_stop.patience",
    "save-period": "checkpoints.save_period",
    "sync-bn": "trainer.sync_batchnorm",
    "device": "trainer.devices",
    "seed": "seed_everything",
    "noautoanchor": "autoanchor.enabled false",
    "hyp": (
        "config configs/yolov5.yaml --config configs/hyp/low.yaml (your own file: python cli.py"
        " import-hyp --help)"
    ),
    "resume": "ckpt_path last",
    "project": "run",
    "name": "run",
    # after --data my/data.yaml
    **dict.fromkeys(("data.path", "data.train", "data.val", "data.nc"), "data.dataset FILE"),
}

YOLOV5_EXPORT = {  # and after export
    "weights": "ckpt_path",
    "include": "format",
    "img": "image_size",
    "imgsz": "image_size",
    "img-size": "image_size",
    "batch-size": "batch",
    "conf-thres": "conf",
    "iou-thres": "iou",
    "topk-all": "max_det",
    "agnostic-nms": "agnostic",
    "name": "out",
}


COMMAND_WORDS = {  # common words, and the command they mean
    "train": "fit",
    "training": "fit",
    "resume": "fit --ckpt_path last",
    "val": "validate",
    "eval": "validate",
    "evaluate": "validate",
    "detect": "predict",
    "infer": "predict",
    "inference": "predict",
    "autoanchor": "anchors",
    "check": "doctor",
    "tune": "evolve",
    "convert": "export",
}
DESCRIPTORS = "/dev/fd/"  # of a shell's <(...), which can be read only once


def unknown_option(name: str, known: Collection[str], command: str = "fit") -> str:
    """A hint for an option that does not exist."""
    theirs = YOLOV5_EXPORT if command == "export" else YOLOV5_OPTIONS
    if name == "weights" and command in ("validate", "test", "predict"):
        # model.start.weights start a training; they do not bring image size and class names
        return "here it is --ckpt_path"
    return f"here it is --{theirs[name]}" if name in theirs else nearest(name, known)


def is_known(name: str, known: Collection[str], groups: Collection[str]) -> bool:
    """Whether an option exists, or may exist: options within one that takes a class
    (trainer.logger.init_args.name) only the whole parser knows."""
    if name in known:
        return True
    parts = name.split(".")
    above = {".".join(parts[:k]) for k in range(1, len(parts))}
    return bool(above & (set(known) - set(groups)))


def check_config(given: str, known: Collection[str], groups: Collection[str], command: str) -> None:
    """Check that a file given as --config, one of the user or one that comes with the project,
    holds options of the command. A file that cannot be read is left to the parser.

    Raises:
        InputError: the file is of another kind, which the message names, or a key is no option.
    """
    path = Path(config_path(given))
    if re.match(r"[\w+.-]+://", given):
        raise InputError(
            f"--config {given}: only files of this machine are read; download it, and give the file"
        )
    # the text of options is taken as well
    if given.startswith(DESCRIPTORS) or (":" in given and not exists(path)):
        return
    try:
        content = load_yaml(read_text(path))
    except FileNotFoundError:
        raise InputError(f"--config {path}: no such file") from None
    except InputError as e:
        raise InputError(f"--config {e}") from None
    except (OSError, *NO_YAML):
        return
    if not isinstance(content, dict):
        raise InputError(
            f"--config {path}: it holds no options; they stand in it as in a run's config.yaml"
        )
    keys = {str(key) for key in content}
    if len(keys & {"path", "train", "val", "test", "names", "nc"}) > 1:
        raise InputError(
            f"--config {path}: that is the file of a data set; give it as --data.dataset {path}"
        )
    if keys & {"backbone", "head"}:
        raise InputError(
            f"--config {path}: that is YOLOv5's file of a network; here it is --model.network.size"
            " n, s, m,"
            " l, x, n6, ..."
        )
    for name in _names(content, groups):
        if is_known(name, known, groups):
            continue
        if name in YOLOV5_GENES:
            hint = f"a hyp*.yaml of YOLOv5 becomes an overlay by: python cli.py import-hyp {path}"
        else:
            hint = (
                f"{unknown_option(name, known, command)} (a data set is given as --data.dataset"
                " FILE)"
            )
        raise InputError(f"--config {path}: '{name}' is no option of {command}; {hint}")


def _names(content: Mapping[Any, Any], groups: Collection[str], group: str = "") -> list[str]:
    """The options that a file sets."""
    names = []
    for key, value in content.items():
        name = f"{group}{key}"
        names += (
            _names(value, groups, f"{name}.")
            if isinstance(value, dict) and name in groups
            else [name]
        )
    return names


def typed_options(args: Sequence[str]) -> list[tuple[str, str]]:
    """The options on a command line, and their values as far as they are words.

    >>> typed_options(["fit", "--model.optim.lr0", "0.1", "--json", "--run=a", "-c", "x.yaml"])
    [('model.optim.lr0', '0.1'), ('json', ''), ('run', 'a'), ('config', 'x.yaml')]
    """
    options = []
    for k, word in enumerate(args):
        if word == "-c" or (word.startswith("--") and len(word) > 2):
            name, equals, value = word.removeprefix("--").partition("=")
            after = args[k + 1] if k + 1 < len(args) and not args[k + 1].startswith("--") else ""
            options.append(
                ("config" if word == "-c" else name.removesuffix("+"), value if equals else after)
            )
    return options
