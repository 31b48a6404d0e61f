"""What `--ckpt_path` brings: weights, and the options that a command takes over with them."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from detector.checkpoint.file import load_checkpoint
from detector.checkpoint.relative_paths import Place
from detector.checkpoint.runs import resolve_checkpoint, run_of
from detector.checkpoint.trained import Trained, is_published, read_trained
from detector.commands.export.runtime import Exported, format_of, load_exported
from detector.commands.parsing.table import LINKS
from detector.system.errors import InputError
from detector.system.yaml_text import NO_YAML, load_yaml

OWN = {"anchors": ("autoanchor",), "doctor": ("doctor",)}  # groups of config.yaml that a command takes besides


@dataclass
class Brought:
    """What a command works with instead of fresh weights; one of three.

    path: the file · checkpoint: content of a training checkpoint · trained: YOLOv5's published weights · exported: an exported
    file · defaults: by flat name, the options that it brings · home: the run folder whose config.yaml counts · arguments: what
    is taken over from there, as words before those that the user typed · place: where that run's relative paths start · paths:
    those that were taken over.
    """

    path: Path
    checkpoint: dict[str, Any] | None = None
    trained: Trained | None = None
    exported: Exported | None = None
    defaults: dict[str, Any] = field(default_factory=dict)
    home: Path | None = None
    arguments: list[str] = field(default_factory=list)
    place: Place | None = None
    paths: list[str] = field(default_factory=list)

    @property
    def started_from(self) -> str | None:
        """The weights that the training of this checkpoint started from (model.weights), as its user gave them."""
        text = ((self.checkpoint or {}).get("run") or {}).get("config")
        options = _config(text, str(self.path)) if text else {}
        return (options.get("model") or {}).get("weights")

    def line(self, command: str, takes_config: bool) -> str:
        """What is inherited from where."""
        own = "weights, model options" if self.checkpoint else "weights, size of the network"
        if not takes_config or self.home is None:
            return f"{command}: {own}, class names, image size from {self.path}"
        return f"{command}: {own} from {self.path}; data options, precision from {self.home / 'config.yaml'}"

    def check_paths(self, dataset: str | None, members: list[str] | None) -> None:
        """Say of what was taken over where it should be, if it is not there.

        Raises:
            InputError: with the option that names another.
        """
        config = self.home and self.home / "config.yaml"
        given = [("data.dataset", dataset, "FILE"), *(("model.ensemble", member, "'[FILE, ...]'") for member in members or [])]
        for option, path, file in given:
            if self.place and path in self.paths and not os.path.exists(path):
                raise InputError(
                    f"{option} {path}, which {config} names, is not there{self.place.looked_in(path)}: give --{option} {file}"
                )


def bring(ckpt_path: str, run: Path | None, command: str, known: Callable[..., Any]) -> Brought | None:
    """Find and read what `--ckpt_path` means.

    Args:
        ckpt_path: see `resolve_checkpoint`; or an exported file, or YOLOv5's weights (.pt).
        run: folder of `last` and `best`.
        known: constructor whose options a checkpoint may bring.

    Returns:
        None: a fresh start (`auto`), or the checkpoint is on another machine.

    Raises:
        InputError: there is none, or it is damaged, or not for this command.
    """
    if format_of(ckpt_path):
        if command == "fit":
            raise InputError(f"ckpt_path {ckpt_path}: an exported file cannot be trained; give its checkpoint")
        if command in OWN:
            raise InputError(f"ckpt_path {ckpt_path}: an exported file does not say its anchors; give its checkpoint")
        exported = load_exported(ckpt_path)
        return Brought(exported.path, exported=exported, defaults=exported.defaults(), home=run_of(exported.path))
    if is_published(ckpt_path):
        if command == "fit":
            raise InputError(
                f"ckpt_path {ckpt_path}: published weights hold no training to go on with; to start one from them, give "
                f"--model.weights {ckpt_path}"
            )
        trained = read_trained(ckpt_path)
        options = {f"model.{key}": value for key, value in trained.options.items()}
        defaults = {**options, "data.names": trained.names, "data.image_size": trained.image_size}
        return Brought(trained.path, trained=trained, defaults=defaults)
    path = _checkpoint(ckpt_path, run, command)
    if path is None:
        return None
    content = load_checkpoint(path)
    saved = content["hyper_parameters"]
    taken = [k for k in inspect.signature(known).parameters if k in saved and f"model.{k}" not in LINKS]
    options = {f"model.{k}": saved[k] for k in taken}
    sizes = {"data.image_size": saved["image_size"]} if "image_size" in saved else {}
    return Brought(path, content, defaults={**options, "data.names": saved["names"], **sizes}, home=run_of(path))


def inherit(brought: Brought, command: str) -> None:
    """Take over options of the run's config.yaml, into `arguments`. `fit` goes on with all of them; other commands take those
    of the data and the model, and the precision, which changes figures: neither limits nor devices, loggers, callbacks.

    Raises:
        InputError: the config.yaml cannot be read.
    """
    if brought.home is None or command == "predict":  # a checkpoint says itself all that predictions need
        return
    file = brought.home / "config.yaml"
    options = _config(file.read_text(encoding="utf-8", errors="replace"), str(file))
    brought.place = Place.of(brought.home)
    if command == "fit":
        brought.arguments = ["--config", str(file)]
    else:
        kept = {k: options[k] for k in ("seed_everything", "data", "model", *OWN.get(command, ())) if k in options}
        precision = (options.get("trainer") or {}).get("precision")
        if precision is not None:
            kept["trainer"] = {"precision": precision}
        brought.arguments = ["--config", yaml.safe_dump(kept)]
    if brought.exported:  # it may be of another size than the training
        brought.arguments += ["--data.image_size", str(brought.defaults["data.image_size"])]
    dataset, members = (options.get("data") or {}).get("dataset"), (options.get("model") or {}).get("ensemble")
    if isinstance(dataset, str) and dataset != "demo":
        brought.paths += [brought.place.find(dataset)]
        brought.arguments += ["--data.dataset", brought.paths[0]]
    if isinstance(members, list):
        found = [brought.place.find(str(member)) for member in members]
        brought.paths += found
        brought.arguments += ["--model.ensemble", yaml.safe_dump(found)]


def _config(text: str, source: str) -> dict[str, Any]:
    try:
        options = load_yaml(text)
    except NO_YAML as e:
        raise InputError(f"{source}: its configuration is not valid YAML ({' '.join(str(e).split())[:200]})") from None
    groups = ("data", "model", "trainer")
    if not isinstance(options, dict) or not all(isinstance(options.get(g), dict | None) for g in groups):
        raise InputError(f"{source}: its configuration is not a map of options in groups (data, model, trainer, ...)")
    return options


def _checkpoint(ckpt_path: str, run: Path | None, command: str) -> Path | None:
    """The file that --ckpt_path means. A machine after the first that has none comes along to the place where all processes
    are told so (callbacks.ConsistencyCheck): if it left here the others would wait for it."""
    machine = next((int(os.environ[n]) for n in ("GROUP_RANK", "NODE_RANK", "SLURM_NODEID") if n in os.environ), 0)
    try:
        return resolve_checkpoint(ckpt_path, run)
    except InputError:
        if command == "fit" and machine:
            return None
        raise
