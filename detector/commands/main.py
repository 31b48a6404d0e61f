"""The table of commands, and the program: from the words of the command line to one of them."""

import os
import sys
from collections.abc import Sequence
from pkgutil import resolve_name

from boltbox.detector.commands.command_line import Command, CommandLine, program
from boltbox.detector.commands.exit_code import one_sentence_errors

HERE, TRAINER = "boltbox.detector.commands", "boltbox.detector.training.trainer:Trainer"
COMMANDS = {
    # with a Trainer, whose options and those of the model, the data and the callbacks they share
    "fit": Command("boltbox.callbacks.guard:fit", "train a detector, or continue a training"),
    "validate": Command(f"{TRAINER}.validate", "metrics of a trained detector on the val split"),
    "test": Command(f"{TRAINER}.test", "the same on the test split"),
    "anchors": Command(
        f"{HERE}.anchors:anchors", "how well the anchors fit the labels, and better ones"
    ),
    "doctor": Command(
        f"{HERE}.doctor.command:run_doctor",
        "what is wrong with a data set; --fix DIR repairs a copy",
    ),
    "benchmark": Command(
        f"{HERE}.benchmark.command:benchmark",
        "which precision, devices and workers are fastest here",
    ),
    "evolve": Command(f"{HERE}.evolve.search:run_evolution", "search for better hyper-parameters"),
    # plain functions
    "predict": Command(f"{HERE}.predict:predict", "find objects in images, videos, streams", False),
    "import-hyp": Command(
        f"{HERE}.evolve.import_hyp:import_hyp",
        "make a file of options of YOLOv5's hyp*.yaml",
        False,
    ),
    "export": Command(
        f"{HERE}.export.command:export",
        "write a trained network as a file for other runtimes",
        False,
    ),
    "report": Command(
        f"{HERE}.report:report", "write a page on a run: curves, confusion, errors", False
    ),
    "compare": Command(
        f"{HERE}.compare:compare", "what differs between runs: options, metrics, curves", False
    ),
}


def main(args: Sequence[str] | None = None) -> None:
    """Run a command.

    Args:
        args: words of the command line, beginning with the command; default: those of this process.

    Raises:
        SystemExit: with code 2 and one sentence on standard error, after what the user can put
            right.
    """
    words = list(sys.argv[1:] if args is None else args)
    if words and words[0] in ("-h", "--help"):
        print(every_command())
        raise SystemExit(0)
    with one_sentence_errors():
        line = CommandLine(words)
        line.check(COMMANDS)
        command = COMMANDS[line.command]
        if not command.needs_trainer:
            from boltbox.detector.commands.parser import call

            call(resolve_name(command.place), line.command, line.words)
            return
        from boltbox.detector.commands.lightning_cli import DetectorCLI

        DetectorCLI(command, line)


def every_command() -> str:
    """The help of the program: its commands, each with a line."""
    lines = [f"  {name:<11} {command.help}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            f"usage: {program()} COMMAND [options]",
            "\nTrain, evaluate and use a YOLOv5 detector.\n",
            *lines,
            "\nCOMMAND --help shows the options that people use, COMMAND --help all every one.",
        ]
    )


def run() -> None:
    """The command `boltbox`. torchrun's summary has the traceback of the process that failed
    first."""
    program = main
    if "TORCHELASTIC_RUN_ID" in os.environ:
        from torch.distributed.elastic.multiprocessing.errors import record

        program = record(main)
    program()
