"""boltbox: train, evaluate and use a YOLOv5 detector.

python cli.py fit --config configs/yolo.yaml
python cli.py fit --config configs/yolo.yaml --data.dataset my/data.yaml --model.weights yolov5n.pt
python cli.py fit --ckpt_path last
python cli.py validate --ckpt_path last
python cli.py predict --ckpt_path last --data.source my/images
python cli.py predict --ckpt_path last --data.source my/video.mp4 --save.csv true
python cli.py anchors --data.dataset my/data.yaml --data.image_size 640
python cli.py doctor --data.dataset my/data.yaml --data.image_size 640
python cli.py pipeline --splits 1,2,4,8
python cli.py import-hyp my_hyp.yaml
python cli.py benchmark --data.dataset my/data.yaml --data.image_size 640
python cli.py evolve --config configs/yolo.yaml --data.dataset my/data.yaml
python cli.py export --ckpt_path best --format onnx
python cli.py report runs/fit-1
python cli.py compare runs/fit-1 runs/fit-2
"""

import errno
import logging
import os
import shlex
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from detector.commands.parsing.table import CALLBACKS, DEFAULTS, FUNCTIONS, LINE, LINKS

if __name__ == "__main__" or Path(sys.argv[0]).stem == "boltbox":  # the installed command, which imports this file
    LINE.check_first(sys.argv[1:])  # a typo need not wait for the imports that follow: they take seconds

import lightning as L
import torch
import yaml
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch.distributed.elastic.multiprocessing.errors import record

import callbacks
from callbacks.recipe import as_list, in_order, own_folder
from detector.checkpoint.atomic_io import AtomicCheckpointIO
from detector.checkpoint.compatibility import check_network, check_resume
from detector.checkpoint.file import newest_intact
from detector.checkpoint.runs import check_run
from detector.checkpoint.yolov5_weights import read_yolov5
from detector.commands.anchors import anchors
from detector.commands.benchmark.command import benchmark
from detector.commands.ckpt_path import Brought, bring, inherit
from detector.commands.doctor.command import run_doctor
from detector.commands.evolve.command import run_evolution, study_folder
from detector.commands.parsing.parser import Parser, call, explained
from detector.commands.parsing.short_help import program
from detector.data import demo
from detector.data.datamodule import DetectionData
from detector.distributed import fsdp2, zero2  # noqa: F401 - strategies by name
from detector.distributed.process_group import die_with_parent, first_to_say
from detector.system.errors import InputError, in_one_line, shortened
from detector.system.open_files import is_too_many, too_many
from detector.system.options import differences, flatten
from detector.system.ranges import check_ranges
from detector.system.rank_zero import rank_zero_print
from detector.training.combinations import check_combinations, strategy_name
from detector.training.incident import RollBack
from detector.training.module import Detector
from detector.training.precision import DEFAULT, usable_precision
from detector.training.trainer import Trainer

FLAGS = {  # options that stand without a value
    "anchors": {"json": "Print the report as JSON instead of a table."},
    "doctor": {"json": "Print the diagnosis as JSON instead of a summary.", "strict": "Exit code 1 if there are warnings."},
    "benchmark": {"json": "Print the report as JSON instead of a table."},
}


class Commands(Trainer):
    """The Trainer with the commands that Lightning's lacks. A function's name becomes that of a group of options."""

    anchors = anchors
    doctor = run_doctor
    benchmark = benchmark
    evolve = run_evolution


