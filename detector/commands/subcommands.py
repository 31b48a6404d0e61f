"""LightningCLI with the commands of a table, whose functions take a Trainer, a model and a data
module."""

from typing import Any

from lightning.pytorch.cli import LightningArgumentParser, LightningCLI

from boltbox.detector.commands.parsing.command_line import CommandLine
from boltbox.detector.commands.parsing.program import program
from boltbox.detector.commands.parsing.signatures import OF_THE_TRAINER, load, options_of
from boltbox.detector.distributed.process_group import end_together

LIGHTNING = "lightning."


class SubcommandCLI(LightningCLI):
    """LightningCLI has the methods of a Trainer as commands; here they are functions, and only the
    one that is asked for is imported and gets its options.

    Args:
        line: all commands and their groups of options.
        args: words of the command line, beginning with the command.
        options: of LightningCLI.
    """

    def __init__(self, line: CommandLine, args: list[str], **options: Any) -> None:
        self.line = line
        commands = [name for name, command in line.commands.items() if command.needs_trainer]
        asked = next((word for word in args if word in commands), None)
        self._commands = {name: asked in (None, name) for name in commands}
        super().__init__(args=args, **options)

    def _add_subcommands(self, parser: LightningArgumentParser, **kwargs: Any) -> None:
        self._subcommand_parsers: dict[str, LightningArgumentParser] = {}
        subcommands = parser.add_subcommands()
        for name, is_asked in self._commands.items():
            own = self._parser_of(name) if is_asked else self.init_parser()
            self._subcommand_parsers[name] = own
            subcommands.add_subcommand(name, own, help=self.line.commands[name].help)

    def _parser_of(self, command: str) -> LightningArgumentParser:
        """With all options of a command. A bool that is False unless given is a flag: --json, not
        --json true."""
        place = self.line.commands[command].place
        own = (
            []
            if place.startswith(LIGHTNING)
            else [o for o in options_of(place) if "." not in o.name]
        )
        flags = {
            o.name: o.help for o in own if o.choices == ("true", "false") and o.default == "false"
        }
        parser = self.init_parser(description=self.line.commands[command].description)
        self._add_arguments(parser)
        added = parser.add_function_arguments(load(place), skip={*OF_THE_TRAINER, *flags})
        parser.set_defaults(dict(self.line.defaults.get(command, {})))
        parser.usage = f"{program()} {command} [options]"
        for group, callback in self.line.groups_of.get(command, {}).items():
            parser.add_lightning_class_args(load(callback), group)
        for flag, text in flags.items():
            parser.add_argument(f"--{flag}", action="store_true", help=text)
        self._subcommand_method_arguments[command] = [*added, *flags]
        return parser

    def _run_subcommand(self, subcommand: str) -> None:
        with end_together(self.trainer):
            load(self.line.commands[subcommand].place)(
                self.trainer, **self._prepare_subcommand_kwargs(subcommand)
            )
