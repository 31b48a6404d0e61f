"""The commands and the names of their options, checked before anything is imported that takes
seconds; the help."""

import os
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from boltbox.detector.commands.parsing.options import (
    COMMAND_WORDS,
    check_config,
    is_known,
    typed_options,
    unknown_option,
)
from boltbox.detector.commands.parsing.short_help import every_command, few_options
from boltbox.detector.commands.parsing.signatures import Option, options_of, typed
from boltbox.detector.system.errors import InputError, in_one_line, nearest, one_of, shortened
from boltbox.detector.system.ranges import check_ranges
from boltbox.detector.system.terminal import printable

TRUST_PARTS = (
    "Import code that the run folder or checkpoint names, whatever it is; else only boltbox's"
    " (docs/parts.md)."
)


class Command(NamedTuple):
    """A command: the function that does it, as `module:function`, and its line in the help.

    needs_trainer: the function takes a Trainer, the model and the data module before its own
    options; its command has their options too. Else it is a plain function, whose parameters are
    the options.
    """

    place: str
    help: str
    needs_trainer: bool = True

    @property
    def description(self) -> str:
        """The line of the help as a sentence."""
        return f"{self.help[0].upper()}{self.help[1:]}."


class CommandLine(NamedTuple):
    """All commands and their options.

    commands: by name · groups: of options of all commands with a Trainer, by name, as
    `module:Class` · groups_of: further groups of single commands · linked: options that follow
    others and cannot be given · defaults: by option, where they are not the classes' own: for all
    commands (trainer), for single ones.
    """

    commands: Mapping[str, Command]
    groups: Mapping[str, str]
    groups_of: Mapping[str, Mapping[str, str]]
    linked: Collection[str]
    defaults: Mapping[str, Mapping[str, object]]

    def options(self, command: str) -> list[Option]:
        """Of a command, by their full names."""
        place, _, needs_trainer = self.commands[command]
        if not needs_trainer:
            return list(options_of(place))
        found = [
            Option("config", "", (), "Path to a configuration file in json or yaml format."),
            Option(
                "print_config",
                "",
                (),
                "Print the configuration after applying all other arguments and exit.",
            ),
            Option(
                "seed_everything",
                "0",
                (),
                "Seed of everything random: the order, the augmentation, the starting weights.",
            ),
            Option("run", "", (), "Folder of the run; default: runs/COMMAND-NUMBER."),
            Option("trust_parts", "false", ("true", "false"), TRUST_PARTS),
            *options_of(place),
        ]
        for group, place in {**self.groups, **self.groups_of.get(command, {})}.items():
            found += [
                option._replace(name=f"{group}.{option.name}") for option in options_of(place)
            ]
        changed = {f"trainer.{name}": value for name, value in self.defaults["trainer"].items()} | {
            **self.defaults.get(command, {})
        }
        return [
            o._replace(default=typed(changed[o.name])) if o.name in changed else o
            for o in found
            if o.name not in self.linked
        ]

    def names(self, command: str) -> set[str]:
        """Everything that may follow `--`."""
        own = {option.name for option in self.options(command)}
        return own | self._group_names(command) | {"help"}

    def _group_names(self, command: str) -> set[str]:
        """Options that stand for a whole group, and take a file of its options."""
        if not self.commands[command].needs_trainer:
            return set()
        own = {option.name for option in self.options(command)}
        return {name.rpartition(".")[0] for name in own} - {""}

    def check(self, args: Sequence[str]) -> None:
        """Print the help, if it is asked for; find errors that show without the whole parser.

        Raises:
            InputError: a command or an option that does not exist, or a file of options that holds
                something else.
            SystemExit: the help was printed.
        """
        command = args[0] if args else ""
        if command in ("-h", "--help"):
            print(every_command({name: each.help for name, each in self.commands.items()}))
            raise SystemExit(0)
        if command.startswith("-"):
            return
        if command not in self.commands:
            wrong = f"there is no command '{command}'" if command else "a command is missing"
            raise InputError(f"{wrong}; {nearest(command, self.commands, COMMAND_WORDS)}")
        known = self.commands[command]
        if known.needs_trainer and {"-h", "--help"} & set(args) and "all" not in args:
            print(few_options(command, known.description, self.options(command)))
            raise SystemExit(0)
        names, groups = self.names(command), self._group_names(command)
        choices = {option.name: option.choices for option in self.options(command)}
        for name, value in typed_options(args[1:]):
            if not is_known(name, names, groups):
                raise InputError(
                    f"there is no option --{name};"
                    f" {unknown_option(name, names - {'help'}, command)}"
                )
            if name == "config" and known.needs_trainer and value:
                check_config(value, names, groups, command)
            _check_value(name, value, choices.get(name, ()))

    def check_first(self, args: Sequence[str]) -> None:
        """`check`, before anything slow is imported: prints an error as one sentence and exits with
        code 2."""
        try:
            self.check(args)
        except InputError as e:
            if os.environ.get("LOCAL_RANK", "0") == "0":
                print(f"error: {shortened(printable(in_one_line(e)))}", file=sys.stderr)
            raise SystemExit(2) from None


def _check_value(option: str, value: str, choices: Sequence[str]) -> None:
    """Refuse a word or a number that the option cannot take, as far as that shows without the whole
    parser."""
    try:
        number = float(value)
    except ValueError:
        number = None
    check_ranges({option: number})
    if choices and choices[0] != "true" and value.isidentifier() and value not in choices:
        raise InputError(f"{option} is {value}; it must be {one_of(choices)}")
