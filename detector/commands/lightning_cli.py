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
from os.path import isdir
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import lightning as L
import yaml
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI

from boltbox.callbacks.checkpoints import checkpoints_of
from boltbox.callbacks.configuration import CALLBACKS
from boltbox.callbacks.recipe import in_order
from boltbox.callbacks.run_folder import RunFolder, refuse_another
from boltbox.detector.checkpoint.reader import WORDS, Checkpoint, newest_checkpoint
from boltbox.detector.checkpoint.runs import (
    has_checkpoints,
    locked,
    new_run,
    remove_all_empty,
    results_folder,
)
from boltbox.detector.commands.ckpt_path import CkptPath, read_ckpt_path
from boltbox.detector.commands.command_line import WITHOUT_VALUE, Command, CommandLine
from boltbox.detector.commands.parser import HELP, HelpFormatter, Parser
from boltbox.detector.commands.training_process import FitCommand
from boltbox.detector.data import demo
from boltbox.detector.data.class_names import check_names
from boltbox.detector.data.datamodule import DetectionData
from boltbox.detector.distributed import fsdp2  # noqa: F401 - a strategy by name
from boltbox.detector.distributed.process_group import is_restart, processes_and_machines
from boltbox.detector.loggers.placement import place_loggers
from boltbox.detector.model.parts import find_part
from boltbox.detector.system.configuration import differences, flatten
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.parent import announce_first_rank
from boltbox.detector.system.rank_zero import (
    is_first_process,
    print_fact,
    program,
)
from boltbox.detector.system.text_file import load_yaml
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
    ONLY,
    TRAINER_OPTIONS,
    adapt_trainer,
    as_list,
)
from boltbox.detector.weights.torch_file import as_input_error
from boltbox.detector.weights.trained import DETECTOR

TRUST_PARTS = "Import all code that a run folder or checkpoint names, not only boltbox's."
STARTS = ("model.start.weights", "model.start.backbone_weights")  # weights to start from
# parameters of a command's function that are no options
OBJECTS: set[str | int] = {"trainer", "model", "datamodule", "fit_command", "command"}
NOT_SAVED = ("run", "ckpt_path", "trust_parts", "trainer.default_root_dir")  # in config.yaml


class TrainerParser(Parser, LightningArgumentParser):
    """The parser of the commands with a Trainer."""


