"""The commands with a Trainer: from the command line to the function of the command.

`run_with_trainer` does it. The functions below it stand in the order in which it calls them, and
pass on three things:

line: The command line before the parser sees it.
    line.command: the command's name.
    line.typed: the words as the user wrote them.
    line.words: the same for the parser, with the text of each --config file in its place.
    line.options: values by dotted name, also of --config files.
    line.origins: by the same names the --config file of each, or "" for what was typed.
    line.data_class: the class of `--data my.DataModule`, or "".
    line.wants_short_help: whether --help was typed, without `all`.
start: What the command starts from, by --ckpt_path and --run.
    start.weights: a trained network or an exported file; None for a fresh start.
    start.options: those of the run that the weights are from, in groups, with the batch size and
        the tile size that it chose; empty without weights.
    start.source: the file of these options.
    start.checkpoint: path and content of the training checkpoint that Lightning restores; None for
        weights without a training.
    start.run_folder: None if a new one is to be chosen.
    start.continues_run: whether a fit continues in that folder. It may be so without
        start.weights: --ckpt_path auto, before the first checkpoint.
options: The parsed options, in groups like those of a config.yaml. `options.trainer.devices` and
    `options["trainer.devices"]` are the same.
"""

import inspect
import logging
import os
import shlex
import subprocess
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import lightning as L
import yaml
from jsonargparse import ActionConfigFile, Namespace
from lightning.pytorch.cli import LightningArgumentParser
from lightning.pytorch.utilities.exceptions import SIGTERMException

from boltbox.callbacks.checkpoints import checkpoints_of
from boltbox.callbacks.configuration import CALLBACKS
from boltbox.callbacks.recipe import in_order
from boltbox.callbacks.run_folder import RunFolder, refuse_earlier_run
from boltbox.detector.checkpoint.reader import Checkpoint
from boltbox.detector.checkpoint.runs import (
    has_checkpoints,
    locked,
    new_run,
    remove_empty_runs,
    results_folder,
)
from boltbox.detector.commands.ckpt_path import WEIGHT_OPTIONS, Start, find_start
from boltbox.detector.commands.command_line import Command, CommandLine
from boltbox.detector.commands.parser import HELP, HelpFormatter, Parser
from boltbox.detector.commands.training_process import FitCommand
from boltbox.detector.data import demo
from boltbox.detector.data.class_names import check_same_names
from boltbox.detector.data.datamodule import DetectionData
from boltbox.detector.distributed import fsdp2  # noqa: F401 - a strategy by name
from boltbox.detector.distributed.process_group import processes_and_machines
from boltbox.detector.inference.exported import Exported
from boltbox.detector.loggers.placement import place_loggers
from boltbox.detector.model.parts import find_part
from boltbox.detector.system.configuration import differences, flatten
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.operating_system import announce_first_rank
from boltbox.detector.system.ranges import Seed
from boltbox.detector.system.rank_zero import is_first_process, print_fact, program
from boltbox.detector.system.text_file import load_yaml
from boltbox.detector.system.torch_file import as_input_error
from boltbox.detector.system.trusted import (
    check_classes,
    needs_trust,
    only_from_trusted,
    package_of,
    paths_in,
    trusting,
)
from boltbox.detector.training.module import Detector
from boltbox.detector.training.trainer_options import (
    FIXED,
    TRAINER_OPTIONS,
    adapt_trainer,
    as_list,
)
from boltbox.detector.weights.trained import DETECTOR, Trained

CONFIG_HELP = "File of options, such as configs/yolo.yaml; also -c."
SEED_HELP = "Seed of all random numbers."
RUN_HELP = "Folder of the run; default: runs/COMMAND-NUMBER."
TRUST_PARTS_HELP = "Import all code that a run folder or checkpoint names, not only boltbox's."
# parameters of a command's function that are no options (in the type that jsonargparse takes)
OBJECTS: set[str | int] = {"trainer", "model", "datamodule", "fit_command", "command"}
NOT_SAVED = ("run", "ckpt_path", "trust_parts", "trainer.default_root_dir")  # not in config.yaml


class TrainerParser(Parser, LightningArgumentParser):
    """The parser of the commands with a Trainer."""


