"""What `--ckpt_path` brings: weights, and options of the run that they are from."""

from __future__ import annotations

import inspect
import os
from dataclasses import dataclass, field
from os.path import exists
from pathlib import Path
from typing import Any

from boltbox.detector.checkpoint.reader import (
    CKPT_WORDS,
    Checkpoint,
    find_trained,
    newest_checkpoint,
)
from boltbox.detector.checkpoint.runs import has_checkpoints, path_from, run_of, start_of
from boltbox.detector.commands.command_line import CommandLine
from boltbox.detector.data.datamodule import DetectionData
from boltbox.detector.inference.exported import Exported
from boltbox.detector.inference.formats import format_of, load_exported
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.rank_zero import rank_zero_print
from boltbox.detector.system.text_file import parse_yaml, read_text
from boltbox.detector.system.torch_file import as_input_error
from boltbox.detector.weights.trained import DETECTOR, Trained, is_published

MACHINES = ("GROUP_RANK", "NODE_RANK", "SLURM_NODEID")
GROUPS = ("seed_everything", "data", "model")  # of config.yaml that every command continues with
WEIGHT_OPTIONS = ("model.start.weights", "model.start.backbone_weights")  # weights to start from
NO_TRAINING = (
    "it holds no training to continue, like published weights and what `strip` writes; to start one"
    " from it, give --model.start.weights"
)
OF_THE_DATASET = ("split", "format")  # options of data that describe one dataset


