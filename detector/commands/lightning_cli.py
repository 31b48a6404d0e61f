"""The commands with a Trainer: from the words of the command line to the function that does the
work."""

import inspect
import logging
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import yaml
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI

from boltbox.callbacks.configuration import CALLBACKS
from boltbox.callbacks.epoch_table import EpochTable
from boltbox.callbacks.recipe import in_order
from boltbox.callbacks.run_folder import RunFolder, refuse_another
from boltbox.callbacks.run_state import RunState
from boltbox.detector.checkpoint.resume import check_network, check_resume
from boltbox.detector.checkpoint.runs import (
    RunLock,
    check_run,
    has_checkpoints,
    own_run,
    remove_empty,
)
from boltbox.detector.checkpoint.writer import AtomicCheckpointIO
from boltbox.detector.commands.ckpt_path import CkptPath, read_ckpt_path
from boltbox.detector.commands.command_line import Command, CommandLine, command_line, program
from boltbox.detector.commands.parser import OFTEN_USED, Parser
from boltbox.detector.commands.trust import check_classes, needs_trust, only_from_trusted, paths_in
from boltbox.detector.data import demo
from boltbox.detector.data.datamodule import DetectionData
from boltbox.detector.distributed import fsdp2, torchrun  # noqa: F401 - a strategy by name
from boltbox.detector.distributed.process_group import die_with_parent, end_together
from boltbox.detector.inference.predictor import check_names
from boltbox.detector.loggers.placement import place_loggers, wandb_offline_without_key
from boltbox.detector.system.configuration import differences, flatten
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.rank_zero import is_first_process, rank_zero_print
from boltbox.detector.system.trusted import package_of, trust
from boltbox.detector.system.yaml_text import load_yaml
from boltbox.detector.training.module import Detector
from boltbox.detector.training.trainer import Trainer
from boltbox.detector.training.trainer_options import (
    DEFAULT,
    TRAINER_OPTIONS,
    as_list,
    check_combinations,
    strategy_name,
    usable_precision,
)

TRUST_PARTS = "Import all code that a run folder or checkpoint names, not only boltbox's."
STARTS = ("model.start.weights", "model.start.backbone_weights")  # files to start from
# parameters of a command's function that are no options
OBJECTS: set[str | int] = {"self", "trainer", "model", "datamodule", "dataloaders"}


class TrainerParser(Parser, LightningArgumentParser):
    """The parser of the commands with a Trainer."""


