"""The program: from the words of the command line to one of them."""

import contextlib
import os
import re
import sys
from collections.abc import Sequence
from importlib.metadata import version

from boltbox.detector.commands.command_line import COMMANDS, CommandLine
from boltbox.detector.system.errors import InputError, Unreachable, in_one_line
from boltbox.detector.system.operating_system import die_with_parent
from boltbox.detector.system.rank_zero import first_to_report, printable, program

LONGEST = 2000  # characters of a message; what the user gave may be longer than anyone reads
MISCONFIGURED = "MisconfigurationException"  # Lightning's, whose import takes seconds
USERS = (InputError, Unreachable, OSError)  # errors that a user can put right
MISSING = re.compile(r"Requirement '(.+?)' not met")
# of the list of commands, each by the first command below it
HEADINGS = {"fit": "train", "doctor": "data", "predict": "use", "validate": "inspect"}


def main(args: Sequence[str] | None = None) -> None:
    """Run a command.

    Args:
        args: Words of the command line, beginning with the command; default: those of this process.

    Raises:
        SystemExit: Code 2 after an error that the user can fix, printed in one sentence on standard
            error by one of all processes: InputError, Unreachable, Lightning's
            MisconfigurationException, errors of the system (a wrong path, a full disk). Without a
            command, with the help.
    """
    die_with_parent()  # before the imports that take seconds
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed, as by >&-
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 (kept)
    with contextlib.suppress(AttributeError):  # something else instead of a text file
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        with contextlib.suppress(BrokenPipeError):  # of the help
            _start(list(sys.argv[1:] if args is None else args))
    finally:
        try:
            sys.stdout.flush()
        except OSError as e:  # Python would report it at the end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            if not isinstance(e, BrokenPipeError):  # who read it has left, as `head` does
                print(f"error: {e}", file=sys.stderr)
                raise SystemExit(2) from None


def _start(words: list[str]) -> None:
    """Run a command, or print the list of them."""
    if words and words[0] == "help":
        words = words[1:] + ["--help"]
    if not words:
        print(overview(), file=sys.stderr)
        raise SystemExit(2)
    if words[0] in ("-h", "--help"):
        print(overview())
        raise SystemExit(0)
    if words in (["--version"], ["version"]):
        print(f"boltbox {version('boltbox')}")
        return
    try:
        run_command(words)
    except Exception as e:
        missing = MISSING.search(str(e))  # of Lightning's, and what holds it
        if missing:
            e = InputError(f"{missing[1]} is not installed. pip install '{missing[1]}'")
        elif not isinstance(e, USERS) and type(e).__name__ != MISCONFIGURED:
            if "TORCHELASTIC_RUN_ID" in os.environ:  # torchrun's summary shows the first traceback
                from torch.distributed.elastic.multiprocessing.errors import get_error_handler

                get_error_handler().record_exception(e)
            raise
        if first_to_report():
            text = printable(in_one_line(e))
            if len(text) > LONGEST:
                text = f"{text[: LONGEST // 2]} ... {text[-LONGEST // 2 :]}"
            print(f"error: {text}", file=sys.stderr)
        raise SystemExit(2) from None


def run_command(words: Sequence[str]) -> None:
    """Check a command line, then import and run its command."""
    line = CommandLine(words)
    line.check()
    command = COMMANDS[line.command]
    if command.needs_trainer:
        from boltbox.detector.commands.lightning_cli import run_with_trainer

        run_with_trainer(command, line)
    else:
        from boltbox.detector.commands.parser import call

        call(command.function, line.command, line.words)


def overview() -> str:
    """The list of commands."""
    text = f"usage: {program()} COMMAND [options]\n\nTrain, evaluate and use a YOLOv5 detector.\n\n"
    for name, command in COMMANDS.items():
        if name in HEADINGS:
            text += f"{HEADINGS[name]}:\n"
        text += f"  {name:<11} {command.help}\n"
    return f"{text}\nCOMMAND --help shows the common options, COMMAND --help all every option."