class CLI(LightningCLI):
    """LightningCLI with run folders, the recipe's callbacks, and checkpoints that bring their own defaults."""

    run: Path
    brought: Brought | None = None  # what --ckpt_path means
    continues = False  # a fit that goes on in the folder of an older one
    defaults: Any  # of the command, before a checkpoint brings its own

    def __init__(self, args: list[str], **kwargs: Any) -> None:
        self.asked = next((word for word in args if word in self.subcommands()), None)
        super().__init__(args=args, **kwargs)

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        return {
            **LightningCLI.subcommands(),
            "anchors": {"model", "datamodule", "json"},
            "doctor": {"model", "datamodule", "json", "strict"},
            "benchmark": {"model", "datamodule", "json"},
            "evolve": {"model", "datamodule"},
        }

    def _prepare_subcommand_parser(self, klass: type, subcommand: str, **kwargs: Any) -> LightningArgumentParser:
        """Of the commands that are not asked for only the name and the line in `--help`: options take their time."""
        if self.asked not in (None, subcommand):
            return self.init_parser(**kwargs)
        parser = super()._prepare_subcommand_parser(klass, subcommand, **kwargs)
        parser.set_defaults(DEFAULTS.get(subcommand, {}))
        parser.usage = f"{program()} {subcommand} [options]"
        if subcommand == "predict":
            parser.add_lightning_class_args(callbacks.PredictionWriter, "save")
        for flag, told in FLAGS.get(subcommand, {}).items():
            parser.add_argument(f"--{flag}", action="store_true", help=told)
            self._subcommand_method_arguments[subcommand].append(flag)
        return parser

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_argument("--run", type=str, default=None, help="Folder of the run; default: runs/COMMAND-NUMBER.")
        for group, place in CALLBACKS.items():
            parser.add_lightning_class_args(getattr(callbacks, place.rpartition(":")[2]), group)
        for option, source in LINKS.items():
            parser.link_arguments(source, option, apply_on="instantiate" if option == "model.names" else "parse")

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse; then, if that names a checkpoint, parse once more with what the checkpoint says as defaults."""
        self.typed = list(args[1:])
        try:
            asked = [word for word in args if word.partition("=")[0] != "--print_config"]  # which waits for all defaults
            super().parse_arguments(parser, asked)
            command = self.config.subcommand
            options = self.config[command]
            if options.run:
                check_run(Path(options.run))
            if command == "fit":
                _heed_torchrun(options)
            defaults: dict[str, Any] = {}
            self.continues = command == "fit" and options.ckpt_path in ("last", "best", "auto")
            if options.get("ckpt_path"):
                self.brought = bring(options.ckpt_path, Path(options.run) if options.run else None, command, Detector)
            elif options.model.weights and not options.data.dataset and command == "predict":
                defaults["data.names"] = read_yolov5(options.model.weights).names
            if self.brought:
                defaults = {**self.brought.defaults, **DEFAULTS.get(command, {})}
                if not options.config:
                    inherit(self.brought, command)
                if command != "fit" and not options.get("json"):
                    rank_zero_print(self.brought.line(command, not options.config and command != "predict"))
            on_demo = {} if self.brought else demo.defaults(command, options.data.dataset)
            defaults |= on_demo
            self.defaults = self._subcommand_parsers[command].get_defaults()
            if defaults or len(asked) < len(args):
                inherited = self.brought.arguments if self.brought else []
                self._subcommand_parsers[command].set_defaults(defaults)
                super().parse_arguments(parser, [args[0], *inherited, *args[1:]])
            if on_demo and not self.config[command].get("json"):
                rank_zero_print(demo.told(flatten(self.config[command].as_dict()), options.data.dataset))
            if self.brought:
                options = self.config[command]
                self.brought.check_paths(options.data.dataset, options.model.ensemble)
        except InputError as e:
            raise InputError(explained(str(e), self._subcommand_parsers)) from None

    @property
    def checkpoint(self) -> Path | None:
        """The training checkpoint that Lightning restores."""
        return self.brought.path if self.brought and self.brought.checkpoint is not None else None

    def _parse_ckpt_path(self) -> None:
        """Lightning would let the checkpoint override what the user typed."""

    def before_instantiate_classes(self) -> None:
        command, options = self.config.subcommand, self.config[self.config.subcommand]
        check_ranges({name: value for name, value in options.items() if name not in LINKS})
        if options.trainer.accelerator in ("gpu", "cuda") and not torch.cuda.is_available():
            raise InputError(f"trainer.accelerator {options.trainer.accelerator}: torch finds no GPU here; use cpu or auto")
        if self.brought:
            _keep_provenance(self.brought, options, self.typed)
        self.text = self._config_text(options)
        if self.brought:
            options.model.weights = None  # never opened: the file may be gone
        if command == "evolve":
            self.run = Path(options.run) if options.run else study_folder(yaml.safe_load(self.text))
        elif options.run:
            self.run = Path(options.run)
        elif self.continues and self.checkpoint:
            self.run = self.checkpoint.parent.parent
        else:
            self.run = own_folder(command)
        check_run(self.run)
        os.environ["BOLTBOX_RUN"] = str(self.run)
        self.fresh = command == "fit" and not self.continues
        if "ckpt_path" in options:
            takes_any = command in ("anchors", "doctor")  # they look at its anchors themselves
            path = self.brought.path if self.brought and takes_any else self.checkpoint
            options.ckpt_path = str(path) if path else None
        options.trainer.default_root_dir = str(self.run)
        trainer, strategy = options.trainer, strategy_name(options.trainer.strategy)
        if self.brought and self.brought.exported and trainer.precision == DEFAULT:
            trainer.precision = "32-true"  # the file has a precision of its own
        trainer.precision = usable_precision(trainer.precision, trainer.accelerator, command, strategy)
        if command == "fit":
            check_combinations(options)
        elif strategy in ("fsdp2", "deepspeed_stage_2"):
            options.trainer.strategy = "auto"  # of the training's config.yaml; what they save, only a training has
        if options.trainer.sync_batchnorm and (options.trainer.accelerator == "cpu" or not torch.cuda.is_available()):
            raise InputError("trainer.sync_batchnorm true needs GPUs: torch cannot do it on a CPU; leave it out")
        content = self.brought.checkpoint if self.brought and self.continues else None
        _place_loggers(options.trainer.logger, self.run, content or {})
        if "LOCAL_WORLD_SIZE" in os.environ and "TORCHELASTIC_RUN_ID" in os.environ:  # torchrun says how many
            options.trainer.devices = int(os.environ["LOCAL_WORLD_SIZE"])
            options.trainer.num_nodes = int(os.environ["WORLD_SIZE"]) // options.trainer.devices

    def instantiate_classes(self) -> None:
        super().instantiate_classes()
        if self.brought is None or self.subcommand in ("anchors", "doctor"):
            return
        if self.brought.exported:
            self.brought.exported.look_for(self.model, self.datamodule)
        if self.brought.trained:
            self.brought.trained.fill(self.model)
        if self.brought.checkpoint is not None:
            check_network(self.model, self.brought.checkpoint)
            if self.subcommand == "fit":
                check_resume(self.model, self.brought.checkpoint, self.trainer.max_epochs)
            self.brought.checkpoint = {}  # Lightning reads the file itself

    def _instantiate_trainer(self, config: dict[str, Any], callbacks_: list[L.Callback]) -> L.Trainer:
        """Ours come before the user's, the warm-up first: a LearningRateMonitor shows what is used."""
        first: list[L.Callback] = [
            callbacks.RunFolder(self.text, self._changed(), self.fresh),
            callbacks.EpochLines(_command_line("fit", "--ckpt_path", "last", "--run", str(self.run))),
            callbacks.ConsistencyCheck(self.text, self.checkpoint),
            callbacks.RunState(self.text),
        ]
        given, bar = as_list(config["callbacks"]), config["enable_progress_bar"] is not False
        config["callbacks"] = in_order(first, callbacks_, given, bar)
        config["plugins"] = [*as_list(config["plugins"]), AtomicCheckpointIO()]
        self.ranks = next(c for c in callbacks_ if isinstance(c, callbacks.CollectiveWatchdog))
        trainer = super()._instantiate_trainer(config, [])
        assert isinstance(trainer, Trainer)
        trainer.typed, trainer.named_strategy = self.typed, self.config[self.subcommand].trainer.strategy
        trainer.configuration = yaml.safe_load(self.text)
        trainer.train = [sys.executable, str(Path(__file__).resolve()), "fit"]
        return trainer

    def _run_subcommand(self, subcommand: str) -> None:
        with self.ranks.together(self.trainer):
            super()._run_subcommand(subcommand)

    def fit(self, model: Detector, **options: Any) -> None:
        """Lightning's fit; after a roll-back once more, from the last checkpoint."""
        recorder = next(c for c in self.trainer.callbacks if isinstance(c, callbacks.TrainingGuard))  # type: ignore[attr-defined]
        while True:
            try:
                return self.trainer.fit(model, **options)
            except RollBack as e:
                checkpoint, _ = newest_intact(self.run / "checkpoints")
                if checkpoint is None:
                    raise InputError(f"{e}; there is no checkpoint to go back to") from None
                rank_zero_print(f"warning: {e}; going on from {checkpoint}")
                options["ckpt_path"] = str(checkpoint)
            except Exception:
                if recorder.incident:
                    raise recorder.incident from None
                raise

    def _changed(self) -> dict[str, Any]:
        """By flat name, what differs from the defaults of the command."""
        before, after = (yaml.safe_load(text) for text in (self._config_text(self.defaults), self.text))
        return {name: value for name, (_, value) in differences([before, after]).items()}

    def _config_text(self, options: Any) -> str:
        """The whole configuration, without what belongs to this one call."""
        config = options.clone()
        config.run = config.trainer.default_root_dir = None
        if "ckpt_path" in config:
            config.ckpt_path = None
        config.pop("weights_only", None)
        return self._parser(self.subcommand).dump(config, skip_unset=False)