@dataclass
class Start:
    """What a command starts from, as `--ckpt_path` and `--run` say.

    Attributes:
        run_folder: The one that was typed, also as --ckpt_path, or that a fit continues in; None:
            a new one is to be chosen.
        continues_run: Whether a fit continues in that folder.
        weights: A boltbox checkpoint or published weights, or an exported file. None: a fresh
            start, or the checkpoint is on another machine.
        options: Those that come with the weights, in groups: of their run (config.yaml or, if the
            checkpoint is not in a run folder, the copy in the checkpoint), else what the file says
            of its network.
        source: The file that the options are from.
    """

    run_folder: Path | None
    continues_run: bool = False
    weights: Trained | Exported | None = None
    options: dict[str, Any] = field(default_factory=dict)
    source: str = ""

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The training checkpoint that Lightning restores; None for weights without a training."""
        if isinstance(self.weights, Trained) and self.weights.training_content:
            return Checkpoint(self.weights.path, self.weights.training_content)
        return None


def find_start(line: CommandLine) -> Start:
    """Find and read what a command starts from: what --ckpt_path names or, without it, evaluations
    from the newest checkpoint.

    Args:
        line: The command line.

    Raises:
        InputError: There is no such file, it is damaged, or not for this command; or weights to
            start from are typed beside it.
    """
    start = Start(line.run_folder)
    ckpt_path = str(line.options.get("ckpt_path") or "")
    searched = line.run_folder  # where `last`, `best` and `auto` look; None: the most recent fit
    has_weights = any(line.options.get(name) for name in WEIGHT_OPTIONS)
    is_evaluation = line.command in ("validate", "test")
    if line.command == "fit":
        named = Path(ckpt_path)
        # after a crash torchrun starts this command again, perhaps before its first checkpoint
        restarted = _restarted_run(searched)
        if restarted and (has_checkpoints(restarted) or not ckpt_path):
            ckpt_path = "auto"
        elif ckpt_path and ckpt_path not in CKPT_WORDS and (named / "checkpoints").is_dir():
            ckpt_path = "last"  # of a run folder, which it continues in unless --run is another
            searched = named
            if start.run_folder is None or start.run_folder.resolve() == named.resolve():
                start.run_folder = named
        # both None: in the most recent fit, which is found below
        start.continues_run = ckpt_path in CKPT_WORDS and searched == start.run_folder
    elif is_evaluation and not (ckpt_path or has_weights or line.only_prints):
        ckpt_path = newest_checkpoint(searched)
    if not ckpt_path:
        return start
    start.weights = _read_weights(ckpt_path, searched, line.command)
    if start.weights is None:
        return start
    if start.continues_run and searched is None:
        start.run_folder = start.weights.path.parent.parent  # of RUN/checkpoints/last.ckpt
    # auto: torchrun restarts the command with its first line, which may name weights
    for name in WEIGHT_OPTIONS:
        if ckpt_path != "auto" and line.is_typed(name) and line.options[name]:
            raise InputError(
                f"--{name}: the weights come from --ckpt_path {ckpt_path}. Leave --{name} out"
            )
    start.options, source = _options_with(start.weights, line)
    unknown = start.options["data"].keys() - inspect.signature(DetectionData).parameters
    if unknown and not line.data_class:
        raise InputError(
            f"{source}: data.{min(unknown)} is an option of a custom data module: name it again, as"
            " in --data my_data.Photos"
        )
    start.source = str(source)
    return start


def _restarted_run(run: Path | None) -> Path | None:
    """The run, if `torchrun --max-restarts` has restarted this process after a crash, so that it
    continues from the last checkpoint of the run.

    The store of torchrun's agent still holds the addresses of the dead processes, and a process
    that reads one before it is overwritten cannot connect. So the process group of a restart gets
    its own store, at another port.

    Args:
        run: --run, the folder of the run.

    Raises:
        InputError: A restart would not find the checkpoints of the run.
    """
    if int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", 0)) and not run:
        raise InputError(
            "torchrun --max-restarts needs --run DIR, so that a restart finds the checkpoints of"
            " the run"
        )
    restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))
    if restarts and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"
        os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + restarts)
    return run if restarts else None


def _read_weights(ckpt_path: str, run: Path | None, command: str) -> Trained | Exported | None:
    """The weights; None: a fresh start, or this machine lacks the file that the first one has."""
    if ckpt_path not in CKPT_WORDS and format_of(ckpt_path):
        if command == "fit":
            raise InputError(
                f"ckpt_path {ckpt_path}: fit takes no exported file; give its checkpoint"
            )
        return load_exported(ckpt_path)
    if command == "fit" and is_published(ckpt_path) and not exists(ckpt_path):  # needs no download
        raise InputError(f"ckpt_path {ckpt_path}: {NO_TRAINING} {ckpt_path}")
    try:
        trained = find_trained(ckpt_path, run)
    except InputError:
        machines = [os.environ[name] for name in MACHINES if name in os.environ]
        # all processes of the first machine: Slurm lets the others wait for one that has ended
        is_first_machine = not machines or machines[0] == "0"
        if command != "fit" or is_first_machine:
            raise
        return None  # another machine has it; boltbox.callbacks.RunFolder compares all processes
    if trained and command == "fit" and trained.training_content is None:
        raise InputError(f"ckpt_path {trained.path}: {NO_TRAINING} {trained.path}")
    return trained


def _options_with(weights: Trained | Exported, line: CommandLine) -> tuple[dict[str, Any], Path]:
    """The options that come with weights, in groups, and the file that they are from: config.yaml
    of their run folder or, without one, the checkpoint, which has a copy; else what the file says
    of its network."""
    path = weights.path
    run = run_of(path)
    copy = None
    if isinstance(weights, Trained):
        if weights.content is None:  # published weights, wherever they lie
            run = None
        else:
            copy = weights.content.get("run")
    if run:
        source = run / "config.yaml"
        try:
            options = _selected(read_text(source, replace=True), source, start_of(run), line)
            if isinstance(weights, Exported):  # it may be of another size than the training
                options["data"]["image_size"] = weights.image_size
            return options, source
        except InputError as e:
            if copy is None:
                raise
            rank_zero_print(f"warning: {e}; using the copy in {path}")
    if copy is not None:
        with as_input_error(path, DETECTOR):
            text = copy["config"]
            folder = str(copy["folder"])
        return _selected(text, path, folder, line), path
    model = weights.arguments()
    del model["names"]
    data: dict[str, Any] = {"image_size": weights.image_size}
    if weights.tiles:
        data["tile_size"], data["tile_overlap"] = weights.tiles
    return {"model": model, "data": data}, path


def _selected(text: str, file: Path, folder: str, line: CommandLine) -> dict[str, Any]:
    """The options in a run's config.yaml that a command continues with. `fit`: all. Other commands:
    those of the data and the model, and the precision, which changes results: neither limits nor
    devices, loggers, callbacks.

    Args:
        text: Of config.yaml.
        file: That it is from.
        folder: That its paths start from.
        line: The command line.

    Raises:
        InputError: "FILE: ...": it holds something else.
    """
    options = parse_yaml(text, file)
    # `config` in it would make the parser read another file
    is_valid = isinstance(options, dict) and "config" not in options
    if is_valid:
        groups = [options.get(group) for group in ("data", "model", "trainer")]
        is_valid = all(isinstance(group, dict | None) for group in groups)
    if not is_valid:
        raise InputError(
            f"{file}: it does not hold the options of a run in groups, like data, model, trainer"
        )
    data = options.get("data") or {}
    if line.command != "fit":
        trainer = options.get("trainer") or {}
        options = {name: options[name] for name in GROUPS if name in options}
        options["trainer"] = {}
        if "precision" in trainer:
            options["trainer"]["precision"] = trainer["precision"]
        if line.options.get("data.dataset"):  # the run's options describe another one
            data = {name: value for name, value in data.items() if name not in OF_THE_DATASET}
    if data.get("dataset") not in (None, "demo"):
        data["dataset"] = path_from(folder, str(data["dataset"]))
    options["data"] = data
    return options