def run_with_trainer(definition: Command, line: CommandLine) -> None:
    """Parse a command line, make the Trainer, the model and the data, and call the function of the
    command with them.

    Args:
        definition: The command: its function, and its line in the help.
        line: The command line.

    Raises:
        SystemExit: A process that Lightning has started failed after this one had finished.
    """
    command = line.command
    function = definition.function
    quiet_lightning()
    # the result of a command may be JSON on the standard output
    messages = sys.stderr if "json" in line.options else sys.stdout
    # what ends with the command: the lock of its run folder, and the trust in classes
    with ExitStack() as held:
        held.callback(remove_empty_runs)  # last of all, after the lock is gone
        with redirect_stdout(messages):  # the command's function takes care of its own output
            parser = make_parser(definition, line)
            options, start = parse(parser, line, held)
            L.seed_everything(options.seed_everything, workers=True)
            saved = saved_options(parser, options)  # without what `complete` sets
            run = enter_run_folder(command, start, held)
            complete(options, command, start, run)
            # model, data and callbacks instead of their options; those of the Trainer stay options
            instances = parser.instantiate(options)
            trainer = make_trainer(parser, options, instances, saved, start)
            if start.weights:
                use_weights(start.weights, command, trainer, instances.model)
        del start  # frees the weights, unless `use_weights` left them for Lightning
        objects = {
            "trainer": trainer,
            "model": instances.model,
            "datamodule": instances.data,
            # of commands that start trainings as processes
            "fit_command": FitCommand(line.typed, line.options, saved),
            "command": command,
        }
        arguments = {}
        for name in inspect.signature(function).parameters:
            arguments[name] = objects[name] if name in OBJECTS else instances[name]
        with explained(trainer, str(options.get("ckpt_path"))):
            function(**arguments)
        wait_for_processes(trainer)
        if command == "fit" and has_checkpoints(run):
            predict = ["predict", "--ckpt_path", str(run), "--source", "PHOTOS"]
            print_fact("next", f"{program()} {shlex.join(predict)}")


def quiet_lightning() -> None:
    """Hide the hints and warnings of Lightning, and of what fetches weights."""
    warnings.filterwarnings("ignore", module="lightning")
    for name in ("lightning.pytorch", "lightning.fabric", "timm", "huggingface_hub"):
        logging.getLogger(name).setLevel(logging.ERROR)
    # a report that the user asked for
    logging.getLogger("lightning.pytorch.profilers").setLevel(logging.INFO)


def make_parser(definition: Command, line: CommandLine) -> TrainerParser:
    """The parser of a command: as options it has the arguments of Trainer, model, data module and
    callbacks, in a group for each, and the parameters of the command's function."""
    prefix = f"{program()} {line.command}"
    examples = HELP["examples"].get(line.command, "").replace("PROGRAM", prefix)
    parser = TrainerParser(
        usage=f"{prefix} [options]",
        description=f"{definition.help}.",
        epilog=f"{examples}\nEvery option: {prefix} --help all",
        formatter_class=HelpFormatter,
        dump_header=[f"lightning.pytorch=={L.__version__}"],  # first line of --print_config
    )
    parser.add_argument("-c", "--config", action=ActionConfigFile, help=CONFIG_HELP)
    parser.add_argument("--seed_everything", type=Seed, default=0, help=SEED_HELP)
    parser.add_lightning_class_args(L.Trainer, "trainer")
    parser.add_lightning_class_args(Detector, "model")
    parser.add_lightning_class_args(data_module_class(line.data_class), "data")
    parser.set_defaults({f"trainer.{name}": value for name, value in TRAINER_OPTIONS.items()})
    parser.add_argument("--run", type=str, default=None, help=RUN_HELP)
    parser.add_argument("--trust_parts", type=bool, default=False, help=TRUST_PARTS_HELP)
    for group, kind in CALLBACKS.items():
        parser.add_lightning_class_args(kind, group)
    parser.add_function_arguments(definition.function, skip=OBJECTS)
    # hidden in the help: options of the Trainer that a training of boltbox leaves no choice of
    parser.prepare_help([f"trainer.{name}" for name in FIXED])
    if not line.data_class:
        parser.link_arguments("seed_everything", "data.seed")
    parser.link_arguments("data.names", "model.names", apply_on="instantiate")
    if line.wants_short_help:
        shown = list(HELP["shown"])
        if line.command in demo.COMMANDS:  # those that train
            shown += HELP["shown_for_training"]
        parser.show_only(shown)
    return parser


def data_module_class(path: str) -> type[L.LightningDataModule]:
    """The class of `--data my.DataModule`; default: DetectionData."""
    if not path:
        return DetectionData
    with trusting([package_of(path)]):
        return find_part({"class_path": path}, L.LightningDataModule, "data")