def _keep_provenance(brought: Brought, options: Any, typed: list[str]) -> None:
    """model.weights in config.yaml is what the training started from, whatever is typed beside a checkpoint."""
    given = options.model.weights
    asked = any(word.partition("=")[0] == "--model.weights" for word in typed)
    if asked and given != brought.started_from and options.ckpt_path != "auto":
        rank_zero_print(f"model.weights {given} is not read: {brought.path} gives the weights")
    if brought.checkpoint is not None:
        options.model.weights = brought.started_from


def _command_line(*words: str) -> str:
    """A command of ours as the user would type it, by the way this one was started."""
    script = Path(sys.argv[0])
    start = ["python", str(script)] if script.name == "cli.py" else program().split()
    if "TORCHELASTIC_RUN_ID" in os.environ:
        start = ["torchrun", "--nproc-per-node", os.environ["LOCAL_WORLD_SIZE"], "--", str(script)]
    return shlex.join([*start, *words])


def _place_loggers(loggers: Any, run: Path, content: dict[str, Any]) -> None:
    """Loggers without a folder of their own write into the run's. After a checkpoint, whose content is given, they go on where
    they were: W&B in the same run, TensorBoard without what it was told after the checkpoint."""
    for logger in as_list(loggers):
        if isinstance(logger, bool):
            continue
        arguments, name = logger.init_args, logger.class_path.rpartition(".")[2]
        if "save_dir" in arguments:
            arguments.save_dir = arguments.save_dir or str(run)
        if content and name == "TensorBoardLogger" and arguments.purge_step is None:
            arguments.purge_step = content["global_step"]
        if name == "WandbLogger":
            arguments.name = arguments.name or run.resolve().name
        if content and name == "WandbLogger" and arguments.id is None:
            arguments.id = content.get("run", {}).get("loggers", {}).get(name)


