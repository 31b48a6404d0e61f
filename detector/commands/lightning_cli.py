"""The commands with a Trainer: from the words of the command line to the function that does the
work."""

import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.cli import LightningArgumentParser

from boltbox.detector.checkpoint.resume import check_network, check_resume
from boltbox.detector.checkpoint.run_lock import RunLock
from boltbox.detector.checkpoint.runs import check_run, has_checkpoints, own_run, remove_empty
from boltbox.detector.checkpoint.writer import AtomicCheckpointIO
from boltbox.detector.commands.ckpt_path import (
    STARTS,
    ResolvedCkptPath,
    inherit_config,
    resolve_ckpt_path,
)
from boltbox.detector.commands.parsing.command_line import TRUST_PARTS, CommandLine
from boltbox.detector.commands.parsing.parser import Parser, explained
from boltbox.detector.commands.parsing.program import command_line
from boltbox.detector.commands.parsing.signatures import load
from boltbox.detector.commands.parsing.table import CALLBACKS, DEFAULTS, LINKS
from boltbox.detector.commands.parsing.trust import (
    check_classes,
    foreign_packages,
    only_from,
    paths_named,
)
from boltbox.detector.commands.run import ArrangeCallbacks, Run
from boltbox.detector.commands.subcommands import SubcommandCLI
from boltbox.detector.data import demo
from boltbox.detector.data.datamodule import DetectionData
from boltbox.detector.distributed import fsdp2, torchrun  # noqa: F401 - a strategy by name
from boltbox.detector.loggers.placement import place_loggers
from boltbox.detector.system.configuration import differences, flatten
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.ranges import check_ranges
from boltbox.detector.system.rank_zero import is_first_process, rank_zero_print
from boltbox.detector.system.trusted import may_import, refusal, trust_parts, trusts_everything
from boltbox.detector.system.yaml_text import load_yaml
from boltbox.detector.training.combinations import (
    check_accelerator,
    check_combinations,
    check_sync_batchnorm,
    strategy_name,
)
from boltbox.detector.training.module import Detector
from boltbox.detector.training.precision import DEFAULT, usable_precision
from boltbox.detector.training.trainer import Trainer
from boltbox.detector.training.trainer_options import as_list
from boltbox.detector.weights.start import class_names