def parse(parser: TrainerParser, line: CommandLine, held: ExitStack) -> tuple[Namespace, Start]:
    """Read what --ckpt_path names, and parse the line. Options that are not typed are those of that
    checkpoint's run, or of the demo.

    Args:
        parser: Of the command.
        line: The command line.
        held: Gets the trust in the classes that were typed.

    Returns:
        The options, and what the command starts from.
    """
    # to type a class, or a --config file that names it, is to trust it
    typed_classes = paths_in(line.options)
    trust_all = str(line.options.get("trust_parts")).lower() == "true"
    held.enter_context(trusting(map(package_of, typed_classes), trust_all))
    start = find_start(line)
    demo_options: dict[str, Any] = {}
    if not start.weights and not line.data_class:
        demo_options = demo.defaults(line.command, line.options.get("data.dataset"))
    # values of options that are not typed; one of the two is empty, the demo's has dotted names
    defaults = start.options | demo_options
    # for error messages, the file of each option; "": it was typed, or is of the demo
    parser.origins = dict.fromkeys(flatten(defaults), start.source) | line.origins
    words = [f"--config={yaml.safe_dump(defaults)}", *line.words]  # text in place of a file
    if start.weights and not trust_all:
        with only_from_trusted():  # somebody else may have made the file of `defaults`
            options = parser.parse_args(words)
        # a trusted package also leads to functions, like torch.os.system
        check_classes(options, typed_classes, start.source)
    else:
        options = parser.parse_args(words)
    # a continued run keeps the batch size and the tile size that it chose when it began, also if
    # `auto` or null is typed now
    if start.weights and start.continues_run:
        chosen = flatten(start.options)
        for name in ("data.batch_size", "data.tile_size"):
            if name in chosen and options.get(name) in (None, "auto"):
                options[name] = chosen[name]

    if start.weights:
        what = "resume" if line.command == "fit" else "weights"
        print_fact(what, start.weights.path)
        print_fact("options", start.source)
    elif demo_options and "apply" not in line.options:  # review --apply opens no dataset
        print_fact("data", demo.ANNOUNCEMENT)
    return options, start


def saved_options(parser: TrainerParser, options: Namespace) -> dict[str, Any]:
    """Options as in a config.yaml: in plain types, without those that are not saved."""
    config = options.clone()
    for name in NOT_SAVED:
        config.pop(name, None)
    return load_yaml(parser.dump(config, skip_unset=False, skip_validation=True))


def enter_run_folder(command: str, start: Start, held: ExitStack) -> Path:
    """The folder that the command writes into. The first process makes it if it is new, and locks
    it until the command ends (`held`).

    Raises:
        InputError: Another process has it, or it holds something else, or an earlier run.
    """
    has_run = command in ("fit", "evolve")  # the folder of other commands is for results alone
    run = start.run_folder
    if not has_run:
        run = results_folder(command, run)
    elif run is None:
        run = new_run(command)  # processes that Lightning starts get the same: see `complete`
    if is_first_process():
        # `locked` makes a new folder. It refuses one without a machine.json (it may not be a run),
        # unless the command continues from a checkpoint in it
        is_known_run = start.continues_run and bool(start.weights)
        held.enter_context(locked(run, command, known=is_known_run))
        continues_study = command == "evolve" and any(run.glob("study.*"))
        if has_run and not start.continues_run and not continues_study:
            refuse_earlier_run(run)
    return run


def complete(options: Namespace, command: str, start: Start, run: Path) -> None:
    """Set the options that depend on the checkpoint, the run folder and the machine.

    Raises:
        InputError: Options of the Trainer do not work together, or not on this machine.
    """
    trainer = options.trainer
    if start.weights:
        for name in WEIGHT_OPTIONS:  # the files that they name are not opened, and may be gone
            options[name] = None
    if "ckpt_path" in options:  # an option of this command
        options.ckpt_path = str(start.checkpoint.path) if start.checkpoint else None
    trainer.default_root_dir = str(run)
    # new_run returns it in the processes that Lightning starts
    os.environ["BOLTBOX_RUN"] = str(run)
    continued = {}  # content of the checkpoint
    if start.checkpoint and start.continues_run:
        continued = start.checkpoint.content
    place_loggers(trainer.logger, run, continued)
    announce_first_rank()  # so that processes that Lightning starts end when this one ends
    processes = processes_and_machines()  # of torchrun or srun
    if processes:
        trainer.devices, trainer.num_nodes = processes
        os.environ["SLURM_NTASKS_PER_NODE"] = str(trainer.devices)  # Lightning insists on it
        os.environ.pop("SLURM_JOB_NAME", None)  # in a job `interactive`, Lightning ignores srun
    else:
        os.environ.pop("SLURM_NTASKS", None)  # else Lightning, in a Slurm job, starts no processes
    adapt_trainer(options, command, exported=isinstance(start.weights, Exported))