def _heed_torchrun(options: Any) -> None:
    """A start after a crash, by torchrun --max-restarts, goes on from the run's last checkpoint by itself."""
    if int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", 0)) and not options.run:
        raise InputError("torchrun --max-restarts needs --run DIR, so that a restart finds the checkpoints of the run")
    restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))
    if restarts:
        options.ckpt_path = "auto"
        # The agent's store still holds the addresses of the processes that died; who reads them before they are written anew
        # cannot connect. So the processes meet in a store of their own.
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"
            os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + restarts)


def main(args: Sequence[str] | None = None) -> None:
    """Run a command; what the user can put right ends in one sentence and exit code 2."""
    warnings.filterwarnings("ignore", module="lightning")
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    die_with_parent()
    if not (os.environ.get("WANDB_API_KEY") or Path("~/.netrc").expanduser().exists()):
        os.environ.setdefault("WANDB_MODE", "offline")
    args = list(sys.argv[1:] if args is None else args)
    try:
        LINE.check(args)
        if args[0] in FUNCTIONS:
            module, name = FUNCTIONS[args[0]].split(":")
            return call(getattr(import_module(module), name), args[0], args[1:])
        CLI(
            model_class=Detector,
            datamodule_class=DetectionData,
            trainer_class=Commands,
            save_config_callback=None,
            trainer_defaults=DEFAULTS["trainer"],
            seed_everything_default=0,
            auto_configure_optimizers=False,
            load_from_checkpoint_support=False,
            parser_class=Parser,
            args=[word for k, word in enumerate(args) if not (word == "all" and args[k - 1] in ("-h", "--help"))],
        )
    except (InputError, MisconfigurationException) as e:
        if first_to_say(str(e)):
            print(f"error: {too_many() if is_too_many(e) else shortened(in_one_line(e))}", file=sys.stderr)
        raise SystemExit(2) from None
    except (OSError, RuntimeError) as e:
        number = getattr(e, "errno", None)
        if is_too_many(e):
            told = too_many()
        elif number in (errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EEXIST):
            told = f"{e}; give another file or folder, or move away what is there"
        elif number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES):
            told = f"{e}; make room, or give another folder with --run"
        else:
            raise
        print(f"error: {shortened(told)}", file=sys.stderr)
        raise SystemExit(2) from None


@record
def run() -> None:
    """The command `boltbox`. torchrun's summary has the traceback of the process that failed first."""
    main()


if __name__ == "__main__":
    run()
