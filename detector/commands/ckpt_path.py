"""What `--ckpt_path` brings: weights, and the options that a command takes over with them."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from boltbox.detector.checkpoint.reader import PARTS, find_trained
from boltbox.detector.checkpoint.runs import path_from, run_of, start_of
from boltbox.detector.data.datamodule import DetectionData
from boltbox.detector.inference.exported import Exported, format_of, load_exported
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.rank_zero import rank_zero_print
from boltbox.detector.system.text_file import parse_yaml, read_text
from boltbox.detector.weights.torch_file import refused_unless_valid
from boltbox.detector.weights.trained import DETECTOR, Trained, is_published

MACHINES = ("GROUP_RANK", "NODE_RANK", "SLURM_NODEID")
GROUPS = ("seed_everything", "data", "model")  # of config.yaml that all commands take over
OF_THE_DATA_SET = ("split", "format")  # options that do not describe another one


@dataclass
class CkptPath:
    """What `--ckpt_path` means, read: a command works with it instead of fresh weights.

    path: the file · options: that it brings, in groups: those of its run (config.yaml or, where the
    checkpoint lies elsewhere, its own copy of it), else what the file says of its network · source:
    the file that they are from · trained: a checkpoint of ours, or YOLOv5's published weights ·
    exported: an exported file.
    """

    path: Path
    options: dict[str, Any]
    source: Path
    trained: Trained | None = None
    exported: Exported | None = None

    @property
    def checkpoint(self) -> dict[str, Any] | None:
        """The content of the training checkpoint of ours, if it is one and whole."""
        content = self.trained.content if self.trained else None
        return content if content and content.keys() >= PARTS else None


def read_ckpt_path(
    ckpt_path: str, run: Path | None, command: str, dataset: str | None, own_data: bool
) -> CkptPath | None:
    """Find and read what `--ckpt_path` means.

    Args:
        ckpt_path: see `find_trained`; or an exported file.
        run: folder of `last` and `best`.
        dataset: that the user has named; what describes the run's is not taken over.
        own_data: a data module of the user's own is named.

    Returns:
        None: a fresh start (`auto`), or the checkpoint is on another machine.

    Raises:
        InputError: there is none, or it is damaged, or not for this command.
    """
    exported = trained = None
    if format_of(ckpt_path):
        if command in ("fit", "anchors"):
            raise InputError(
                f"ckpt_path {ckpt_path}: {command} takes no exported file; give its checkpoint"
            )
        exported = load_exported(ckpt_path)
        path, size, model = exported.path, exported.image_size, exported.arguments()
    else:
        if command == "fit" and is_published(ckpt_path):  # before it is fetched
            raise InputError(
                f"ckpt_path {ckpt_path}: published weights hold no training to continue; to start"
                f" one from them, give --model.start.weights {ckpt_path}"
            )
        try:
            trained = find_trained(ckpt_path, run)
        except InputError:
            machine = next((os.environ[name] for name in MACHINES if name in os.environ), "0")
            # the first machine has it: boltbox.callbacks.RunFolder ends all together
            if command != "fit" or machine == "0":
                raise
        if trained is None:
            return None
        path, size, model = trained.path, trained.image_size, trained.arguments()
        if command == "fit" and not (trained.content or {}).keys() >= PARTS:
            raise InputError(
                f"ckpt_path {path}: it holds no training to continue, like what `strip` writes; to"
                f" start one from it, give --model.start.weights {path}"
            )
    del model["names"]
    content = trained.content if trained else None
    home = run_of(path) if exported or content else None
    copy = content.get("run") if content else None
    source, options, start = path, dict[str, Any](), os.getcwd()
    if home:
        source, start = home / "config.yaml", start_of(home)
        try:
            options = _taken_over(read_text(source, replace=True), source, command, dataset)
        except InputError as e:
            if copy is None:
                raise
            rank_zero_print(f"warning: {e}; using the copy in {path}")
            source = path
    if copy is not None and not options:
        with refused_unless_valid(path, DETECTOR):
            text, start = copy["config"], str(copy["folder"])
        options = _taken_over(text, source, command, dataset)
    if not options:
        options = {"model": model, "data": {"image_size": size}}
        return CkptPath(path, options, path, trained, exported)
    data = options["data"]
    foreign = data.keys() - inspect.signature(DetectionData).parameters
    if foreign and not own_data:
        raise InputError(
            f"{source}: data.{min(foreign)} is an option of a data module of your own: name it"
            " again, as in --data my_data.Photos"
        )
    if data.get("dataset") not in (None, "demo"):
        data["dataset"] = path_from(start, str(data["dataset"]))
    if exported:  # it may be of another size than the training
        data["image_size"] = size
    return CkptPath(path, options, source, trained, exported)


def _taken_over(text: str, file: Path, command: str, dataset: str | None) -> dict[str, Any]:
    """Of the options in a run's config.yaml: `fit` continues with all; other commands take those of
    the data and the model, and the precision, which changes results: neither limits nor devices,
    loggers, callbacks.

    Raises:
        InputError: "FILE: ...": it holds something else.
    """
    options = parse_yaml(text, file)
    is_map = isinstance(options, Mapping) and "config" not in options
    if not is_map or not all(
        isinstance(options.get(group), dict | None) for group in ("data", "model", "trainer")
    ):
        raise InputError(
            f"{file}: it does not hold the options of a run in groups, like data, model, trainer"
        )
    data, trainer = options.get("data") or {}, options.get("trainer") or {}
    if command != "fit":
        options = {name: options[name] for name in GROUPS if name in options}
        options["trainer"] = {k: v for k, v in trainer.items() if k == "precision"}
        if dataset:
            data = {name: value for name, value in data.items() if name not in OF_THE_DATA_SET}
    return {**options, "data": data}
