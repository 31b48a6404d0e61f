"""The commands with a Trainer: from the command line to the function of the command."""

import inspect
import logging
import os
import shlex
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import lightning as L
import yaml
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI

from boltbox.callbacks.checkpoints import checkpoints_of
from boltbox.callbacks.configuration import CALLBACKS
from boltbox.callbacks.recipe import in_order
from boltbox.callbacks.run_folder import RunFolder, refuse_earlier_run
from boltbox.detector.checkpoint.reader import CKPT_WORDS, Checkpoint
from boltbox.detector.checkpoint.runs import (
    has_checkpoints,
    locked,
    new_run,
    remove_empty_runs,
    results_folder,
)
from boltbox.detector.commands.ckpt_path import (
    STARTS,
    LoadedCheckpoint,
    choose_ckpt_path,
    read_ckpt_path,
)
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
from boltbox.detector.system.rank_zero import (
    is_first_process,
    print_fact,
    program,
)
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
from boltbox.detector.weights.trained import DETECTOR

TRUST_PARTS_HELP = "Import all code that a run folder or checkpoint names, not only boltbox's."
# parameters of a command's function that are no options (in the type that jsonargparse takes)
OBJECTS: set[str | int] = {"trainer", "model", "datamodule", "fit_command", "command"}
NOT_SAVED = ("run", "ckpt_path", "trust_parts", "trainer.default_root_dir")  # not in config.yaml


class TrainerParser(Parser, LightningArgumentParser):
    """The parser of the commands with a Trainer."""


