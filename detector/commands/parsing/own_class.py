"""What is wrong with a class or function of the user's own, given by its import path, in a
sentence."""

import re
from importlib import import_module

from boltbox.detector.system.errors import nearest

_PROBLEM = re.compile(
    r'Parser key "([\w.]+)": Type \S+ \S+ expects a function or a callable class: (.*)'
)
_ARGUMENT = re.compile(
    r'Parser key "([\w.]+)": Parser key "([\w.]+)": Expected an? (.*)\. Got value: (.*)'
)
_UNKNOWN = re.compile(r"Parser key \"([\w.]+)\": Option '([\w.]+)' is not accepted")


def own_class_problem(message: str) -> str | None:
    """The parser's message on an option that takes callables, or on arguments within `init_args`;
    None for any other."""
    text = " ".join(message.split())
    if argument := _ARGUMENT.fullmatch(text):
        option, name, kind, value = argument.groups()
        return (
            f"{option}: {name} is {value}; it must be of the type"
            f" {kind.removeprefix('<class ').removesuffix('>')}"
        )
    if unknown := _UNKNOWN.fullmatch(text):
        return f"{unknown[1]}: the class takes no argument '{unknown[2]}'"
    found = _PROBLEM.fullmatch(text)
    if not found:
        return None
    option, problem = found[1], found[2].partition(". Got value")[0]
    if missing := re.match(r"module '([\w.]+)' has no attribute '(\w+)'", problem):
        names = [name for name, value in vars(import_module(missing[1])).items() if callable(value)]
        return f"{option}: {missing[1]} has no '{missing[2]}'; {nearest(missing[2], names)}"
    if problem.startswith("No module named"):
        return (
            f"{option}: {problem}; the folder of its file must be on PYTHONPATH, as in PYTHONPATH=."
            " python cli.py fit ..."
        )
    if other := re.match(r"Expected '([\w.]+)' to be a class", problem):
        return f"{option}: objects of {other[1]} cannot be called"
    return f"{option}: {problem}"