def make_trainer(
    parser: TrainerParser,
    options: Namespace,
    instances: Namespace,
    saved: dict[str, Any],
    start: Start,
) -> L.Trainer:
    """The Trainer, with all callbacks in the order that they need.

    Args:
        parser: Of the command.
        options: As parsed, and completed.
        instances: The same with objects instead of their options: the callbacks.
        saved: The options of config.yaml.
        start: What the command starts from.
    """
    trainer_options = vars(instances.trainer)
    run = trainer_options["default_root_dir"]
    defaults = saved_options(parser, parser.get_defaults())
    options_of_run = flatten(saved)
    changed = {}
    for name in differences([defaults, saved]):
        # without names of groups: `differences` also gives trainer.logger, which is null by default
        if name in options_of_run:
            changed[name] = options_of_run[name]
    resume = ["fit", "--ckpt_path", "last", "--run", run]
    if needs_trust(options):
        resume += ["--trust_parts", "true"]
    checkpoint_path = start.checkpoint.path if start.checkpoint else None
    callbacks = in_order(
        RunFolder(saved, changed, checkpoint_path),  # writes config.yaml and changed.yaml
        resume=f"{program()} {shlex.join(resume)}",  # printed when the training is stopped
        with_options=[instances[group] for group in CALLBACKS],
        others=as_list(trainer_options["callbacks"]),
        bar=trainer_options["enable_progress_bar"] is not False,  # default: None
    )
    return L.Trainer(**(trainer_options | {"callbacks": callbacks}))


def use_weights(
    weights: Trained | Exported, command: str, trainer: L.Trainer, model: Detector
) -> None:
    """Put the weights of --ckpt_path into the model, or leave that to Lightning.

    Raises:
        InputError: They do not fit the model.
    """
    if isinstance(weights, Exported):
        check_same_names(weights.names, model.names, weights.path)
        model.use_exported(weights)
        return
    if weights.training_content is None:  # weights without a training
        weights.fill(model.network, model.names)
        return
    if command == "review":  # it reads the file itself
        return
    if command != "fit":
        weights.refuse_not_finite()  # metrics of NaN would be 0
    checkpoints = checkpoints_of(trainer)
    if checkpoints:  # Lightning restores this one, and need not read it again
        checkpoints.io.loaded = Checkpoint(weights.path, weights.training_content)


@contextmanager
def explained(trainer: L.Trainer, checkpoint_path: str) -> Iterator[None]:
    """Turn a crash whose reason is known into an InputError: a callback has it in its attribute
    `explanation` (boltbox.callbacks.Watchdog, Guard), Lightning could not restore the checkpoint,
    or val_check_interval is longer than the epoch. SIGTERM gets its exit code, 143."""
    try:
        yield
    except SIGTERMException:  # in an evaluation; unhandled it would end with exit code 0
        raise SystemExit(143) from None
    except Exception as e:
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            explanation = getattr(callback, "explanation", None)
            if explanation:
                raise explanation from None
        for frame in traceback.extract_tb(e.__traceback__):
            if "checkpoint_connector" in frame.filename and "restore" in frame.name:
                with as_input_error(checkpoint_path, DETECTOR):
                    raise
        if "`val_check_interval`" in str(e):  # Lightning's sentence, without its hints
            raise InputError(str(e).partition(". ")[0].strip()) from None
        raise


def wait_for_processes(trainer: L.Trainer) -> None:
    """Wait for the processes that Lightning has started.

    Raises:
        SystemExit: One of these failed after this one had finished.
    """
    started = getattr(trainer.strategy.launcher, "procs", [])
    codes = [child.wait() for child in started if isinstance(child, subprocess.Popen)]
    if any(codes):
        killed = max(-min(codes), 0)  # a negative code is the signal that ended it
        raise SystemExit(128 + killed if killed else max(codes))