class DetectorCLI(LightningCLI):
    """LightningCLI with run folders, the recipe's callbacks, and options from checkpoints.

    LightningCLI calls the methods in the order in which they stand here.

    Args:
        command: A command, whose function takes a Trainer.
        line: The command line.
    """

    def __init__(self, command: Command, line: CommandLine) -> None:
        self.function: Callable[..., Any] = resolve_name(command.place)
        self.line = line
        self.command = line.command
        self.loaded: CkptPath | None = None  # what --ckpt_path means
        self.continues = False  # whether a fit continues in its run folder
        self.run_folder: Path | None = None  # the one that was typed
        for name in ("trainer.default_root_dir", "run"):
            if line.options.get(name) not in (None, "", "null"):
                self.run_folder = Path(line.options[name])
        quiet_lightning()
        start = f"{program()} {self.command}"
        examples = HELP["examples"].get(self.command, "").replace("PROGRAM", start)
        # the result of a command may be JSON on the standard output
        messages = sys.stderr if "json" in line.options else sys.stdout
        with ExitStack() as self.held:  # the run folder, and the trust in what it names
            self.held.callback(remove_all_empty)
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
                        "description": f"{command.help}.",
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
            if self.command == "fit" and has_checkpoints(Path(self.trainer.default_root_dir)):
                print_fact("next", f"{program()} predict --source PHOTOS")

    def add_arguments_to_parser(self, parser: Any) -> None:
        """Add the options of run, callbacks and command to those of Trainer, model and data."""
        parser.add_argument(
            "--run", type=str, default=None, help="Folder of the run; default: runs/COMMAND-NUMBER."
        )
        parser.add_argument("--trust_parts", type=bool, default=False, help=TRUST_PARTS)
        for group, kind in CALLBACKS.items():
            parser.add_lightning_class_args(kind, group)
        parser.add_function_arguments(self.function, skip=OBJECTS)
        parser.finish([f"trainer.{name}" for name in ONLY])
        if not self.line.data_class:
            parser.link_arguments("seed_everything", "data.seed")
        parser.link_arguments("data.names", "model.names", apply_on="instantiate")

    def parse_arguments(self, parser: Any, args: Any) -> None:
        """Parse once; the options of a checkpoint, or of the demo, come before the typed ones."""
        line = self.line
        if args == ["--help"] and not line.wants_all:
            parser.show_only(short_help(self.command))
        typed = paths_in(line.options)
        trust_all = str(line.options.get("trust_parts")).lower() == "true"
        self.held.enter_context(trusting(map(package_of, typed), trust_all))
        dataset = line.options.get("data.dataset")
        self.loaded = self._read_ckpt_path(dataset)
        file = ""
        if self.loaded:
            first = self.loaded.options
            file = str(self.loaded.source)
        else:
            first = {} if line.data_class else demo.defaults(self.command, dataset)
        files = dict.fromkeys(flatten(first), file)
        parser.files = files | dict.fromkeys(line.options, "") | line.files
        words = [f"--config={yaml.safe_dump(first)}", *args]
        if self.loaded and not trust_all:
            with only_from_trusted():
                self.config = parser.parse_args(words)
            check_classes(self.config, typed, file)
        else:
            self.config = parser.parse_args(words)
        if self.loaded:
            print_fact("resume" if self.command == "fit" else "weights", self.loaded.path)
            print_fact("options", file)
        elif first.get("data.dataset"):
            print_fact("data", demo.ANNOUNCEMENT)

    def _read_ckpt_path(self, dataset: str | None) -> CkptPath | None:
        """Read what --ckpt_path means; validate and test evaluate the newest checkpoint."""
        options = self.line.options
        ckpt_path = options.get("ckpt_path")
        if self.command == "fit":
            if is_restart(self.run_folder):
                ckpt_path = "auto"
            if ckpt_path not in WORDS and isdir(Path(str(ckpt_path), "checkpoints")):
                ckpt_path = self._checkpoint_in(Path(str(ckpt_path)))
            self.continues = ckpt_path in WORDS
        has_start = any(options.get(name) for name in STARTS)
        only_prints = any(word in WITHOUT_VALUE for word in self.line.typed)
        is_evaluation = self.command in ("validate", "test")
        if is_evaluation and not ckpt_path and not has_start and not only_prints:
            ckpt_path = newest_checkpoint(self.run_folder)
        if not ckpt_path:
            return None
        loaded = read_ckpt_path(
            str(ckpt_path), self.run_folder, self.command, dataset, bool(self.line.data_class)
        )
        for name in STARTS:
            if not loaded or ckpt_path == "auto":
                break
            if name in options and name not in self.line.files:
                raise InputError(
                    f"{name} {options[name]}: the weights come from --ckpt_path {ckpt_path}. Leave"
                    f" --{name} out"
                )
        return loaded

    def _checkpoint_in(self, folder: Path) -> str:
        """The last checkpoint of a run folder, which continues there or starts a new run."""
        if self.run_folder is None:
            self.run_folder = folder
        return "last" if self.run_folder == folder else str(folder / "checkpoints/last.ckpt")

    def before_instantiate_classes(self) -> None:
        """Choose the run folder, and adapt the Trainer's options to it and to the machine."""
        options = self.config
        trainer = options.trainer
        if self.continues and self.loaded and options.get("data.batch_size") == "auto":
            options.data.batch_size = self.loaded.options["data"]["batch_size"]
        self.text = self._config_text(options)
        if self.loaded:
            for name in STARTS:  # never opened: the file may be gone
                options[name] = None
        run = self._choose_run_folder()
        trainer.default_root_dir = str(run)
        os.environ["BOLTBOX_RUN"] = str(run)
        announce_first_rank()
        if "ckpt_path" in options:
            options.ckpt_path = str(self.checkpoint) if self.checkpoint else None
        processes = processes_and_machines()
        if processes:
            trainer.devices, trainer.num_nodes = processes
        content: dict[str, Any] = {}  # of the checkpoint that a fit continues from
        is_exported = False
        if self.loaded:
            is_exported = self.loaded.exported is not None
            if self.continues and self.loaded.checkpoint:
                content = self.loaded.checkpoint
        adapt_trainer(options, self.command, is_exported)
        place_loggers(trainer.logger, run, content)

    @property
    def checkpoint(self) -> Path | None:
        """The training checkpoint that Lightning restores."""
        return self.loaded.path if self.loaded and self.loaded.checkpoint else None

    def _choose_run_folder(self) -> Path:
        """The folder that the command writes into, locked by this process."""
        command = self.command
        run = self.run_folder
        home = None  # run folder of the checkpoint that a fit continues from
        if self.continues and self.checkpoint:
            home = self.checkpoint.parent.parent
        if command not in ("fit", "evolve"):
            run = results_folder(command, run)
        elif run is None:
            run = home or new_run(command)
        if is_first_process():
            self.held.enter_context(locked(run, command, known=home == run))
            continues_study = command == "evolve" and (run / "study.db").exists()
            if command in ("fit", "evolve") and not self.continues and not continues_study:
                refuse_another(run)
        return run

    def instantiate_classes(self) -> None:
        """Instantiate Trainer, model and data, and load what --ckpt_path means."""
        super().instantiate_classes()
        loaded = self.loaded
        if loaded is None:
            return
        if loaded.exported:
            check_names(loaded.exported.names, self.model.names, loaded.path)
            self.model.use_exported(loaded.exported)
        elif loaded.trained and not loaded.checkpoint:
            loaded.trained.fill(self.model.network, self.model.names)
        elif loaded.trained and self.command in ("validate", "test"):
            loaded.trained.refuse_not_finite()
        checkpoints = checkpoints_of(self.trainer)
        if checkpoints and loaded.checkpoint and self.command in ("fit", "validate", "test"):
            # Lightning restores it without reading it again
            checkpoints.io.loaded = Checkpoint(loaded.path, loaded.checkpoint)
        loaded.trained = None  # nothing but what Lightning restores holds the tensors

    def instantiate_trainer(self, **kwargs: Any) -> L.Trainer:
        """The Trainer, with the callbacks in the recipe's order."""
        options = self.config_init.trainer
        configuration = load_yaml(self.text)
        defaults = load_yaml(self._config_text(self.parser.get_defaults()))
        changed = {}
        for name, (_, value) in differences([defaults, configuration]).items():
            changed[name] = value
        resume = ["fit", "--ckpt_path", "last", "--run", options.default_root_dir]
        if needs_trust(self.config):
            resume += ["--trust_parts", "true"]
        callbacks = in_order(
            RunFolder(self.text, changed, self.checkpoint),
            f"{program()} {shlex.join(resume)}",
            [self.config_init[group] for group in self.parser.callback_keys],
            as_list(options.callbacks),
            options.enable_progress_bar is not False,
        )
        words = [sys.executable, "-P", "-m", "boltbox", "fit"]
        self.fit_command = FitCommand(words, self.line.typed, configuration)
        return L.Trainer(**(vars(options) | {"callbacks": callbacks}))

    def _config_text(self, options: Any) -> str:
        """The text of config.yaml."""
        config = options.clone()
        for name in NOT_SAVED:
            config.pop(name, None)
        return self.parser.dump(config, skip_unset=False, skip_validation=True)

    def _call_function(self) -> None:
        """Call the function of the command with its options and the objects that it takes."""
        arguments: dict[str, Any] = {}
        for name in inspect.signature(self.function).parameters:
            is_object = name in OBJECTS
            arguments[name] = getattr(self, name) if is_object else self.config_init[name]
        with end_together(self.trainer, str(arguments.get("ckpt_path"))):
            self.function(**arguments)


