"""What `--ckpt_path` brings: weights, and the options that a command takes over with them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from boltbox.detector.checkpoint.reader import find_trained
from boltbox.detector.checkpoint.runs import path_from, run_of
from boltbox.detector.inference.exported import Exported, format_of, load_exported
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.text_file import read_text
from boltbox.detector.system.yaml_text import parse_yaml
from boltbox.detector.weights.trained import Trained, is_published

MACHINES = ("GROUP_RANK", "NODE_RANK", "SLURM_NODEID")
GROUPS = ("seed_everything", "data", "model")  # of config.yaml that all commands take over
OF_THE_DATA_SET = ("split", "format")  # options that do not describe another one


@dataclass
class CkptPath:
    """What `--ckpt_path` means, read: a command works with it instead of fresh weights.

    path: the file · options: by flat name, those that it brings · trained: a checkpoint of ours, or
    YOLOv5's published weights · exported: an exported file.
    """

    path: Path
    options: dict[str, Any]
    trained: Trained | None = None
    exported: Exported | None = None

    @property
    def checkpoint(self) -> dict[str, Any] | None:
        """The content of the training checkpoint of ours, if it is one."""
        return self.trained.content if self.trained else None

    @property
    def home(self) -> Path | None:
        """The run folder whose config.yaml counts."""
        return run_of(self.path) if self.exported or self.checkpoint else None

    @property
    def source(self) -> str:
        """The file that options are inherited from."""
        return str(self.home / "config.yaml" if self.home else self.path)

    def inherit(self, command: str, dataset: str | None) -> dict[str, Any]:
        """Options of the run's config.yaml, in groups. `fit` continues with all of them; other
        commands take those of the data and the model, and the precision, which changes results:
        neither limits nor devices, loggers, callbacks.

        Args:
            dataset: that the user has named; what describes another one is not taken over.

        Raises:
            InputError: the config.yaml cannot be read.
        """
        if self.home is None:
            return {}
        options = read_config(self.home / "config.yaml")
        data, trainer = options.get("data") or {}, options.get("trainer") or {}
        before = path_from(self.home, str(data.get("dataset")))
        if command != "fit":
            options = {name: options[name] for name in GROUPS if name in options}
            options["trainer"] = {k: v for k, v in trainer.items() if k == "precision"}
            if dataset and _folder(before) != _folder(dataset):
                data = {name: value for name, value in data.items() if name not in OF_THE_DATA_SET}
        if data.get("dataset") not in (None, "demo"):
            data["dataset"] = before
        if self.exported:  # it may be of another size than the training
            data["image_size"] = self.options["data.image_size"]
        return options | {"data": data}


def read_ckpt_path(ckpt_path: str, run: Path | None, command: str) -> CkptPath | None:
    """Find and read what `--ckpt_path` means.

    Args:
        ckpt_path: see `find_trained`; or an exported file.
        run: folder of `last` and `best`.

    Returns:
        None: a fresh start (`auto`), or the checkpoint is on another machine.

    Raises:
        InputError: there is none, or it is damaged, or not for this command.
    """
    if format_of(ckpt_path):
        if command in ("fit", "anchors"):
            raise InputError(
                f"ckpt_path {ckpt_path}: {command} takes no exported file; give its checkpoint"
            )
        exported = load_exported(ckpt_path)
        network = {k: v for k, v in exported.metadata.model.items() if k != "backbone"}
        options = {f"model.network.{name}": value for name, value in network.items()}
        options["data.image_size"] = exported.image_size
        return CkptPath(exported.path, options, exported=exported)
    if is_published(ckpt_path) and command == "fit":
        raise InputError(
            f"ckpt_path {ckpt_path}: published weights hold no training to continue; to start one"
            f" from them, give --model.start.weights {ckpt_path}"
        )
    try:
        trained = find_trained(ckpt_path, run)
    except InputError:
        machine = next((os.environ[name] for name in MACHINES if name in os.environ), "0")
        # the first machine has it: boltbox.callbacks.RunFolder ends all processes together
        if command == "fit" and machine != "0":
            return None
        raise
    if trained is None:
        return None
    arguments = trained.arguments()
    options = {f"model.{name}": value for name, value in arguments.items() if name != "names"}
    options["data.image_size"] = trained.image_size
    return CkptPath(trained.path, options, trained)


def read_config(file: Path) -> dict[str, Any]:
    """The options of a run's config.yaml.

    Raises:
        InputError: it holds something else.
    """
    options = parse_yaml(read_text(file, replace=True), file)
    is_map = isinstance(options, Mapping) and "config" not in options
    if not is_map or not all(
        isinstance(options.get(group), dict | None) for group in ("data", "model", "trainer")
    ):
        raise InputError(
            f"{file}: it does not hold the options of a run in groups, like data, model, trainer"
        )
    return dict(options)


def _folder(dataset: str) -> str:
    """Where a data set is, whether its folder or the data.yaml in it is named."""
    return os.path.realpath(dataset).removesuffix("/data.yaml")