class DetectorCLI(LightningCLI):
    """LightningCLI with run folders, the recipe's callbacks, and options from checkpoints.

    To construct it is to run the command: LightningCLI's constructor calls the methods from
    `add_arguments_to_parser` to `instantiate_classes` in the order in which they stand here (the
    last calls `instantiate_trainer`); then the constructor below calls the command's function.

    Args:
        definition: The command, whose function takes a Trainer.
        line: The command line. Of its attributes, `command` is the command's name; `typed`, the
            words as the user wrote them (["--help"] also for `--help all`, which sets `wants_all`);
            `words`, those for the parser; `options`, values by dotted name, also of --config files;
            `origins`, by the same names, that file; `data_class`, the class of `--data
            my.DataModule`. Its method `is_typed` says whether an option is from the line itself.

    Attributes:
        command: The command's name.
        function: The command's function.
        loaded: What --ckpt_path means, until it is used: `weights`; `options` of their run, and
            `source`, the file that these are from; `checkpoint`, the content that Lightning
            restores, None for weights without a training.
        continues_run: Whether a fit continues in its run folder.
        run_folder: The one that was typed, also as --ckpt_path; None: one is chosen.
        held: The lock of the run folder, and the trust in the classes that were typed.
        config_text: Text of config.yaml.
    """

    def __init__(self, definition: Command, line: CommandLine) -> None:
        self.function: Callable[..., Any] = resolve_name(definition.function_path)
        self.line = line
        self.command = line.command
        self.loaded: LoadedCheckpoint | None = None
        self.continues_run = False
        self.run_folder: Path | None = None
        for name in ("trainer.default_root_dir", "run"):
            if line.options.get(name) not in (None, ""):
                self.run_folder = Path(str(line.options[name]))  # from a file it may be a number
        quiet_lightning()
        start = f"{program()} {self.command}"
        examples = HELP["examples"].get(self.command, "").replace("PROGRAM", start)
        # the result of a command may be JSON on the standard output
        messages = sys.stderr if "json" in line.options else sys.stdout
        with ExitStack() as self.held:
            self.held.callback(remove_empty_runs)
            with redirect_stdout(messages):
                super().__init__(
                    model_class=Detector,
                    datamodule_class=data_module_class(line.data_class),
                    trainer_class=L.Trainer,
                    save_config_callback=None,
                    trainer_defaults=TRAINER_OPTIONS,
                    seed_everything_default=0,
                    parser_kwargs={
                        "usage": f"{start} [options]",
                        "description": f"{definition.help}.",
                        "epilog": f"{examples}\nEvery option: {start} --help all",
                        "formatter_class": HelpFormatter,
                    },
                    parser_class=TrainerParser,
                    args=line.words,
                    run=False,
                    auto_configure_optimizers=False,
                    load_from_checkpoint_support=False,
                )
            self._call_function()
            folder = self.trainer.default_root_dir
            if self.command == "fit" and has_checkpoints(Path(folder)):
                words = ["predict", "--ckpt_path", folder, "--source", "PHOTOS"]
                print_fact("next", f"{program()} {shlex.join(words)}")

    def add_arguments_to_parser(self, parser: Any) -> None:
        """Add the options of run, callbacks and command to those of Trainer, model and data."""
        parser.add_argument(
            "--run", type=str, default=None, help="Folder of the run; default: runs/COMMAND-NUMBER."
        )
        parser.add_argument("--trust_parts", type=bool, default=False, help=TRUST_PARTS_HELP)
        for group, kind in CALLBACKS.items():
            parser.add_lightning_class_args(kind, group)
        parser.add_function_arguments(self.function, skip=OBJECTS)
        # hidden in the help: options of the Trainer that the recipe leaves no choice of
        parser.prepare_help([f"trainer.{name}" for name in FIXED])
        if not self.line.data_class:
            parser.link_arguments("seed_everything", "data.seed")
        parser.link_arguments("data.names", "model.names", apply_on="instantiate")

    def parse_arguments(self, parser: Any, args: Any) -> None:
        """Parse once; the options of a checkpoint, or of the demo, come before the typed ones."""
        line = self.line
        if line.typed == ["--help"] and not line.wants_all:
            shown = list(HELP["shown"])
            if self.command in demo.COMMANDS:
                shown += HELP["shown_for_training"]
            parser.show_only(shown)
        typed_classes = paths_in(line.options)  # to type a class, or its file, is to trust it
        trust_all = str(line.options.get("trust_parts")).lower() == "true"
        self.held.enter_context(trusting(map(package_of, typed_classes), trust_all))

        self._load()
        dataset = line.options.get("data.dataset")
        defaults: dict[str, Any] = {}  # what is not typed; nested, or by dotted names
        file = ""  # where the defaults are from
        uses_demo = False
        if self.loaded:
            defaults = self.loaded.options
            file = str(self.loaded.source)
        elif not line.data_class:
            defaults = demo.defaults(self.command, dataset)
            uses_demo = bool(defaults)

        # the file of each option, for messages about it; "": it was typed, or is of the demo
        parser.origins = dict.fromkeys(flatten(defaults), file) | line.origins
        words = [f"--config={yaml.safe_dump(defaults)}", *args]  # text in place of a file
        if self.loaded and not trust_all:
            with only_from_trusted():
                self.config = parser.parse_args(words)
            # a trusted package also leads to functions, like torch.os.system
            check_classes(self.config, typed_classes, file)
        else:
            self.config = parser.parse_args(words)
        if self.loaded:
            what = "resume" if self.command == "fit" else "weights"
            print_fact(what, self.loaded.weights.path)
            print_fact("options", file)
        elif uses_demo and "apply" not in line.options:  # review --apply opens no dataset
            print_fact("data", demo.ANNOUNCEMENT)

    def _load(self) -> None:
        """Read what --ckpt_path means. It replaces the weights that STARTS, two options, name."""
        ckpt_path, run = choose_ckpt_path(self.line, self.run_folder)
        if not ckpt_path:
            return
        # `fit --ckpt_path RUN` continues in that folder, unless --run is another
        is_own = True
        if run and self.run_folder:
            is_own = run.resolve() == self.run_folder.resolve()
        if is_own:  # run is None only if neither was typed
            self.run_folder = run
        is_word = ckpt_path in CKPT_WORDS  # last, best, auto
        self.continues_run = self.command == "fit" and is_word and is_own
        self.loaded = read_ckpt_path(ckpt_path, run, self.line)
        # auto: torchrun restarts the command with its first line, which may have such weights
        if self.loaded is None or ckpt_path == "auto":
            return
        for name in STARTS:
            if self.line.is_typed(name) and self.line.options[name]:
                raise InputError(
                    f"--{name}: the weights come from --ckpt_path {ckpt_path}. Leave --{name} out"
                )

    def before_instantiate_classes(self) -> None:
        """Complete the options: by the checkpoint, the run folder and the machine."""
        options = self.config
        trainer = options.trainer
        checkpoint_path = self.checkpoint_path
        # a continued run keeps the numbers that were chosen for `auto`, also where `auto` is typed
        if self.loaded and self.continues_run:
            saved = flatten(self.loaded.options)
            for name in ("data.batch_size", "data.tile_size"):
                if name in saved and options.get(name) in (None, "auto"):
                    options[name] = saved[name]
        self.config_text = self._as_text(options)  # what follows is not saved
        if self.loaded:
            for name in STARTS:  # so that these weights are not opened: the files may be gone
                options[name] = None
        if "ckpt_path" in options:
            options.ckpt_path = str(checkpoint_path) if checkpoint_path else None

        run = self._choose_run_folder()
        trainer.default_root_dir = str(run)
        # for the processes that Lightning starts: in these new_run returns it
        os.environ["BOLTBOX_RUN"] = str(run)
        continued = {}  # content of the checkpoint
        if self.loaded and self.loaded.checkpoint and self.continues_run:
            continued = self.loaded.checkpoint
        place_loggers(trainer.logger, run, continued)

        announce_first_rank()  # so that processes that Lightning starts end when this one ends
        processes = processes_and_machines()  # of torchrun
        if processes:
            trainer.devices, trainer.num_nodes = processes
        is_exported = self.loaded is not None and isinstance(self.loaded.weights, Exported)
        adapt_trainer(options, self.command, is_exported)

    @property
    def checkpoint_path(self) -> Path | None:
        """The training checkpoint that Lightning restores."""
        return self.loaded.weights.path if self.loaded and self.loaded.checkpoint else None

    def _choose_run_folder(self) -> Path:
        """The folder that the command writes into, locked by this process."""
        command = self.command
        run = self.run_folder
        home = None  # run folder of the checkpoint that a fit continues from
        if self.continues_run and self.checkpoint_path:
            home = self.checkpoint_path.parent.parent  # of RUN/checkpoints/last.ckpt
        if command not in ("fit", "evolve"):
            run = results_folder(command, run)
        elif run is None:
            run = home or new_run(command)
        if is_first_process():
            is_known_run = run == home  # a checkpoint in it was read
            self.held.enter_context(locked(run, command, known=is_known_run))
            continues_study = command == "evolve" and any(run.glob("study.*"))
            if command in ("fit", "evolve") and not self.continues_run and not continues_study:
                refuse_earlier_run(run)
        return run

    def instantiate_classes(self) -> None:
        """Instantiate Trainer, model and data, and load what --ckpt_path means."""
        super().instantiate_classes()
        if self.loaded is None:
            return
        weights = self.loaded.weights
        checkpoint = self.loaded.checkpoint  # None: weights without a training
        if isinstance(weights, Exported):
            check_same_names(weights.names, self.model.names, weights.path)
            self.model.use_exported(weights)
        elif checkpoint is None:
            weights.fill(self.model.network, self.model.names)
        elif self.command in ("validate", "test"):
            weights.refuse_not_finite()  # its metrics would be 0
        # Lightning restores a training checkpoint, and need not read it again; the command `review`
        # reads it itself
        checkpoints = checkpoints_of(self.trainer)
        if checkpoints and checkpoint and self.command in ("fit", "validate", "test"):
            checkpoints.io.loaded = Checkpoint(weights.path, checkpoint)
        self.loaded = None  # frees the tensors that Lightning does not restore

    def instantiate_trainer(self, **kwargs: Any) -> L.Trainer:
        """The Trainer, with the callbacks in the recipe's order. Sets `fit_command` too."""
        options = self.config_init.trainer
        configuration = load_yaml(self.config_text)
        defaults = load_yaml(self._as_text(self.parser.get_defaults()))
        changed = {}
        for name, (_default, value) in differences([defaults, configuration]).items():
            changed[name] = value
        resume = ["fit", "--ckpt_path", "last", "--run", options.default_root_dir]
        if needs_trust(self.config):
            resume += ["--trust_parts", "true"]
        callbacks = in_order(
            RunFolder(self.config_text, changed, self.checkpoint_path),
            resume=f"{program()} {shlex.join(resume)}",
            with_options=[self.config_init[group] for group in self.parser.callback_keys],
            others=as_list(options.callbacks),
            bar=options.enable_progress_bar is not False,  # default: None
        )
        # -P: nothing is imported from the working folder
        words = [sys.executable, "-P", "-m", "boltbox", "fit"]
        self.fit_command = FitCommand(words, self.line.typed, configuration)
        return L.Trainer(**(vars(options) | {"callbacks": callbacks}))

    def _as_text(self, options: Any) -> str:
        """Options as the text of a config.yaml."""
        config = options.clone()
        for name in NOT_SAVED:
            config.pop(name, None)
        return self.parser.dump(config, skip_unset=False, skip_validation=True)

    def _call_function(self) -> None:
        """Call the function of the command with its options and the objects that it takes, and wait
        for the processes that Lightning has started.

        Raises:
            SystemExit: One of these failed after this one had finished.
        """
        arguments: dict[str, Any] = {}
        for name in inspect.signature(self.function).parameters:
            is_object = name in OBJECTS
            arguments[name] = getattr(self, name) if is_object else self.config_init[name]
        with explained(self.trainer, str(arguments.get("ckpt_path"))):
            self.function(**arguments)
        started = getattr(self.trainer.strategy.launcher, "procs", [])
        codes = [child.wait() for child in started if isinstance(child, subprocess.Popen)]
        if any(codes):
            killed = max(-min(codes), 0)  # a negative code is the signal that ended it
            raise SystemExit(128 + killed if killed else max(codes))


