"""What `--ckpt_path` brings: weights, and options of the run that they are from."""

from __future__ import annotations

import inspect
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from boltbox.detector.checkpoint.reader import WORDS, find_trained
from boltbox.detector.checkpoint.runs import path_from, run_of, start_of
from boltbox.detector.data.datamodule import DetectionData
from boltbox.detector.inference.exported import Exported, format_of, load_exported
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.rank_zero import rank_zero_print
from boltbox.detector.system.text_file import parse_yaml, read_text
from boltbox.detector.weights.torch_file import as_input_error
from boltbox.detector.weights.trained import DETECTOR, Trained, is_published

MACHINES = ("GROUP_RANK", "NODE_RANK", "SLURM_NODEID")
GROUPS = ("seed_everything", "data", "model")  # of config.yaml that every command continues with
OF_THE_DATASET = ("split", "format")  # options of data that describe one dataset


@dataclass
class CkptPath:
    """What `--ckpt_path` means, read: a command works with it instead of fresh weights.

    Attributes:
        path: The file.
        options: Those that it brings, in groups: of its run (config.yaml or, if the checkpoint is
            not in a run folder, the copy in the checkpoint), else what the file says of its
            network.
        source: The file that they are from.
        trained: A boltbox checkpoint, or published weights.
        exported: An exported file.
    """

    path: Path
    options: dict[str, Any]
    source: Path
    trained: Trained | None = None
    exported: Exported | None = None

    @property
    def checkpoint(self) -> dict[str, Any] | None:
        """The content of a checkpoint that a training can continue from."""
        return None if self.trained is None else self.trained.checkpoint


def read_ckpt_path(
    ckpt_path: str, run: Path | None, command: str, dataset: str | None, own_data: bool
) -> CkptPath | None:
    """Find and read what `--ckpt_path` means.

    Args:
        ckpt_path: See `find_trained`; or an exported file.
        run: Folder of `last` and `best`.
        command: That has the option.
        dataset: The data.dataset that was typed: the run's options that describe another one are
            left out.
        own_data: Whether a custom data module was typed.

    Returns:
        None: a fresh start (`auto`), or the checkpoint is on another machine.

    Raises:
        InputError: there is none, or it is damaged, or not for this command.
    """
    trained: Trained | None = None
    exported: Exported | None = None
    if ckpt_path not in WORDS and format_of(ckpt_path):
        if command == "fit":
            raise InputError(
                f"ckpt_path {ckpt_path}: fit takes no exported file; give its checkpoint"
            )
        exported = load_exported(ckpt_path)
        path = exported.path
        image_size = exported.image_size
        model = exported.arguments()
        saved = _options_of_run(path, None, command, dataset)
    else:
        trained = _read_trained(ckpt_path, run, command)
        if trained is None:
            return None
        path = trained.path
        image_size = trained.image_size
        model = trained.arguments()
        saved = None
        if trained.content is not None:
            saved = _options_of_run(path, trained.content, command, dataset)
    if saved is None:
        del model["names"]
        options = {"model": model, "data": {"image_size": image_size}}
        return CkptPath(path, options, path, trained, exported)
    data = saved.options["data"]
    unknown = data.keys() - inspect.signature(DetectionData).parameters
    if unknown and not own_data:
        raise InputError(
            f"{saved.source}: data.{min(unknown)} is an option of a custom data module: name it"
            " again, as in --data my_data.Photos"
        )
    if data.get("dataset") not in (None, "demo"):
        data["dataset"] = path_from(saved.folder, str(data["dataset"]))
    if exported:  # it may be of another size than the training
        data["image_size"] = image_size
    return CkptPath(path, saved.options, saved.source, trained, exported)


def _read_trained(ckpt_path: str, run: Path | None, command: str) -> Trained | None:
    """The weights; None: a fresh start, or this machine lacks the file that the first one has."""
    if command == "fit" and is_published(ckpt_path):  # before it is fetched
        raise InputError(
            f"ckpt_path {ckpt_path}: published weights hold no training to continue; to start one"
            f" from them, give --model.start.weights {ckpt_path}"
        )
    try:
        trained = find_trained(ckpt_path, run)
    except InputError:
        machines = [os.environ[name] for name in MACHINES if name in os.environ]
        is_first = not machines or machines[0] == "0"
        if command != "fit" or is_first:
            raise
        return None  # boltbox.callbacks.RunFolder ends all processes together
    if trained and command == "fit" and trained.checkpoint is None:
        raise InputError(
            f"ckpt_path {trained.path}: it holds no training to continue, like what `strip` writes;"
            f" to start one from it, give --model.start.weights {trained.path}"
        )
    return trained


class _SavedOptions(NamedTuple):
    """Options of a run, the file they are from, and the folder that their paths start from."""

    options: dict[str, Any]
    source: Path
    folder: str


def _options_of_run(
    path: Path, content: dict[str, Any] | None, command: str, dataset: str | None
) -> _SavedOptions | None:
    """From config.yaml of the run folder that a file is in or, without one, from the copy in a
    checkpoint's content; None: neither is there."""
    copy = content.get("run") if content else None
    run = run_of(path)
    if run:
        source = run / "config.yaml"
        try:
            text = read_text(source, replace=True)
            return _SavedOptions(_selected(text, source, command, dataset), source, start_of(run))
        except InputError as e:
            if copy is None:
                raise
            rank_zero_print(f"warning: {e}; using the copy in {path}")
    if copy is None:
        return None
    with as_input_error(path, DETECTOR):
        text = copy["config"]
        folder = str(copy["folder"])
    return _SavedOptions(_selected(text, path, command, dataset), path, folder)


def _selected(text: str, file: Path, command: str, dataset: str | None) -> dict[str, Any]:
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
    if command != "fit":
        trainer = options.get("trainer") or {}
        options = {name: options[name] for name in GROUPS if name in options}
        options["trainer"] = {}
        if "precision" in trainer:
            options["trainer"]["precision"] = trainer["precision"]
        if dataset:
            data = {name: value for name, value in data.items() if name not in OF_THE_DATASET}
    options["data"] = data
    return options
