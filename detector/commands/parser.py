"""The parser of a command: errors as one sentence, a short help, plain functions as commands."""

import argparse
import inspect
import re
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, NoReturn, Union, get_args, get_origin, get_type_hints

import yaml
from jsonargparse import ArgumentParser, set_parsing_settings

from boltbox.detector.commands.command_line import joined, split_options
from boltbox.detector.system.errors import InputError, nearest
from boltbox.detector.system.ranges import NonNegativeFloat, NonNegativeInt, PositiveInt, allowed
from boltbox.detector.system.rank_zero import program
from boltbox.detector.system.trusted import refusal

# or an option that takes any value would take any class
set_parsing_settings(instantiate_subclass_spec_in_any=False)

INT_FIRST = int | float | None
BOUNDED = {  # types of the Trainer's options, where they are stricter than Lightning's
    "trainer.max_epochs": NonNegativeInt | None,  # 0: only the checks before a training
    "trainer.check_val_every_n_epoch": PositiveInt | None,
    "trainer.gradient_clip_val": NonNegativeFloat | None,
}
HELP = yaml.safe_load(Path(__file__).with_name("help.yaml").read_text(encoding="utf-8"))
LIGHTNINGS = re.compile(  # a default, which the recipe may replace, and Sphinx's marks
    r"\s*Default: ``.*?``\.?|:\w+:`[~\w.]*?(\w+)`|``"
)
BOUNDS = re.compile(r" [<>]=?[\d.]+( and [<>]=?[\d.]+)?| or null")
# of jsonargparse's messages: the option, and why a class or a name is not taken
KEY = re.compile(r'Parser key "([\w.]+)"')
DENIED = re.compile(r"Importing '([\w.]+)' is not allowed")
CLASS = re.compile(
    r"No module named '[\w.]+'|module '[\w.]+' has no attribute '\w+'"
    r"|Expected '[\w.]+' to be a subclass of \w+"
)
VALUE = re.compile("value: ", re.IGNORECASE)
EXTRA = "unrecognized arguments: "
UNKNOWN = re.compile(r"(?:arguments: --|Option '|accept option '|[Kk]ey ')([\w.-]+)")


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """An option is `--name (type, default: value)  help`, in the width of the terminal."""

    def _format_action(self, action: argparse.Action) -> str:
        facts = []
        if kind := getattr(action, "_typehint", None):
            text = BOUNDS.sub("", allowed(kind))
            facts.append(text if len(text) <= 40 else "str")
        default = action.default
        if default not in (None, argparse.SUPPRESS):
            facts.append(f"default: {str(default).lower() if kind is bool else default}")
        name = f"--{action.dest}" if action.option_strings else action.dest.upper()
        text = f"{name} ({', '.join(facts)})" if facts else name
        about = str(action.help).replace("%%", "%")
        return (
            textwrap.fill(
                f"  {text}  {' '.join(about.split())}",
                max(self._width, 20),
                subsequent_indent=6 * " ",
                break_on_hyphens=False,
            )
            + "\n"
        )