class DetectorCLI(LightningCLI):
    """LightningCLI with run folders, the recipe's callbacks, and checkpoints that bring their own
    options.

    Args:
        command: whose function takes (trainer, model, datamodule, ...).
        line: the command line.
    """

    run_folder: Path
    lock: RunLock | None = None  # of the first process, on its run folder
    found: CkptPath | None = None  # what --ckpt_path means

    def __init__(self, command: Command, line: CommandLine) -> None:
        self.function: Callable[..., Any] = resolve_name(command.place)
        self.line, self.command = line, line.command
        self.inherited: dict[str, Any] = {}  # options that a checkpoint or the demo brings
        quiet_lightning()
        die_with_parent()
        wandb_offline_without_key()
        start = f"{program()} {self.command}"
        about = {"prog": start, "usage": f"{start} [options]", "description": command.help}
        try:
            super().__init__(
                model_class=Detector,
                datamodule_class=DetectionData,
                trainer_class=Trainer,
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
            names = inspect.signature(self.function).parameters.keys() - OBJECTS
            options = {name: self.config_init[name] for name in names}
            with end_together(self.trainer):
                self.function(self.trainer, model=self.model, datamodule=self.datamodule, **options)
        finally:
            if self.lock:
                self.lock.release()
            remove_empty()

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        assert isinstance(parser, TrainerParser)
        parser.add_argument(
            "--run", type=str, default=None, help="Folder of the run; default: runs/COMMAND-NUMBER."
        )
        parser.add_argument("--trust_parts", type=bool, default=False, help=TRUST_PARTS)
        for group, kind in CALLBACKS.items():
            parser.add_lightning_class_args(kind, group)
        parser.add_function_arguments(self.function, skip=OBJECTS)
        parser.finish()
        parser.link_arguments("seed_everything", "data.seed")
        parser.link_arguments("data.names", "model.names", apply_on="instantiate")

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """One parse: what a checkpoint or the demo brings comes before what was typed."""
        assert isinstance(parser, TrainerParser)
        line, typed = self.line, paths_in(self.line.options)
        if args == ["--help"] and not line.wants_all:
            parser.show_only(OFTEN_USED)
        everything = str(line.options.get("trust_parts")).lower() == "true"
        trust(map(package_of, typed), everything)
        layers = self._inherited()
        for layer in layers:
            self.inherited |= flatten(layer)
        file = self.found.source if self.found else ""
        typed_files = dict.fromkeys(line.options, "") | line.files
        parser.files = dict.fromkeys(self.inherited, file) | typed_files
        words = [*(f"--config={yaml.safe_dump(layer)}" for layer in layers), *args]
        if self.found is None or everything:
            self.config = parser.parse_args(words)
        else:
            with only_from_trusted():
                self.config = parser.parse_args(words)
            check_classes(self.config, typed, file)
        if self.found and self.command != "fit":
            self._print(f"{self.command}: weights from {self.found.path}, options from {file}")
        elif self.found is None and layers[0].get("data.dataset"):
            self._print(demo.announcement(line.options.get("data.dataset")))

    def _inherited(self) -> list[dict[str, Any]]:
        """Options that count before those that were typed, later ones more: by flat name, or in
        groups."""
        options, command = self.line.options, self.command
        run, dataset = options.get("run"), options.get("data.dataset")
        ckpt_path = options.get("ckpt_path")
        if run:
            check_run(Path(run))
        if command == "fit" and torchrun.is_restart(run):
            ckpt_path = "auto"
        self.continues = command == "fit" and ckpt_path in ("last", "best", "auto")
        if ckpt_path:
            self.found = read_ckpt_path(str(ckpt_path), Path(run) if run else None, command)
        if self.found is None:
            return [demo.defaults(command, dataset)]
        for name in STARTS:
            if name in options and name not in self.line.files and ckpt_path != "auto":
                raise InputError(
                    f"{name} {options[name]}: --ckpt_path {ckpt_path} gives the weights; leave"
                    f" --{name} out"
                )
        return [self.found.options, self.found.inherit(command, dataset)]

    def _print(self, text: str) -> None:
        """What is not the command's result, which may be JSON on the same stream."""
        if "json" not in self.line.options:
            rank_zero_print(text)

    @property
    def checkpoint(self) -> Path | None:
        """The training checkpoint that Lightning restores."""
        return self.found.path if self.found and self.found.checkpoint else None

    def before_instantiate_classes(self) -> None:
        options, trainer, command = self.config, self.config.trainer, self.command
        strategy = strategy_name(trainer.strategy)
        starts = STARTS if self.found else ()
        for name in starts:
            options[name] = self.inherited.get(name)
        self.text = self._config_text(options)
        for name in starts:  # never opened: the file may be gone
            options[name] = None
        self.run_folder = self._choose_run_folder()
        os.environ["BOLTBOX_RUN"] = trainer.default_root_dir = str(self.run_folder)
        if "ckpt_path" in options:
            path = self.found and self.found.path
            restored = path if command == "anchors" else self.checkpoint
            options.ckpt_path = str(restored) if restored else None
        if self.found and self.found.exported and trainer.precision == DEFAULT:
            trainer.precision = "32-true"  # the file has a precision of its own
        trainer.precision = usable_precision(
            trainer.precision, trainer.accelerator, command, strategy
        )
        if command == "fit":
            check_combinations(options)
        elif strategy == "fsdp2":  # only a training has what it shards
            trainer.strategy = "auto"
        continued = self.found.checkpoint if self.found and self.continues else None
        place_loggers(trainer.logger, self.run_folder, continued or {})
        if processes := torchrun.processes_and_machines():
            trainer.devices, trainer.num_nodes = processes

    def _choose_run_folder(self) -> Path:
        command, given = self.command, self.config.run and Path(self.config.run)
        if given and command not in ("fit", "evolve") and has_checkpoints(given):
            run = own_run(command)
            self._print(f"{command}: {given} keeps its training's files; the results go to {run}")
        elif given:
            run = given
        elif self.continues and self.checkpoint:
            run = self.checkpoint.parent.parent
        else:
            run = own_run(command)
        if command == "evolve":  # several commands may work on one study
            check_run(run)
        elif is_first_process():
            self.lock = RunLock(run)
            self.lock.take()
            if command == "fit" and not self.continues:
                refuse_another(run)
        return run

    def instantiate_classes(self) -> None:
        super().instantiate_classes()
        found, model = self.found, self.model
        if found is None or self.command == "anchors":
            return
        if file := found.exported:
            check_names(file.names, model.names, file.path)
            self.datamodule.fixed_shape = file.shape_for(self.datamodule.image_size)
            model.exported, model.network.origins = file, file.metadata.origins
        elif content := found.checkpoint:
            check_network(model.names, model.state_dict(), content)
            if self.command == "fit":
                model.restore_auto_options(content)
                check_resume(model.configure_optimizers(), content, self.trainer.max_epochs)
            # Lightning need not read the file again, and then nothing here holds its tensors
            self.checkpoint_io.preload(found.path, content)
            found.trained = None
        elif found.trained:
            found.trained.fill(model.network, model.names)

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """The Trainer, with the callbacks in the recipe's order."""
        options, whole = self.config_init.trainer, load_yaml(self.text)
        defaults = load_yaml(self._config_text(self.parser.get_defaults()))
        changed = {name: value for name, (_, value) in differences([defaults, whole]).items()}
        trusting = ["--trust_parts", "true"] if needs_trust(self.config) else []
        resume = ["fit", "--ckpt_path", "last", "--run", str(self.run_folder), *trusting]
        first = [
            RunFolder(self.text, changed, self.checkpoint),
            EpochTable(command_line(*resume)),
            RunState(),
        ]
        chosen = [self.config_init[group] for group in self.parser.callback_keys]
        others, bar = as_list(options.callbacks), options.enable_progress_bar is not False
        self.checkpoint_io = AtomicCheckpointIO()
        callbacks = in_order(first, chosen, others, bar)
        plugins = [*as_list(options.plugins), self.checkpoint_io]
        trainer = Trainer(**{**vars(options), "callbacks": callbacks, "plugins": plugins})
        trainer.typed, trainer.configuration = self.line.typed, whole
        trainer.train = [sys.executable, "-P", "-m", "boltbox", "fit"]
        return trainer

    def _config_text(self, options: Any) -> str:
        """The whole configuration, without what belongs to this one call."""
        config = options.clone()
        config.run = config.trainer.default_root_dir = None
        if "ckpt_path" in config:
            config.ckpt_path = None
        config.pop("trust_parts", None)
        return self.parser.dump(config, skip_unset=False)


def quiet_lightning() -> None:
    """No hints and warnings of Lightning's, and of what fetches weights: this program prints its
    own."""
    warnings.filterwarnings("ignore", module="lightning")
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for name in ("timm", "huggingface_hub"):
        logging.getLogger(name).setLevel(logging.ERROR)
