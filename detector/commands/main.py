"""The table of commands, and the program: from the words of the command line to one of them."""

import sys
from collections.abc import Sequence
from importlib import import_module

from boltbox.detector.commands.parsing.command_line import Command, CommandLine
from boltbox.detector.commands.parsing.table import DEFAULTS, GROUPS, GROUPS_OF, LINKS
from boltbox.detector.system.garbage import lasting_imports

TRAINER = "lightning.pytorch.trainer.trainer:Trainer"
COMMANDS = {
    # with a Trainer, whose options and those of the model, the data and the callbacks they share
    "fit": Command("boltbox.callbacks.guard:fit", "train a detector, or continue a training"),
    "validate": Command(f"{TRAINER}.validate", "figures of a trained detector on the val split"),
    "test": Command(f"{TRAINER}.test", "the same on the test split"),
    "predict": Command(f"{TRAINER}.predict", "find objects in images, videos, streams"),
    "anchors": Command(
        "boltbox.detector.commands.anchors:anchors",
        "how well the anchors fit the labels, and better ones",
    ),
    "doctor": Command(
        "boltbox.detector.commands.doctor.command:run_doctor",
        "what is wrong with a data set; --fix DIR repairs a copy",
    ),
    "benchmark": Command(
        "boltbox.detector.commands.benchmark.command:benchmark",
        "which precision, devices and workers are fastest here",
    ),
    "evolve": Command(
        "boltbox.detector.commands.evolve.command:run_evolution",
        "search for better hyper-parameters",
    ),
    # plain functions
    "import-hyp": Command(
        "boltbox.detector.commands.evolve.import_hyp:import_hyp",
        "make a file of options of YOLOv5's hyp*.yaml",
        False,
    ),
    "export": Command(
        "boltbox.detector.commands.export.command:export",
        "write a trained network as a file for other runtimes",
        False,
    ),
    "report": Command(
        "boltbox.detector.commands.report:report",
        "a page on a run: curves, confusion, errors",
        False,
    ),
    "compare": Command(
        "boltbox.detector.commands.compare:compare",
        "what differs between runs: options, metrics, curves",
        False,
    ),
}
SLOW_IMPORTS = (
    "torch.distributed.elastic.multiprocessing.errors",
    "boltbox.callbacks.recipe",
    "boltbox.detector.commands.lightning_cli",
)
LINE = CommandLine(COMMANDS, GROUPS, GROUPS_OF, LINKS, DEFAULTS)


def main(args: Sequence[str] | None = None) -> None:
    """Run a command.

    Args:
        args: words of the command line, beginning with the command; default: those of this process.

    Raises:
        SystemExit: with code 2 and one sentence on standard error, after what the user can put
            right.
    """
    words = list(sys.argv[1:] if args is None else args)
    # help and typos need not wait for the imports that follow: they take seconds
    LINE.check_first(words)

    from boltbox.callbacks.recipe import callbacks_of_command
    from boltbox.detector.commands.exit_code import one_sentence_errors
    from boltbox.detector.commands.lightning_cli import DetectorCLI, quiet_lightning
    from boltbox.detector.commands.parsing.parser import call
    from boltbox.detector.commands.parsing.signatures import load
    from boltbox.detector.distributed.process_group import die_with_parent
    from boltbox.detector.loggers.placement import wandb_offline_without_key

    quiet_lightning()
    die_with_parent()
    wandb_offline_without_key()
    command = COMMANDS.get(words[0])
    with one_sentence_errors():
        if command and not command.needs_trainer:
            call(load(command.place), words[0], words[1:])
        else:
            DetectorCLI(LINE, words, callbacks_of_command)


def run() -> None:
    """The command `boltbox`. torchrun's summary has the traceback of the process that failed
    first."""
    LINE.check_first(sys.argv[1:])
    with lasting_imports():
        errors, *_ = map(import_module, SLOW_IMPORTS)
    errors.record(main)()
