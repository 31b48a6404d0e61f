"""Options as people type them: errors in one sentence, YOLOv5's names, plain functions as commands."""

import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, get_args, get_origin

import yaml
from docstring_parser import parse
from jsonargparse import ActionConfigFile, get_loader, set_loader
from lightning.pytorch.cli import LightningArgumentParser

from detector.errors import InputError, nearest
from detector.evolve.space import YOLOV5_GENES
from detector.shipped import config_path
from detector.text_file import is_pipe, read_text
from detector.yaml_text import LARGEST, NO_YAML, check_limits

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
    "weights": "model.weights",
    "cfg": "model.size",
    "optimizer": "model.optimizer",
    "cos-lr": "model.lr_schedule cosine",
    "label-smoothing": "model.label_smoothing",
    "multi-scale": "model.multi_scale",
    "freeze": "model.freeze",
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
    "hyp": "config configs/hyp/low.yaml (for a file of your own see python cli.py import-hyp --help)",
    "resume": "ckpt_path last",
    "project": "run",
    "name": "run",
    **dict.fromkeys(("data.path", "data.train", "data.val", "data.nc"), "data.dataset FILE"),  # after --data my/data.yaml
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


class ConfigFile(ActionConfigFile):
    """`--config`, which finds what comes with the project."""

    def __call__(self, parser: Any, cfg: Any, values: Any, option_string: str | None = None) -> None:
        super().__call__(parser, cfg, config_path(values) if isinstance(values, str) else values, option_string)


DESCRIPTORS = "/dev/fd/"  # what a shell makes of <(...)

_load = get_loader("yaml")


def _load_within_limits(text: str) -> Any:
    """jsonargparse's own loader, for text within the limits of `yaml_text`."""
    try:
        check_limits(text)
        return _load(text)
    except NO_YAML as e:
        raise e if isinstance(e, yaml.YAMLError) else yaml.YAMLError(str(e)) from None


set_loader("yaml", _load_within_limits, (yaml.YAMLError,))


class Parser(LightningArgumentParser):
    """No abbreviations (`--trainer.max_epoch` is a typo); errors are one sentence, with the nearest name. YAML is read within
    limits, from regular files."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **kwargs})

    def add_argument(self, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("action") is ActionConfigFile:
            told = "A YAML file of options; of several, later ones count more. Where there is none of this name it is one that"
            kwargs |= {"action": ConfigFile, "help": f"{told} comes with boltbox, like configs/yolo.yaml or hyp/med.yaml."}
        return super().add_argument(*args, **kwargs)

    def error(self, message: str, *args: Any, **kwargs: Any) -> NoReturn:
        raise InputError(message)

    def parse_args(self, args: Any = None, *more: Any, **kwargs: Any) -> Any:
        for word in args or []:  # a pipe that nobody writes into would be waited for
            value = word.partition("=")[2] if word.startswith("--") else word
            if is_pipe(value) and not value.startswith(DESCRIPTORS):
                raise InputError(f"{value}: this is a pipe; give a file")
        return super().parse_args(args, *more, **kwargs)

    def parse_path(self, path: Any, *args: Any, **kwargs: Any) -> Any:
        """A file of options, given by --config."""
        if not str(path).startswith(DESCRIPTORS):
            read_text(str(path), LARGEST)
        try:
            return super().parse_path(path, *args, **kwargs)
        except InputError as e:
            raise InputError(str(e) if str(path) in str(e) else f"{path}: {e}") from None


def with_nearest(message: str, parsers: dict[str, LightningArgumentParser]) -> str:
    """An error about an option that doesn't exist, with the nearest that does."""
    data = re.match(r"Parser key \"data\":\s+Unable to load config '([^']+)'", message)
    if data:
        return f"--data {data[1]}: no file of options for the data; a data set is given as --data.dataset {data[1]}"
    found = re.search(r"(?:--|option '|key ')([\w.-]+)", message)
    if found and found[1] in YOLOV5_GENES and "not accept" in message:  # said of a file, not of what was typed
        return f"{message}; if it stands in a hyp*.yaml of YOLOv5, make an overlay of that: python cli.py import-hyp FILE"
    theirs = YOLOV5_EXPORT if "export" in parsers else YOLOV5_OPTIONS
    if found and found[1] in theirs:
        return f"{message}; here it is --{theirs[found[1]]}"
    known = {o.lstrip("-") for p in parsers.values() for a in p._actions for o in a.option_strings}
    if found and found[1] not in known and re.search(r"nrecognized|not accept|not expected|nvalid key", message):
        return f"{message}; {nearest(found[1], known)}"
    return message


def call(function: Callable[..., None], command: str, args: Sequence[str]) -> None:
    """Call a plain function with options of its parameters' names; those without a default are positional, and a `list` takes
    one or more words."""
    told = parse(inspect.getdoc(function) or "")
    helps = {p.arg_name: p.description for p in told.params}
    parser = Parser(prog=f"cli.py {command}", description=told.short_description)
    required = [p for p in inspect.signature(function, eval_str=True).parameters.values() if p.default is p.empty]
    for p in required:
        if get_origin(p.annotation) is list:
            parser.add_argument(p.name, nargs="+", type=get_args(p.annotation)[0], help=helps.get(p.name))
        else:
            parser.add_argument(p.name, type=p.annotation, help=helps.get(p.name))
    parser.add_function_arguments(function, skip={p.name for p in required})
    try:
        options = parser.parse_args(list(args))
    except InputError as e:
        raise InputError(with_nearest(str(e), {command: parser})) from None
    function(**options.as_dict())