class DetectorCLI(SubcommandCLI):
    """LightningCLI with run folders, the recipe's callbacks, and checkpoints that bring their own
    defaults.

    Args:
        line: all commands.
        args: words of the command line.
        arrange: makes the list of all callbacks.
    """

    run: Path
    lock: RunLock | None = None  # of the first process, on its run folder
    resolved: ResolvedCkptPath | None = None  # what --ckpt_path means
    continues = False  # a fit that continues an older one in its folder
    defaults: Any  # of the command, before a checkpoint brings its own

    def __init__(self, line: CommandLine, args: list[str], arrange: ArrangeCallbacks) -> None:
        self.arrange = arrange
        try:
            super().__init__(
                line,
                [
                    word
                    for k, word in enumerate(args)
                    if not (word == "all" and args[k - 1] in ("-h", "--help"))
                ],
                model_class=Detector,
                datamodule_class=DetectionData,
                trainer_class=Trainer,
                save_config_callback=None,
                trainer_defaults=DEFAULTS["trainer"],
                seed_everything_default=0,
                auto_configure_optimizers=False,
                load_from_checkpoint_support=False,
                parser_class=Parser,
            )
        finally:
            if self.lock:
                self.lock.release()
            remove_empty()

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_argument(
            "--run", type=str, default=None, help="Folder of the run; default: runs/COMMAND-NUMBER."
        )
        parser.add_argument("--trust_parts", type=bool, default=False, help=TRUST_PARTS)
        for group, place in CALLBACKS.items():
            parser.add_lightning_class_args(load(place), group)
        for option, source in LINKS.items():
            parser.link_arguments(
                source, option, apply_on="instantiate" if option == "model.names" else "parse"
            )

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse; then, if that names a checkpoint, parse once more with what the checkpoint says as
        defaults."""
        self.typed = list(args[1:])
        try:
            # which waits for all defaults
            asked = [word for word in args if word.partition("=")[0] != "--print_config"]
            super().parse_arguments(parser, asked)
            command = self.config.subcommand
            options = self.config[command]
            trust_parts(options.trust_parts)
            if options.run:
                check_run(Path(options.run))
            if command == "fit" and torchrun.is_restart(options.run):
                options.ckpt_path = "auto"
            defaults: dict[str, Any] = {}
            self.continues = command == "fit" and options.ckpt_path in ("last", "best", "auto")
            if options.get("ckpt_path"):
                folder = Path(options.run) if options.run else None
                self.resolved = resolve_ckpt_path(options.ckpt_path, folder, command)
            elif options.model.start.weights and not options.data.dataset and command == "predict":
                defaults["data.names"] = class_names(options.model.start.weights)
            if self.resolved:
                defaults = {**self.resolved.defaults, **DEFAULTS.get(command, {})}
                if not options.config:
                    inherit_config(self.resolved, command, options.data.dataset)
                if command != "fit" and not options.get("json"):
                    rank_zero_print(
                        self.resolved.line(command, not options.config and command != "predict")
                    )
            on_demo = {} if self.resolved else demo.defaults(command, options.data.dataset)
            defaults |= on_demo
            self.defaults = self._subcommand_parsers[command].get_defaults()
            if defaults or len(asked) < len(args):
                with self._distrust(options):
                    inherited = self.resolved.arguments if self.resolved else []
                    self._subcommand_parsers[command].set_defaults(defaults)
                    super().parse_arguments(parser, [args[0], *inherited, *args[1:]])
            if on_demo and not self.config[command].get("json"):
                rank_zero_print(
                    demo.options_sentence(
                        flatten(self.config[command].as_dict()), options.data.dataset
                    )
                )
            if self.resolved:
                options = self.config[command]
                self.resolved.check_paths(options.data.dataset, options.model.ensemble)
        except InputError as e:
            raise InputError(explained(str(e), self._subcommand_parsers)) from None

    @contextmanager
    def _distrust(self, typed: Any) -> Iterator[None]:
        """While the options of a run are taken over: of code that the user did not type they may
        only name our own."""
        if self.resolved is None or trusts_everything():
            yield
            return
        source = str(
            self.resolved.home / "config.yaml" if self.resolved.home else self.resolved.path
        )
        paths = paths_named(typed)
        with only_from(paths, source):
            yield
        options = self.config[self.config.subcommand]
        check_classes(options, paths, source)
        format = options.data.format
        if format and "." in format and format != typed.data.format and not may_import(format):
            raise InputError(f"{source}: {refusal('data.format', format)}")

    @property
    def checkpoint(self) -> Path | None:
        """The training checkpoint that Lightning restores."""
        return self.resolved.path if self.resolved and self.resolved.checkpoint else None

    def _parse_ckpt_path(self) -> None:
        """Lightning would let the checkpoint override what the user typed."""

    def before_instantiate_classes(self) -> None:
        command, options = self.config.subcommand, self.config[self.config.subcommand]
        trainer, strategy = options.trainer, strategy_name(options.trainer.strategy)
        check_ranges({name: value for name, value in options.items() if name not in LINKS})
        check_accelerator(trainer.accelerator)
        if self.resolved:
            _keep_provenance(self.resolved, options, self.typed)
        self.text = self._config_text(options)
        if self.resolved:
            for name in STARTS:
                options.model.start[name] = None  # never opened: the file may be gone
        self.run = self._run_folder(options)
        os.environ["BOLTBOX_RUN"] = trainer.default_root_dir = str(self.run)
        if "ckpt_path" in options:
            path = (
                self.resolved.path
                if self.resolved and command in ("anchors", "doctor")
                else self.checkpoint
            )
            options.ckpt_path = str(path) if path else None
        if self.resolved and self.resolved.exported and trainer.precision == DEFAULT:
            trainer.precision = "32-true"  # the file has a precision of its own
        trainer.precision = usable_precision(
            trainer.precision, trainer.accelerator, command, strategy
        )
        if command == "fit":
            check_combinations(options)
        elif strategy == "fsdp2":
            # that of the training's config.yaml; only a training has what it shards
            trainer.strategy = "auto"
        check_sync_batchnorm(trainer.sync_batchnorm, trainer.accelerator)
        continued = self.resolved.checkpoint if self.resolved and self.continues else None
        place_loggers(trainer.logger, self.run, continued or {})
        trainer.devices, trainer.num_nodes = torchrun.processes_and_machines() or (
            trainer.devices,
            trainer.num_nodes,
        )

    def _run_folder(self, options: Any) -> Path:
        command = self.config.subcommand
        own = (
            command not in ("fit", "evolve") and options.run and has_checkpoints(Path(options.run))
        )
        if options.run and not own:
            run = Path(options.run)
        elif command == "evolve":
            from boltbox.detector.commands.evolve.search import study_folder  # imports optuna

            run = study_folder(load_yaml(self.text))
        elif self.continues and self.checkpoint:
            run = self.checkpoint.parent.parent
        else:
            run = own_run(command)
        if own and not options.get("json"):
            rank_zero_print(
                f"{command}: {options.run} keeps its training's files; the results go to {run}"
            )
        if command == "evolve":  # several commands may work on one study
            check_run(run)
        elif is_first_process():
            self.lock = RunLock(run)
            self.lock.take()
        return run

    def instantiate_classes(self) -> None:
        super().instantiate_classes()
        if self.resolved is None or self.subcommand in ("anchors", "doctor"):
            return
        if self.resolved.exported:
            self.resolved.exported.look_for(self.model, self.datamodule)
        elif self.resolved.checkpoint:
            check_network(self.model, self.resolved.checkpoint)
            if self.subcommand == "fit":
                self.model.restore_auto_options(self.resolved.checkpoint)
                check_resume(self.model, self.resolved.checkpoint, self.trainer.max_epochs)
            # Lightning need not read the file again
            self.checkpoint_io.preload(self.resolved.path, self.resolved.release())
        elif self.resolved.trained:
            self.resolved.trained.fill(self.model)

    def _instantiate_trainer(
        self, config: dict[str, Any], callbacks: list[L.Callback]
    ) -> L.Trainer:
        trust = ["--trust_parts", "true"] if self._names_foreign_code() else []
        resume = command_line("fit", "--ckpt_path", "last", "--run", str(self.run), *trust)
        is_new = self.subcommand == "fit" and not self.continues
        run = Run(self.run, self.text, self._changed(), is_new, self.checkpoint, resume)
        config["callbacks"] = self.arrange(
            run, callbacks, as_list(config["callbacks"]), config["enable_progress_bar"] is not False
        )
        self.checkpoint_io = AtomicCheckpointIO()
        config["plugins"] = [*as_list(config["plugins"]), self.checkpoint_io]
        trainer = super()._instantiate_trainer(config, [])
        assert isinstance(trainer, Trainer)
        trainer.typed, trainer.named_strategy = (
            self.typed,
            self.config[self.subcommand].trainer.strategy,
        )
        trainer.configuration = load_yaml(self.text)
        trainer.train = [sys.executable, "-P", "-m", "boltbox", "fit"]
        return trainer

    def _names_foreign_code(self) -> bool:
        """Whether config.yaml of this run will name what a resume imports only on demand."""
        options = self.config[self.subcommand]
        return "." in (options.data.format or "") or bool(foreign_packages(paths_named(options)))

    def _changed(self) -> dict[str, Any]:
        """By flat name, the options that differ from the defaults of the command."""
        before, after = (load_yaml(text) for text in (self._config_text(self.defaults), self.text))
        return {name: value for name, (_, value) in differences([before, after]).items()}

    def _config_text(self, options: Any) -> str:
        """The whole configuration, without what belongs to this one call."""
        config = options.clone()
        config.run = config.trainer.default_root_dir = None
        if "ckpt_path" in config:
            config.ckpt_path = None
        for name in ("weights_only", "trust_parts"):
            config.pop(name, None)
        return self._parser(self.subcommand).dump(config, skip_unset=False)


def _keep_provenance(resolved: ResolvedCkptPath, options: Any, typed: list[str]) -> None:
    """Have config.yaml name what the training started from, whatever is typed beside a
    checkpoint."""
    for name, before in resolved.started_from.items():
        given = options.model.start[name]
        asked = any(word.partition("=")[0] == f"--model.start.{name}" for word in typed)
        if asked and given != before and options.ckpt_path != "auto":
            rank_zero_print(
                f"model.start.{name} {given} is not read: {resolved.path} gives the weights"
            )
        if resolved.checkpoint:
            options.model.start[name] = before


def quiet_lightning() -> None:
    """No hints and warnings of Lightning's, and of what fetches weights: this program prints its
    own."""
    warnings.filterwarnings("ignore", module="lightning")
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for name in ("timm", "huggingface_hub"):
        logging.getLogger(name).setLevel(logging.ERROR)
