"""boltbox: train, evaluate and use a YOLOv5 detector.

python cli.py fit --config configs/yolo.yaml
python cli.py fit --config configs/yolo.yaml --data.dataset my/data.yaml --model.weights yolov5n.pt
python cli.py fit --ckpt_path last
python cli.py validate --ckpt_path last
python cli.py predict --ckpt_path last --data.source my/images
python cli.py predict --ckpt_path last --data.source my/video.mp4 --save.csv true
python cli.py anchors --data.dataset my/data.yaml --data.image_size 640
python cli.py doctor --data.dataset my/data.yaml --data.image_size 640
python cli.py import-hyp my_hyp.yaml
python cli.py benchmark --data.dataset my/data.yaml --data.image_size 640
python cli.py evolve --config configs/yolo.yaml --data.dataset my/data.yaml
python cli.py export --ckpt_path best --format onnx
python cli.py report runs/fit-1
python cli.py compare runs/fit-1 runs/fit-2
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from detector.commands.parsing.command_line import Command, CommandLine
from detector.commands.parsing.table import DEFAULTS, GROUPS, GROUPS_OF, LINKS
from detector.system.garbage import lasting_imports

TRAINER = "lightning.pytorch.trainer.trainer:Trainer"
COMMANDS = {
    # with a Trainer, whose options and those of the model, the data and the callbacks they share
    "fit": Command("detector.training.roll_back:fit", "train a detector, or continue a training"),
    "validate": Command(f"{TRAINER}.validate", "figures of a trained detector on the val split"),
    "test": Command(f"{TRAINER}.test", "the same on the test split"),
    "predict": Command(f"{TRAINER}.predict", "find objects in images, videos, streams"),
    "anchors": Command("detector.commands.anchors:anchors", "how well the anchors fit the labels, and better ones"),
    "doctor": Command("detector.commands.doctor.command:run_doctor", "what is wrong with a data set; --fix DIR repairs a copy"),
    "benchmark": Command(
        "detector.commands.benchmark.command:benchmark", "which precision, devices and workers are fastest here"
    ),
    "evolve": Command("detector.commands.evolve.command:run_evolution", "search for better hyper-parameters"),
    # plain functions
    "import-hyp": Command(
        "detector.commands.evolve.import_hyp:import_hyp", "make a file of options of YOLOv5's hyp*.yaml", False
    ),
    "export": Command("detector.commands.export.command:export", "write a trained network as a file for other runtimes", False),
    "report": Command("detector.commands.report:report", "a run's page anew: curves, confusion, errors", False),
    "compare": Command("detector.commands.compare:compare", "what differs between runs: options, figures, curves", False),
}
SLOW_IMPORTS = ("torch.distributed.elastic.multiprocessing.errors", "callbacks.recipe", "detector.commands.lightning_cli")
LINE = CommandLine(COMMANDS, GROUPS, GROUPS_OF, LINKS, DEFAULTS)


def main(args: Sequence[str] | None = None) -> None:
    """Run a command.

    Args:
        args: words of the command line, beginning with the command; default: those of this process.

    Raises:
        SystemExit: with code 2 and one sentence on standard error, after what the user can put right.
    """
    words = list(sys.argv[1:] if args is None else args)
    LINE.check_first(words)  # help and typos need not wait for the imports that follow: they take seconds

    from callbacks.recipe import callbacks_of_command
    from detector.commands.exit_code import one_sentence_errors
    from detector.commands.lightning_cli import DetectorCLI, quiet_lightning
    from detector.commands.parsing.parser import call
    from detector.commands.parsing.signatures import load
    from detector.distributed.process_group import die_with_parent
    from detector.loggers.placement import wandb_offline_without_key

    quiet_lightning()
    die_with_parent()
    wandb_offline_without_key()
    command = COMMANDS.get(words[0])
    with one_sentence_errors():
        if command and not command.needs_trainer:
            call(load(command.place), words[0], words[1:])
        else:
            DetectorCLI(LINE, words, Path(__file__).resolve(), callbacks_of_command)


def run() -> None:
    """The command `boltbox`. torchrun's summary has the traceback of the process that failed first."""
    LINE.check_first(sys.argv[1:])
    with lasting_imports():
        errors, *_ = map(import_module, SLOW_IMPORTS)
    errors.record(main)()


if __name__ == "__main__":
    run()