def data_module_class(path: str) -> type[L.LightningDataModule]:
    """The class of `--data my.DataModule`; default: DetectionData."""
    if not path:
        return DetectionData
    with trusting([package_of(path)]):
        return find_part({"class_path": path}, L.LightningDataModule, "data")


def short_help(command: str) -> list[str]:
    """Options that the help shows without `all`."""
    shown = list(HELP["shown"])
    if command in ("fit", "evolve", "benchmark"):
        shown += HELP["shown_for_training"]
    return shown


@contextmanager
def end_together(trainer: L.Trainer, checkpoint: str) -> Iterator[None]:
    """Run a command of the Trainer, and wait for the processes that it started.

    Raises:
        InputError: A callback explains a crash in its attribute `explanation`
            (boltbox.callbacks.Watchdog, Guard), or the checkpoint cannot be restored.
        SystemExit: Another process failed after this one had finished.
    """
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
        raise
    started = getattr(trainer.strategy.launcher, "procs", [])
    codes = [abs(child.wait()) for child in started if isinstance(child, subprocess.Popen)]
    if any(codes):
        raise SystemExit(max(codes))


def quiet_lightning() -> None:
    """Hide the hints and warnings of Lightning, and of what fetches weights."""
    warnings.filterwarnings("ignore", module="lightning")
    for name in ("lightning.pytorch", "lightning.fabric", "timm", "huggingface_hub"):
        logging.getLogger(name).setLevel(logging.ERROR)
    logging.getLogger("lightning.pytorch.profilers").setLevel(logging.INFO)  # asked for