def data_module_class(path: str) -> type[L.LightningDataModule]:
    """The class of `--data my.DataModule`; default: DetectionData."""
    if not path:
        return DetectionData
    with trusting([package_of(path)]):
        return find_part({"class_path": path}, L.LightningDataModule, "data")


@contextmanager
def explained(trainer: L.Trainer, checkpoint: str) -> Iterator[None]:
    """Turn a crash whose reason is known into an InputError: a callback has it in its attribute
    `explanation` (boltbox.callbacks.Watchdog, Guard), or Lightning cannot restore the checkpoint,
    or knows the batches of an epoch only now."""
    try:
        yield
    except Exception as e:
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            explanation = getattr(callback, "explanation", None)
            if explanation:
                raise explanation from None
        for frame in traceback.extract_tb(e.__traceback__):
            if "checkpoint_connector" in frame.filename and "restore" in frame.name:
                with as_input_error(checkpoint, DETECTOR):
                    raise
        if "`val_check_interval`" in str(e):  # Lightning's sentence, without its hints
            raise InputError(str(e).partition(". ")[0].strip()) from None
        raise


def quiet_lightning() -> None:
    """Hide the hints and warnings of Lightning, and of what fetches weights."""
    warnings.filterwarnings("ignore", module="lightning")
    for name in ("lightning.pytorch", "lightning.fabric", "timm", "huggingface_hub"):
        logging.getLogger(name).setLevel(logging.ERROR)
    # a report that the user asked for
    logging.getLogger("lightning.pytorch.profilers").setLevel(logging.INFO)
