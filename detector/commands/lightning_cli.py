"""The commands with a Trainer: from the words of the command line to the function that does the
work."""

import inspect
import logging
import os
import shlex
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, redirect_stdout
from os.path import isdir
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import lightning as L
import yaml
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI

from boltbox.callbacks.checkpoints import restore_from
from boltbox.callbacks.configuration import CALLBACKS
from boltbox.callbacks.epoch_table import EpochTable
from boltbox.callbacks.recipe import in_order
from boltbox.callbacks.run_folder import RunFolder, refuse_another
from boltbox.callbacks.run_state import RunState
from boltbox.detector.checkpoint.reader import WORDS, Checkpoint, newest_checkpoint
from boltbox.detector.checkpoint.runs import (
    ROOT,
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
from boltbox.detector.data.datamodule import DetectionData
from boltbox.detector.distributed import fsdp2  # noqa: F401 - a strategy by name
from boltbox.detector.distributed.process_group import is_restart, processes_and_machines
from boltbox.detector.inference.members import check_names
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
STARTS = ("model.start.weights", "model.start.backbone_weights")  # files to start from
# parameters of a command's function that are no options
OBJECTS: set[str | int] = {"trainer", "model", "datamodule", "fit_command", "command"}


class TrainerParser(Parser, LightningArgumentParser):
    """The parser of the commands with a Trainer."""


class DetectorCLI(LightningCLI):
    """LightningCLI with run folders, the recipe's callbacks, and checkpoints that bring their own
    options.

    Args:
        command: whose function takes (trainer, model, datamodule, ...).
        line: the command line.
    """

    found: CkptPath | None = None  # what --ckpt_path means

    def __init__(self, command: Command, line: CommandLine) -> None:
        self.function: Callable[..., Any] = resolve_name(command.place)
        self.line, self.command = line, line.command
        run = line.options.get("run") or line.options.get("trainer.default_root_dir")
        self.given_run = Path(run) if run and run != "null" else None
        quiet_lightning()
        data: type[L.LightningDataModule] = DetectionData
        if self.line.data_class:
            part = {"class_path": self.line.data_class}
            with trusting([package_of(self.line.data_class)]):
                data = find_part(part, L.LightningDataModule, "data")
        start = f"{program()} {self.command}"
        about = {
            "usage": f"{start} [options]",
            "description": f"{command.help}.",
            "epilog": HELP["examples"].get(self.command, "").replace("PROGRAM", start)
            + f"\nEvery option: {start} --help all",
            "formatter_class": HelpFormatter,
        }
        # the result of a command may be JSON on the standard output
        aside = redirect_stdout(sys.stderr) if "json" in line.options else nullcontext()
        with ExitStack() as self.held:  # the run folder, and the trust in what it names
            self.held.callback(remove_all_empty)
            with aside:
                super().__init__(
                    model_class=Detector,
                    datamodule_class=data,
                    trainer_class=L.Trainer,
                    save_config_callback=None,
                    trainer_defaults=TRAINER_OPTIONS,
                    seed_everything_default=0,
                    parser_kwargs=about,
                    parser_class=TrainerParser,
                    args=line.words,
                    run=False,
                    auto_configure_optimizers=False,
                    load_from_checkpoint_support=False,
                )
            objects = {
                "trainer": self.trainer,
                "model": self.model,
                "datamodule": self.datamodule,
                "fit_command": self.fit_command,
                "command": self.command,
            }
            arguments = {
                name: objects[name] if name in objects else self.config_init[name]
                for name in inspect.signature(self.function).parameters
            }
            with end_together(self.trainer, str(arguments.get("ckpt_path"))):
                self.function(**arguments)
            if self.command == "fit" and has_checkpoints(Path(self.trainer.default_root_dir)):
                print_fact("next", f"{program()} predict --source PHOTOS")

    def add_arguments_to_parser(self, parser: Any) -> None:
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
        """One parse: options that a checkpoint or the demo brings come before what was typed."""
        line, typed = self.line, paths_in(self.line.options)
        if args == ["--help"] and not line.wants_all:
            shown = list(HELP["shown"])
            if self.command in ("fit", "evolve", "benchmark"):
                shown += HELP["shown_for_training"]
            parser.show_only(shown)
        everything = str(line.options.get("trust_parts")).lower() == "true"
        self.held.enter_context(trusting(map(package_of, typed), everything))
        dataset = line.options.get("data.dataset")
        self.found = self._read_ckpt_path(dataset)
        brought = {} if line.data_class else demo.defaults(self.command, dataset)
        if self.found:
            brought = self.found.options
        file = str(self.found.source) if self.found else ""
        files = dict.fromkeys(flatten(brought), file)
        parser.files = files | dict.fromkeys(line.options, "") | line.files
        words = [f"--config={yaml.safe_dump(brought)}", *args]
        if self.found is None or everything:
            self.config = parser.parse_args(words)
        else:
            with only_from_trusted():
                self.config = parser.parse_args(words)
            check_classes(self.config, typed, file)
        if self.found:
            print_fact("resume" if self.command == "fit" else "weights", self.found.path)
            print_fact("options", file)
        elif self.found is None and brought.get("data.dataset"):
            print_fact("data", demo.announcement(dataset))

    def _read_ckpt_path(self, dataset: str | None) -> CkptPath | None:
        options, command = self.line.options, self.command
        run, ckpt_path = self.given_run, options.get("ckpt_path")
        if command == "fit" and is_restart(run):
            ckpt_path = "auto"
        folder = Path(str(ckpt_path))
        if command == "fit" and ckpt_path not in WORDS and isdir(folder / "checkpoints"):
            run = self.given_run = run or folder
            ckpt_path = "last" if run == folder else str(folder / "checkpoints/last.ckpt")
        self.continues = command == "fit" and ckpt_path in WORDS
        asked = set(WITHOUT_VALUE) & set(self.line.typed) or any(map(options.get, STARTS))
        if not ckpt_path and command in ("validate", "test") and not asked:
            ckpt_path = newest_checkpoint(run)
        if not ckpt_path:
            return None
        own = bool(self.line.data_class)
        found = read_ckpt_path(str(ckpt_path), run, command, dataset, own)
        for name in STARTS if found else ():
            if name in options and name not in self.line.files and ckpt_path != "auto":
                raise InputError(
                    f"{name} {options[name]}: --ckpt_path {ckpt_path} gives the weights; leave"
                    f" --{name} out"
                )
        return found

    @property
    def checkpoint(self) -> Path | None:
        """The training checkpoint that Lightning restores, or the file that `anchors` reads."""
        found = self.found
        return found.path if found and (found.checkpoint or self.command == "anchors") else None

    def before_instantiate_classes(self) -> None:
        options, trainer, command = self.config, self.config.trainer, self.command
        if self.continues and self.found and options.get("data.batch_size") == "auto":
            options.data.batch_size = self.found.options["data"]["batch_size"]
        self.text = self._config_text(options)
        for name in STARTS if self.found else ():  # never opened: the file may be gone
            options[name] = None
        run = self._choose_run_folder()
        os.environ["BOLTBOX_RUN"] = trainer.default_root_dir = str(run)
        announce_first_rank()
        if "ckpt_path" in options:
            options.ckpt_path = self.checkpoint and str(self.checkpoint)
        if processes := processes_and_machines():
            trainer.devices, trainer.num_nodes = processes
        adapt_trainer(options, command, bool(self.found and self.found.exported))
        continued = self.found.checkpoint if self.found and self.continues else None
        place_loggers(trainer.logger, run, continued or {})

    def _choose_run_folder(self) -> Path:
        command, run = self.command, self.given_run
        checkpoint = self.checkpoint if self.continues else None
        if command in ("fit", "validate", "test") and self.config.trainer.fast_dev_run:
            return run or ROOT  # nothing is written there, see RunFolder
        if command not in ("fit", "evolve"):
            run = results_folder(command, run)
        elif not run and checkpoint:
            run = checkpoint.parent.parent
        run = run or new_run(command)
        continues_study = command == "evolve" and (run / "study.db").exists()
        if is_first_process():
            known = checkpoint is not None and checkpoint.parent.parent == run
            self.held.enter_context(locked(run, command, known))
            if command in ("fit", "evolve") and not self.continues and not continues_study:
                refuse_another(run)
        return run

    def instantiate_classes(self) -> None:
        super().instantiate_classes()
        found, model = self.found, self.model
        if found is None or self.command == "anchors":
            return
        if file := found.exported:
            check_names(file.names, model.names, file.path)
            model.use_exported(file)
        elif found.trained and not found.checkpoint:
            found.trained.fill(model.network, model.names)
        elif found.trained and self.command in ("validate", "test"):
            found.trained.refuse_not_finite()
        if found.checkpoint and self.command in ("fit", "validate", "test"):
            restore_from(self.trainer, Checkpoint(found.path, found.checkpoint))
        found.trained = None  # nothing but what Lightning restores holds the tensors

    def instantiate_trainer(self, **kwargs: Any) -> L.Trainer:
        """The Trainer, with the callbacks in the recipe's order."""
        options, whole = self.config_init.trainer, load_yaml(self.text)
        defaults = load_yaml(self._config_text(self.parser.get_defaults()))
        changed = {name: value for name, (_, value) in differences([defaults, whole]).items()}
        trusting = ["--trust_parts", "true"] if needs_trust(self.config) else []
        resume = ["fit", "--ckpt_path", "last", "--run", options.default_root_dir, *trusting]
        first = [
            RunFolder(self.text, changed, self.checkpoint),
            EpochTable(f"{program()} {shlex.join(resume)}"),
            RunState(),
        ]
        chosen = [self.config_init[group] for group in self.parser.callback_keys]
        others, bar = as_list(options.callbacks), options.enable_progress_bar is not False
        callbacks = in_order(first, chosen, others, bar)
        words = [sys.executable, "-P", "-m", "boltbox", "fit"]
        self.fit_command = FitCommand(words, self.line.typed, whole)
        return L.Trainer(**{**vars(options), "callbacks": callbacks})

    def _config_text(self, options: Any) -> str:
        """The whole configuration, without what belongs to this one call."""
        config = options.clone()
        for name in ("run", "ckpt_path", "trust_parts", "trainer.default_root_dir"):
            config.pop(name, None)
        return self.parser.dump(config, skip_unset=False, skip_validation=True)


@contextmanager
def end_together(trainer: L.Trainer, checkpoint: str) -> Iterator[None]:
    """A command of the Trainer, at whose end no process that was started for it is left.

    Raises:
        InputError: in place of a crash that a callback explains in one sentence, in its attribute
            `explanation` (boltbox.callbacks.Watchdog, Guard), or that comes of restoring the
            checkpoint.
        SystemExit: another process failed after this one had finished.
    """
    try:
        yield
    except Exception as e:
        callbacks: list[L.Callback] = trainer.callbacks  # type: ignore[attr-defined]
        for explanation in (getattr(callback, "explanation", None) for callback in callbacks):
            if explanation:
                raise explanation from None
        frames = traceback.extract_tb(e.__traceback__)
        if any("checkpoint_connector" in f.filename and "restore" in f.name for f in frames):
            with as_input_error(checkpoint, DETECTOR):
                raise
        raise
    started = getattr(trainer.strategy.launcher, "procs", [])
    children = [child for child in started if isinstance(child, subprocess.Popen)]
    failed = max([abs(child.wait()) for child in children], default=0)
    if failed:
        raise SystemExit(failed)


def quiet_lightning() -> None:
    """No hints and warnings of Lightning's, and of what fetches weights: this program prints its
    own."""
    warnings.filterwarnings("ignore", module="lightning")
    for name in ("lightning.pytorch", "lightning.fabric", "timm", "huggingface_hub"):
        logging.getLogger(name).setLevel(logging.ERROR)
    logging.getLogger("lightning.pytorch.profilers").setLevel(logging.INFO)  # asked for
