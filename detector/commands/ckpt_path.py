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
from boltbox.detector.distributed.process_group import is_restart
from boltbox.detector.inference.exported import Exported
from boltbox.detector.inference.formats import format_of, load_exported
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.rank_zero import rank_zero_print
from boltbox.detector.system.text_file import parse_yaml, read_text
from boltbox.detector.system.torch_file import as_input_error
from boltbox.detector.weights.trained import DETECTOR, Trained, is_published

MACHINES = ("GROUP_RANK", "NODE_RANK", "SLURM_NODEID")
GROUPS = ("seed_everything", "data", "model")  # of config.yaml that every command continues with
STARTS = ("model.start.weights", "model.start.backbone_weights")  # weights to start from
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
        if isinstance(self.weights, Trained) and self.weights.checkpoint:
            return Checkpoint(self.weights.path, self.weights.checkpoint)
        return None


def find_start(line: CommandLine) -> Start:
    """Find and read what a command starts from.

    Args:
        line: The command line.

    Raises:
        InputError: There is no such file, it is damaged, or not for this command; or weights to
            start from are typed beside it.
    """
    ckpt_path, run = choose_ckpt_path(line)
    start = Start(line.run_folder)
    if not ckpt_path:
        return start
    # `fit --ckpt_path RUN` continues in that folder, unless --run is another
    is_own = True
    if run and start.run_folder:
        is_own = run.resolve() == start.run_folder.resolve()
    if is_own:  # run is None only if neither was typed
        start.run_folder = run
    is_word = ckpt_path in CKPT_WORDS  # last, best, auto
    start.continues_run = line.command == "fit" and is_word and is_own
    start.weights = _read_weights(ckpt_path, run, line.command)
    if start.weights is None:
        return start
    if start.continues_run and run is None:
        start.run_folder = start.weights.path.parent.parent  # of RUN/checkpoints/last.ckpt
    # auto: torchrun restarts the command with its first line, which may have such weights
    for name in STARTS:
        if ckpt_path != "auto" and line.is_typed(name) and line.options[name]:
            raise InputError(
                f"--{name}: the weights come from --ckpt_path {ckpt_path}. Leave --{name} out"
            )
    start.options, source = _options_with(start.weights, line)
    start.source = str(source)
    return start


def choose_ckpt_path(line: CommandLine) -> tuple[str, Path | None]:
    """The value of --ckpt_path, as typed or by default.

    Args:
        line: The command line.

    Returns:
        The value, "" for none, and the run folder where `last`, `best` and `auto` look; None: the
        most recent one of a fit. `fit` takes the last checkpoint of a run folder; evaluations, if
        none is given, the newest one.
    """
    ckpt_path = str(line.options.get("ckpt_path") or "")
    run_folder = line.run_folder
    if line.command == "fit":
        # after a crash torchrun starts this command again, perhaps before its first checkpoint
        restarted = run_folder if is_restart(run_folder) else None
        if restarted and (has_checkpoints(restarted) or not ckpt_path):
            return "auto", restarted
        named = Path(ckpt_path)
        if ckpt_path and ckpt_path not in CKPT_WORDS and (named / "checkpoints").is_dir():
            return "last", named
        return ckpt_path, run_folder
    has_start = any(line.options.get(name) for name in STARTS)
    is_evaluation = line.command in ("validate", "test")
    if is_evaluation and not ckpt_path and not has_start and not line.only_prints:
        ckpt_path = newest_checkpoint(run_folder)
    return ckpt_path, run_folder


def _read_weights(ckpt_path: str, run: Path | None, command: str) -> Trained | Exported | None:
    """The weights; None: a fresh start, or this machine lacks the file that the first one has."""
    if ckpt_path not in CKPT_WORDS and format_of(ckpt_path):
        if command == "fit":
            raise InputError(
                f"ckpt_path {ckpt_path}: fit takes no exported file; give its checkpoint"
            )
        return load_exported(ckpt_path)
    if command == "fit" and is_published(ckpt_path) and not exists(ckpt_path):  # not fetched for it
        raise InputError(
            f"ckpt_path {ckpt_path}: published weights hold no training to continue; to start one"
            f" from them, give --model.start.weights {ckpt_path}"
        )
    try:
        trained = find_trained(ckpt_path, run)
    except InputError:
        machines = [os.environ[name] for name in MACHINES if name in os.environ]
        is_first_machine = not machines or machines[0] == "0"
        if command != "fit" or is_first_machine:
            raise
        return None  # boltbox.callbacks.RunFolder ends all processes together
    if trained and command == "fit" and trained.checkpoint is None:
        raise InputError(
            f"ckpt_path {trained.path}: it holds no training to continue, like what `strip` writes;"
            f" to start one from it, give --model.start.weights {trained.path}"
        )
    return trained


def _options_with(weights: Trained | Exported, line: CommandLine) -> tuple[dict[str, Any], Path]:
    """The options that come with weights, in groups, and the file that they are from."""
    saved = _options_of_run(weights, line)
    if saved is None:
        model = weights.arguments()
        del model["names"]
        data: dict[str, Any] = {"image_size": weights.image_size}
        if weights.tiles:
            data["tile_size"], data["tile_overlap"] = weights.tiles
        return {"model": model, "data": data}, weights.path
    options, source, folder = saved
    data = options["data"]
    unknown = data.keys() - inspect.signature(DetectionData).parameters
    if unknown and not line.data_class:
        raise InputError(
            f"{source}: data.{min(unknown)} is an option of a custom data module: name it again, as"
            " in --data my_data.Photos"
        )
    if data.get("dataset") not in (None, "demo"):
        data["dataset"] = path_from(folder, str(data["dataset"]))
    if isinstance(weights, Exported):  # it may be of another size than the training
        data["image_size"] = weights.image_size
    return options, source


def _options_of_run(
    weights: Trained | Exported, line: CommandLine
) -> tuple[dict[str, Any], Path, str] | None:
    """The options of the run that a file is from, the file that they are from (config.yaml of its
    run folder or, without one, the checkpoint, which has a copy), and the folder that their paths
    start from; None: there are neither, or these are published weights."""
    path = weights.path
    copy = None
    if isinstance(weights, Trained):
        if weights.content is None:
            return None
        copy = weights.content.get("run")
    run = run_of(path)
    if run:
        source = run / "config.yaml"
        try:
            text = read_text(source, replace=True)
            return _selected(text, source, line), source, start_of(run)
        except InputError as e:
            if copy is None:
                raise
            rank_zero_print(f"warning: {e}; using the copy in {path}")
    if copy is None:
        return None
    with as_input_error(path, DETECTOR):
        text = copy["config"]
        folder = str(copy["folder"])
    return _selected(text, path, line), path, folder


def _selected(text: str, file: Path, line: CommandLine) -> dict[str, Any]:
    """The options in a run's config.yaml that a command continues with. `fit`: all. Other commands:
    those of the data and the model, and the precision, which changes results: neither limits nor
    devices, loggers, callbacks.

    Raises:
        InputError: "FILE: ...": it holds something else.
    """
    options = parse_yaml(text, file)
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
    options["data"] = data
    return options
