"""What `--ckpt_path` brings: weights, and the options that a command takes over with them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from boltbox.detector.checkpoint.reader import find_trained
from boltbox.detector.checkpoint.relative_paths import PathOrigin
from boltbox.detector.checkpoint.runs import run_of
from boltbox.detector.commands.export.runtime import Exported, format_of, load_exported
from boltbox.detector.commands.parsing.table import LINKS
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.yaml_text import NO_YAML, load_yaml
from boltbox.detector.weights.trained import Trained, is_published

STARTS = ("weights", "backbone_weights")  # options of the model that are files to start from
# groups of config.yaml that a command takes besides
OWN = {"anchors": ("autoanchor",), "doctor": ("doctor",)}
OF_THE_DATA_SET = ("split", "format")  # options that say nothing of another one


@dataclass
class ResolvedCkptPath:
    """What `--ckpt_path` means, read: a command works with it instead of fresh weights.

    path: the file · trained: a checkpoint of ours, or YOLOv5's published weights · exported: an
    exported file · defaults: by flat name, the options that it brings · home: the run folder whose
    config.yaml counts · arguments: what is taken over from there, as words before those that the
    user typed · origin: where that run's relative paths start · paths: those that were taken over.
    """

    path: Path
    trained: Trained | None = None
    exported: Exported | None = None
    defaults: dict[str, Any] = field(default_factory=dict)
    home: Path | None = None
    arguments: list[str] = field(default_factory=list)
    origin: PathOrigin | None = None
    paths: list[str] = field(default_factory=list)

    @property
    def checkpoint(self) -> dict[str, Any] | None:
        """The content of the training checkpoint of ours, if it is one."""
        return self.trained.content if self.trained else None

    def release(self) -> dict[str, Any]:
        """The same, for the last time: nothing here holds its tensors any more."""
        content, self.trained = self.checkpoint, None
        assert content is not None
        return content

    @property
    def started_from(self) -> dict[str, Any]:
        """What the training of this checkpoint started from (STARTS), as its user gave it."""
        content = self.checkpoint or {}
        text = (content.get("run") or {}).get("config")
        options = _config(text, str(self.path)) if text else {}
        start = (options.get("model") or {}).get("start") or {}
        return {name: start.get(name) for name in STARTS}

    def line(self, command: str, takes_config: bool) -> str:
        """What is inherited from where."""
        own = "weights, model options" if self.checkpoint else "weights, size of the network"
        if not takes_config or self.home is None:
            return f"{command}: {own}, class names, image size from {self.path}"
        return (
            f"{command}: {own} from {self.path}; data options, precision from"
            f" {self.home / 'config.yaml'}"
        )

    def check_paths(self, dataset: str | None, members: list[str] | None) -> None:
        """Say of what was taken over where it should be, if it is not there.

        Raises:
            InputError: with the option that names another.
        """
        config = self.home and self.home / "config.yaml"
        given = [
            ("data.dataset", dataset, "FILE"),
            *(("model.ensemble", member, "'[FILE, ...]'") for member in members or []),
        ]
        for option, path, file in given:
            if self.origin and path in self.paths and not os.path.exists(path):
                raise InputError(
                    f"{option} {path}, which {config} names, is not"
                    f" there{self.origin.looked_in(path)}: give --{option} {file}"
                )


def resolve_ckpt_path(ckpt_path: str, run: Path | None, command: str) -> ResolvedCkptPath | None:
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
        if command == "fit":
            raise InputError(
                f"ckpt_path {ckpt_path}: an exported file cannot be trained; give its checkpoint"
            )
        if command in OWN:
            raise InputError(
                f"ckpt_path {ckpt_path}: an exported file does not say its anchors; give its"
                " checkpoint"
            )
        exported = load_exported(ckpt_path)
        return ResolvedCkptPath(
            exported.path,
            exported=exported,
            defaults=exported.defaults(),
            home=run_of(exported.path),
        )
    if is_published(ckpt_path) and command == "fit":
        raise InputError(
            f"ckpt_path {ckpt_path}: published weights hold no training to go on with; to start one"
            f" from them, give --model.start.weights {ckpt_path}"
        )
    trained = _find_trained(ckpt_path, run, command)
    if trained is None:
        return None
    defaults = {}
    for name, value in trained.arguments().items():
        if name in ("network", "loss", "optim", "start"):
            defaults |= {f"model.{name}.{option}": v for option, v in value.items()}
        elif f"model.{name}" not in LINKS:
            defaults[f"model.{name}"] = value
    defaults |= {"data.names": trained.names, "data.image_size": trained.image_size}
    return ResolvedCkptPath(
        trained.path,
        trained,
        defaults=defaults,
        home=run_of(trained.path) if trained.content else None,
    )


def inherit_config(resolved: ResolvedCkptPath, command: str, dataset: str | None = None) -> None:
    """Take over options of the run's config.yaml, into `arguments`. `fit` goes on with all of them;
    other commands take those of the data and the model, and the precision, which changes figures:
    neither limits nor devices, loggers, callbacks.

    Args:
        dataset: that the user has named; what describes another one is not taken over.

    Raises:
        InputError: the config.yaml cannot be read.
    """
    # a checkpoint says itself all that predictions need
    if resolved.home is None or command == "predict":
        return
    file = resolved.home / "config.yaml"
    options = _config(file.read_text(encoding="utf-8", errors="replace"), str(file))
    resolved.origin = PathOrigin.of(resolved.home)
    before, members = (
        (options.get("data") or {}).get("dataset"),
        (options.get("model") or {}).get("ensemble"),
    )
    if command == "fit":
        resolved.arguments = ["--config", str(file)]
    else:
        kept = {
            k: options[k]
            for k in ("seed_everything", "data", "model", *OWN.get(command, ()))
            if k in options
        }
        precision = (options.get("trainer") or {}).get("precision")
        if precision is not None:
            kept["trainer"] = {"precision": precision}
        if dataset and not (
            isinstance(before, str) and _folder(resolved.origin.find(before)) == _folder(dataset)
        ):
            kept["data"] = {
                k: v for k, v in (kept.get("data") or {}).items() if k not in OF_THE_DATA_SET
            }
        resolved.arguments = ["--config", yaml.safe_dump(kept)]
    if resolved.exported:  # it may be of another size than the training
        resolved.arguments += ["--data.image_size", str(resolved.defaults["data.image_size"])]
    if isinstance(before, str) and before != "demo":
        resolved.paths += [resolved.origin.find(before)]
        resolved.arguments += ["--data.dataset", resolved.paths[0]]
    if isinstance(members, list):
        found = [resolved.origin.find(str(member)) for member in members]
        resolved.paths += found
        resolved.arguments += ["--model.ensemble", yaml.safe_dump(found)]


def _folder(dataset: str) -> str:
    """Where a data set is, whether its folder or the data.yaml in it is named."""
    return os.path.realpath(dataset).removesuffix("/data.yaml")


def _config(text: str, source: str) -> dict[str, Any]:
    try:
        options = load_yaml(text)
    except NO_YAML as e:
        raise InputError(
            f"{source}: its configuration is not valid YAML ({' '.join(str(e).split())[:200]})"
        ) from None
    if isinstance(options, dict) and "config" in options:
        raise InputError(
            f"{source}: it refers to another file of options (config), which a run's never does;"
            " remove that"
        )
    groups = ("data", "model", "trainer")
    if not isinstance(options, dict) or not all(
        isinstance(options.get(g), dict | None) for g in groups
    ):
        raise InputError(
            f"{source}: its configuration is not a map of options in groups (data, model, trainer,"
            " ...)"
        )
    return options


def _find_trained(ckpt_path: str, run: Path | None, command: str) -> Trained | None:
    """A machine after the first that has no such file comes along to the place where all processes
    are told so (boltbox.callbacks.ConsistencyCheck): if it left here the others would wait for
    it."""
    machine = next(
        (
            int(os.environ[n])
            for n in ("GROUP_RANK", "NODE_RANK", "SLURM_NODEID")
            if n in os.environ
        ),
        0,
    )
    try:
        return find_trained(ckpt_path, run)
    except InputError:
        if command == "fit" and machine:
            return None
        raise
