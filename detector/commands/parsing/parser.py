"""The whole parser: errors in one sentence, plain functions as commands. Lightning's takes seconds
to import."""

import inspect
import re
import types
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from operator import or_
from typing import Any, Literal, NoReturn, Union, get_args, get_origin

import yaml
from docstring_parser import parse
from jsonargparse import ActionConfigFile, get_loader, set_loader, set_parsing_settings
from lightning.pytorch import Trainer
from lightning.pytorch.cli import LightningArgumentParser

from boltbox.detector.commands.evolve.space import YOLOV5_GENES
from boltbox.detector.commands.parsing.options import DESCRIPTORS, unknown_option
from boltbox.detector.commands.parsing.own_class import own_class_problem
from boltbox.detector.system.errors import InputError, one_of
from boltbox.detector.system.shipped import config_path
from boltbox.detector.system.text_file import read_text
from boltbox.detector.system.yaml_text import NO_YAML

TYPES: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    dict: "a mapping",
    type(None): "null",
}


class ConfigFile(ActionConfigFile):
    """`--config`, which finds what comes with the project."""

    def __call__(
        self, parser: Any, cfg: Any, values: Any, option_string: str | None = None
    ) -> None:
        super().__call__(
            parser, cfg, config_path(values) if isinstance(values, str) else values, option_string
        )


_load = get_loader("yaml")


def _load_or_yaml_error(text: str) -> Any:
    """jsonargparse's own loader; whatever it stumbles over is an error of YAML."""
    try:
        return _load(text)
    except NO_YAML as e:
        raise e if isinstance(e, yaml.YAMLError) else yaml.YAMLError(str(e)) from None


set_loader("yaml", _load_or_yaml_error, (yaml.YAMLError,))
# or an option that takes any value would take any class
set_parsing_settings(instantiate_subclass_spec_in_any=False)


