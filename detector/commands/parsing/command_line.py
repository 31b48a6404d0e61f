"""What can be said of a command line before anything is imported that takes seconds: its command, its options' names, help."""

import os
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from detector.commands.parsing.options import COMMAND_WORDS, check_config, is_known, typed_options, unknown_option
from detector.commands.parsing.short_help import every_command, few_options
from detector.commands.parsing.signatures import Option, options_of, typed
from detector.system.errors import InputError, nearest, one_of
from detector.system.ranges import check_ranges


class CommandLine(NamedTuple):
    """The commands, and where their options stand in the source, as `package.module:Class`.

    groups: of options that the Trainer's commands share, by their name · methods: the Trainer's commands · functions: commands
    without a Trainer · more: groups of single methods · linked: options that follow others and cannot be given · defaults:
    those that are not the classes' own: for all methods (trainer), for single ones, by option.
    """

    groups: Mapping[str, str]
    methods: Mapping[str, str]
    functions: Mapping[str, str]
    more: Mapping[str, Mapping[str, str]]
    linked: Collection[str]
    defaults: Mapping[str, Mapping[str, object]]

    def options(self, command: str) -> list[Option]:
        """Of a command, by their whole names."""
        if command in self.functions:
            return list(options_of(self.functions[command]))
        found = [
            Option("config", "", (), "Path to a configuration file in json or yaml format."),
            Option("print_config", "", (), "Print the configuration after applying all other arguments and exit."),
            Option("seed_everything", "0", (), "Seed of everything random: the order, the augmentation, the starting weights."),
            Option("run", "", (), "Folder of the run; default: runs/COMMAND-NUMBER."),
            *options_of(self.methods[command]),
        ]
        for group, place in {**self.groups, **self.more.get(command, {})}.items():
            found += [option._replace(name=f"{group}.{option.name}") for option in options_of(place)]
        changed = {f"trainer.{name}": value for name, value in self.defaults["trainer"].items()} | {
            **self.defaults.get(command, {})
        }
        return [
            o._replace(default=typed(changed[o.name])) if o.name in changed else o for o in found if o.name not in self.linked
        ]

    def names(self, command: str) -> set[str]:
        """Everything that may follow `--`."""
        own = {option.name for option in self.options(command)}
        return own | self._group_names(command) | {"help"}

    def _group_names(self, command: str) -> set[str]:
        """Those that stand for a group of options, and take a file of them."""
        if command in self.functions:
            return set()
        own = {option.name for option in self.options(command)}
        return {name.rpartition(".")[0] for name in own} - {""}

    def check(self, args: Sequence[str]) -> None:
        """Help, if it is asked for; and what is certainly wrong.

        Raises:
            InputError: a command or an option that does not exist, or a file of options that holds something else.
            SystemExit: help was given.
        """
        command, commands = args[0] if args else "", [*self.methods, *self.functions]
        if command in ("-h", "--help"):
            print(every_command(commands))
            raise SystemExit(0)
        if command.startswith("-"):
            return
        if command not in commands:
            wrong = f"there is no command '{command}'" if command else "a command is missing"
            raise InputError(f"{wrong}; {nearest(command, commands, COMMAND_WORDS)}")
        if command in self.methods and {"-h", "--help"} & set(args) and "all" not in args:
            print(few_options(command, self.options(command)))
            raise SystemExit(0)
        names, groups = self.names(command), self._group_names(command)
        choices = {option.name: option.choices for option in self.options(command)}
        for name, value in typed_options(args[1:]):
            if not is_known(name, names, groups):
                raise InputError(f"there is no option --{name}; {unknown_option(name, names - {'help'}, command)}")
            if name == "config" and command in self.methods and value:
                check_config(value, names, groups, command)
            _check_value(name, value, choices.get(name, ()))

    def check_first(self, args: Sequence[str]) -> None:
        """`check` for a process that has just begun: it leaves with a sentence and exit code 2."""
        try:
            self.check(args)
        except InputError as e:
            if os.environ.get("LOCAL_RANK", "0") == "0":
                print(f"error: {' '.join(str(e).split())}", file=sys.stderr)
            raise SystemExit(2) from None


def _check_value(option: str, value: str, choices: Sequence[str]) -> None:
    """A word or a number that is certainly not one of the option's."""
    try:
        number = float(value)
    except ValueError:
        number = None
    check_ranges({option: number})
    if choices and choices[0] != "true" and value.isidentifier() and value not in choices:
        raise InputError(f"{option} is {value}; it must be {one_of(choices)}")
