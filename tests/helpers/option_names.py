"""`python -m tests.helpers.option_names` writes detector/commands/option_names.json, the names of
all options, from the parsers of all commands."""

import contextlib
import json
from pathlib import Path

import cli
from boltbox.detector.commands import parser
from boltbox.detector.commands.command_line import COMMANDS, SHARED

FILE = Path(cli.__file__).parent / "detector/commands/option_names.json"


class Parsed(Exception):
    """Raised in place of parsing."""


@contextlib.contextmanager
def caught(found):
    """The parser that a command would parse with, into `found`."""

    def stop(self, *_, **__):
        found.append(self)
        raise Parsed

    before = parser.Parser.parse_args
    parser.Parser.parse_args = stop
    try:
        with contextlib.suppress(Parsed):
            yield
    finally:
        parser.Parser.parse_args = before


def parser_of(command):
    """The parser of a command."""
    from boltbox.detector.commands.command_line import CommandLine
    from boltbox.detector.commands.lightning_cli import run_with_trainer

    found = []
    with caught(found):
        if COMMANDS[command].needs_trainer:
            run_with_trainer(COMMANDS[command], CommandLine([command, "--help", "all"]))
        else:
            parser.call(COMMANDS[command].function, command, [])
    return found[0]


def names_of(command):
    """What may follow `--`, without groups and `.help` of classes."""
    strings = set()
    for action in parser_of(command)._actions:
        strings.update(action.option_strings)
    names = {s.removeprefix("--") for s in strings if s.startswith("--") and s[-1] != "+"}
    return {
        name
        for name in names
        if not name.endswith(".help")
        and not any(other.startswith(f"{name}.") for other in names - {f"{name}.help"})
    }


def all_names():
    """The content of the file."""
    names = {}
    with_trainer = []
    for command, row in COMMANDS.items():
        names[command] = names_of(command)
        if row.needs_trainer:
            with_trainer.append(names[command])
    shared = set.intersection(*with_trainer)
    content = {SHARED: sorted(shared)}
    for command, row in COMMANDS.items():
        content[command] = sorted(names[command] - shared if row.needs_trainer else names[command])
    return content


def text():
    return json.dumps(all_names(), indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(text())