class Parser(ArgumentParser):
    """A parser whose errors are one sentence.

    Attributes:
        origins: The file that an option stands in; "": it was typed.
    """

    origins: Mapping[str, str] = {}

    def parse_args(self, args: Sequence[str], *others: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        """The words after an option that takes a list are its items: `--classes 0 2`."""
        lists: set[str] = set()
        for action in self._actions:
            if takes_only_lists(getattr(action, "_typehint", None)):
                lists.update(action.option_strings)
        words: list[str] = []
        for option, *values in split_options(args):
            if option in lists and values and not values[0].startswith(("[", "null")):
                values = [f"[{','.join(values)}]"]
            words += joined(option, values)
        return super().parse_args(words, *others, **kwargs)

    def error(self, message: str, *args: Any, **kwargs: Any) -> NoReturn:
        """Raises InputError: the file, the option, what is wrong, and the nearest name."""
        message = message.removeprefix('Parser key "config": ')  # a file is parsed within the line
        message = re.sub(r"<class '([\w.]+)'>", r"\1", message)
        key = KEY.search(message)
        option = key[1] if key else ""
        files = [file for name, file in self.origins.items() if f"{name}.".startswith(f"{option}.")]
        sentence = self._explain(option, message)
        raise InputError(f"{files[0]}: {sentence}" if files and files[0] else sentence)

    def _explain(self, option: str, message: str) -> str:
        """jsonargparse's message as a sentence."""
        if denied := DENIED.search(message):
            return refusal(option or "an option", denied[1])
        reason = CLASS.search(message)
        if option and reason:
            hint = ""
            if "No module named" in reason[0]:
                hint = ". Put the folder of its file on PYTHONPATH, as in PYTHONPATH=. ..."
            return f"{option}: {reason[0]}{hint}"
        if unknown := UNKNOWN.search(message):
            known = [action.dest for action in self._actions if action.dest != "help"]
            return f"there is no option '{unknown[1]}'; {nearest(unknown[1], known)}"
        if EXTRA in message:  # as the shell makes of photos/*.jpg
            words = message.partition(EXTRA)[2].split()
            advice = "Quote a pattern, write a list as [a,b]"
            return f"unexpected '{words[0]}': an option takes one value. {advice}"
        value = " ".join(VALUE.split(message)[-1].split())
        for action in self._actions:
            kind = getattr(action, "_typehint", None)
            if action.dest == option and kind is not None:
                sentence = f"{option} is {value}; it must be {allowed(kind)}"
                text = HELP["options"].get(option, "").removesuffix(".")
                return f"{sentence} ({text})" if text else sentence
        return " ".join(message.split())

    def prepare_help(self, hidden: Collection[str]) -> None:
        """Prepare the help: groups by name, the command's own first, without the hidden options
        and without Lightning's defaults, which the recipe may replace. Set the types of the
        Trainer's numbers: of a float or an int, 1 is the int, which is one batch and not all."""
        for key, group in (self.groups or {}).items():
            group.title = key
        groups = list(self._action_groups)
        groups[-1].title = "options of this command"
        self._action_groups = groups[-1:] + groups[:-1]
        for action in self._actions:
            if action.dest in hidden or action.metavar == "CONFIG":  # a file for a whole group
                action.help = argparse.SUPPRESS
            elif action.help:
                text = LIGHTNINGS.sub(r"\1", action.help)
                action.help = HELP["options"].get(action.dest, text)
            given = getattr(action, "_typehint", None)
            kind = BOUNDED.get(action.dest, given)
            if kind == INT_FIRST:  # equal in any order, but the parser tries the types in order
                kind = INT_FIRST
            if kind is not given:
                action._typehint = kind  # type: ignore[attr-defined]

    def show_only(self, names: Collection[str]) -> None:
        """Leave all other options out of the help, and group those by few headings."""
        own = self._action_groups[0]
        self._action_groups = [own]
        titles = ("data", "model", "trainer", "run")
        groups = {title: self.add_argument_group(title) for title in titles}
        for action in self._actions:
            if action.dest not in names:
                action.help = argparse.SUPPRESS
            elif action.help:
                action.help = action.help.partition(". ")[0].removesuffix(".")
                group = groups.get(action.dest.partition(".")[0], groups["run"])
                if action not in own._group_actions:
                    group._group_actions.append(action)


def takes_only_lists(kind: Any) -> bool:
    """Whether all values of a type, but null, are lists.

    >>> takes_only_lists(list[int] | None), takes_only_lists(int | list[int])
    (True, False)
    """
    parts = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    return {get_origin(part) for part in parts if part is not type(None)} == {list}


def call(function: Callable[..., None], command: str, words: Sequence[str]) -> None:
    """Call a plain function with options.

    They are named like its parameters and the fields of parameters that are dataclasses. Parameters
    without a default are positional; a `list` takes any number of words.

    Args:
        function: Its docstring is the help.
        command: Name of the command.
        words: The words after it.
    """
    start = f"{program()} {command}"
    kinds = get_type_hints(function)
    groups: dict[str, Any] = {name: kind for name, kind in kinds.items() if is_dataclass(kind)}
    lists = [name for name, kind in kinds.items() if kind == list[str]]
    parser = Parser(
        description=textwrap.fill(str(inspect.getdoc(function)).partition("\n\n")[0]),
        epilog=HELP["examples"].get(command, "").replace("PROGRAM", start),
        formatter_class=HelpFormatter,
    )
    for kind in groups.values():
        parser.add_class_arguments(kind, as_group=False, instantiate=False)
    for name in lists:
        parser.add_argument(name, nargs="*", type=str, help="Any number of them.")
    skip: set[str | int] = {*groups, *lists}
    parser.add_function_arguments(function, as_group=False, as_positional=True, skip=skip)
    usage = f"{start} [options]"
    for action in parser._actions:
        if not action.option_strings:
            usage += f" {action.dest.upper()}"
    parser.usage = usage
    options = vars(parser.instantiate(parser.parse_args(list(words))))
    for name, kind in groups.items():
        values = {field.name: options.pop(field.name) for field in fields(kind)}
        options[name] = kind(**values)
    function(**options)