class Parser(LightningArgumentParser):
    """No abbreviations (`--trainer.max_epoch` is a typo); errors are one sentence, with the nearest
    name."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **kwargs})

    def add_argument(self, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("action") is ActionConfigFile:
            text = (
                "A YAML file of options; of several, later ones count more. Where there is none of"
                " this name it is one that"
            )
            kwargs |= {
                "action": ConfigFile,
                "help": f"{text} comes with boltbox, like configs/yolo.yaml or hyp/med.yaml.",
            }
        return super().add_argument(*args, **kwargs)

    def error(self, message: str, *args: Any, **kwargs: Any) -> NoReturn:
        raise InputError(message)

    def parse_path(self, path: Any, *args: Any, **kwargs: Any) -> Any:
        """A file of options, given by --config."""
        if not str(path).startswith(DESCRIPTORS):
            read_text(str(path))
        try:
            return super().parse_path(path, *args, **kwargs)
        except InputError as e:
            raise InputError(str(e) if str(path) in str(e) else f"{path}: {e}") from None

    def add_lightning_class_args(
        self, lightning_class: Any, nested_key: str, *args: Any, **kwargs: Any
    ) -> list[str]:
        """The group is headed by the first paragraph of the class. Of `int | float` the whole
        number counts: 1 is one batch, 1.0 is all of them."""
        added = super().add_lightning_class_args(lightning_class, nested_key, *args, **kwargs)
        group = (self.groups or {})[nested_key]
        text = (
            "Lightning's Trainer."
            if issubclass(lightning_class, Trainer)
            else inspect.getdoc(lightning_class) or ""
        )
        group.title, group.description = nested_key, " ".join(text.partition("\n\n")[0].split())
        for action in self._actions:
            unions = types.UnionType | type(Union[int, str])  # noqa: UP007
            if isinstance(getattr(action, "_typehint", None), unions):
                action._typehint = _whole_first(action._typehint)  # type: ignore[attr-defined]
        return added


def _whole_first(union: Any) -> Any:
    """typing takes Optional[Union[float, int]] that was made anywhere before for
    Optional[Union[int, float]]."""
    kinds = get_args(union)
    if int not in kinds or float not in kinds or kinds.index(int) < kinds.index(float):
        return union
    return reduce(or_, sorted(kinds, key=lambda kind: (kind is not int) + (kind is type(None))))


def explained(message: str, parsers: dict[str, LightningArgumentParser]) -> str:
    """An error of the parser as a sentence: with the nearest option that exists, or the values that
    an option takes."""
    data = re.match(r"Parser key \"data\":\s+Unable to load config '([^']+)'", message)
    if data:
        return (
            f"--data {data[1]}: no file of options for the data; a data set is given as"
            f" --data.dataset {data[1]}"
        )
    own = own_class_problem(message)
    if own is not None:
        return own
    value = re.match(
        r"Parser key \"([\w.]+)\":.*(?:Given value|Got value): (.*)", message, re.DOTALL
    )
    for action in (a for p in parsers.values() for a in p._actions):
        kind = getattr(action, "_typehint", None)
        if value and action.dest == value[1] and kind is not None:
            return f"{value[1]} is {' '.join(value[2].split())}; it must be {allowed(kind)}"
    found = re.search(r"(?:--|option '|key ')([\w.-]+)", message)
    # an error in a file, not in what was typed
    if found and found[1] in YOLOV5_GENES and "not accept" in message:
        return (
            f"{message}; if it stands in a hyp*.yaml of YOLOv5, make an overlay of that: python"
            " cli.py import-hyp FILE"
        )
    known = {o.lstrip("-") for p in parsers.values() for a in p._actions for o in a.option_strings}
    if (
        found
        and found[1] not in known
        and re.search(r"nrecognized|not accept|not expected|nvalid key", message)
    ):
        return (
            f"{message};"
            f" {unknown_option(found[1], known, 'export' if 'export' in parsers else 'fit')}"
        )
    return message


def allowed(kind: Any) -> str:
    """The values of a type, in words.

    >>> allowed(Literal["best", "last"]), allowed(int | None), allowed(list[int | str] | None)
    ('best or last', 'a whole number or null', 'a list like [1, 2] or null')
    """
    if kind in TYPES:
        return TYPES[kind]
    parts = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    values = [
        str(value) for part in parts if get_origin(part) is Literal for value in get_args(part)
    ]
    words = [_type_in_words(part) for part in parts if get_origin(part) is not Literal]
    return one_of([*dict.fromkeys(values), *dict.fromkeys(words)])


def _type_in_words(kind: Any) -> str:
    if kind in TYPES:
        return TYPES[kind]
    origin, of = get_origin(kind) or kind, get_args(kind)
    if inspect.isclass(origin) and issubclass(origin, list | tuple | set):
        inner = of[0] if of else str
        first = get_args(inner)[0] if get_origin(inner) in (Union, types.UnionType) else inner
        if get_origin(first) is list:
            return "a list of lists like [[1, 2], [3, 4]]"
        return f"a list like {'[1, 2]' if first in (int, float) else '[one, two]'}"
    if inspect.isclass(origin) and issubclass(origin, dict):
        return (
            "a mapping of lists like {name: [one, two]}"
            if of and get_origin(of[1]) is list
            else TYPES[dict]
        )
    if inspect.isclass(origin) and issubclass(origin, Iterable):
        return "a list"
    return f"a {getattr(origin, '__name__', str(origin))} as class_path and init_args"


def call(function: Callable[..., None], command: str, args: Sequence[str]) -> None:
    """Call a plain function with options of its parameters' names; those without a default are
    positional, and a `list` takes one or more words."""
    docstring = parse(inspect.getdoc(function) or "")
    helps = {p.arg_name: p.description for p in docstring.params}
    parser = Parser(prog=f"cli.py {command}", description=docstring.short_description)
    required = [
        p
        for p in inspect.signature(function, eval_str=True).parameters.values()
        if p.default is p.empty
    ]
    for p in required:
        if get_origin(p.annotation) is list:
            parser.add_argument(
                p.name, nargs="+", type=get_args(p.annotation)[0], help=helps.get(p.name)
            )
        else:
            parser.add_argument(p.name, type=p.annotation, help=helps.get(p.name))
    parser.add_function_arguments(function, skip={p.name for p in required})
    try:
        options = parser.parse_args(list(args))
    except InputError as e:
        raise InputError(explained(str(e), {command: parser})) from None
    function(**options.as_dict())
