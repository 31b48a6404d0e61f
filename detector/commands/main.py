"""The table of commands, and the program: from the words of the command line to one of them."""

import contextlib
import os
import re
import sys
from collections.abc import Sequence
from importlib.metadata import version

from boltbox.detector.commands.command_line import Command, CommandLine
from boltbox.detector.system.errors import InputError, Unreachable, in_one_line
from boltbox.detector.system.operating_system import die_with_parent
from boltbox.detector.system.rank_zero import first_to_report, printable, program

LONGEST = 2000  # characters of a message; what the user gave may be longer than anyone reads
MISCONFIGURED = "MisconfigurationException"  # Lightning's, whose import takes seconds
USERS = (InputError, Unreachable, OSError)  # errors that a user can put right
MISSING = re.compile(r"Requirement '(.+?)' not met")
HERE = "boltbox.detector.commands"
# of the list of commands, each by the first command below it
HEADINGS = {"fit": "train", "doctor": "data", "predict": "use", "validate": "inspect"}
COMMANDS = {
    # without False: with a Trainer, whose options and those of the model, the data and the
    # callbacks they share; with False: plain functions
    "fit": Command(f"{HERE}.fit:fit", "Train a detector, or resume a run"),
    "evolve": Command(f"{HERE}.evolve.search:run_evolution", "Search for better hyper-parameters"),
    "anchors": Command(
        f"{HERE}.anchors:anchors", "Measure how well anchors fit the labels, and fit them"
    ),
    "benchmark": Command(
        f"{HERE}.benchmark.command:benchmark",
        "Find the fastest precision and number of workers of this machine",
    ),
    "doctor": Command(
        f"{HERE}.doctor.command:run_doctor",
        "Find faults of a dataset; --fix DIR writes a repaired copy",
    ),
    "review": Command(
        f"{HERE}.review.command:run_review",
        "Find labels that are wrong; --apply FILE writes a repaired copy",
    ),
    "convert": Command(
        f"{HERE}.convert:convert",
        "Make a data.yaml from labels of CVAT, labelme, VIA",
        False,
    ),
    "import-hyp": Command(
        f"{HERE}.evolve.import_hyp:import_hyp",
        "Make a file of options from a YOLOv5 hyp*.yaml",
        False,
    ),
    "predict": Command(
        f"{HERE}.predict:predict", "Detect objects in images, videos and streams", False
    ),
    "export": Command(
        f"{HERE}.export.command:export", "Convert a checkpoint for other runtimes", False
    ),
    "strip": Command(f"{HERE}.strip:strip", "Shrink a checkpoint for inference", False),
    "validate": Command(f"{HERE}.validate:validate", "Evaluate on the val split"),
    "test": Command(f"{HERE}.validate:validate", "Evaluate on the test split"),
    "report": Command(
        f"{HERE}.report:report",
        "Write a page on a run: curves, confusion, errors",
        False,
    ),
    "compare": Command(f"{HERE}.compare:compare", "Compare runs: options, metrics, curves", False),
    "env": Command(
        f"{HERE}.env:env", "Print versions and devices, for a report of a problem", False
    ),
}


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
    line.check(COMMANDS)
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
