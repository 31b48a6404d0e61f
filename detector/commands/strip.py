"""The command `strip`: shrink a checkpoint for inference."""

import shutil
from pathlib import Path

import torch

from boltbox.detector.checkpoint.reader import find_trained
from boltbox.detector.data.dataset_file import DatasetFile
from boltbox.detector.system.atomic_file import write_atomically
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.rank_zero import print_fact
from boltbox.detector.weights.trained import TENSORS

KEPT = (
    "hyper_parameters",
    "image_size",
    "thresholds",
    "tiles",
    "origins",
    "epoch",
    "global_step",
    "pytorch-lightning_version",
)


def strip(checkpoint: str, out: Path | None = None, names: str | None = None) -> None:
    """Write a checkpoint without what only a training needs: its moving average becomes the
    network, names and options stay.

    Predictions and metrics are the same. No training continues from it; one starts from it with
    --model.start.weights.

    Args:
        checkpoint: last, best (both of the most recent fit), a run folder (its best), or a
            checkpoint.
        out: File to write; default: NAME_stripped.ckpt beside the checkpoint.
        names: New names of the classes, in the same order: a data.yaml.
    """
    trained = find_trained(checkpoint, None)
    if trained is None or trained.content is None:
        raise InputError(f"{checkpoint}: nothing to strip; give a checkpoint of a training")
    path = trained.path
    print_fact("weights", path)
    target = path.with_name(f"{path.stem}_stripped.ckpt") if out is None else out
    if target.suffix != ".ckpt" or target.exists():
        raise InputError(f"out {target}: it exists, or does not end in .ckpt; give another --out")
    content = {key: trained.content[key] for key in KEPT if key in trained.content}
    if names:
        renamed = DatasetFile.read(names).names
        if len(renamed) != len(trained.names):
            raise InputError(
                f"names {names}: {len(renamed)} classes, but {path} has {len(trained.names)}:"
                f" {trained.names}. Give one name for each class, in this order"
            )
        content["hyper_parameters"] |= {"names": renamed}
    state = {f"network.{name}": tensor for name, tensor in trained.tensors.items()}
    content["state_dict"] = state
    write_atomically(target, lambda file: torch.save(content, file))
    weights = path / TENSORS if path.is_dir() else path  # of save_pretrained
    shutil.copystat(weights, target)  # so that its run does not become the most recent one
    before = weights.stat().st_size / 1e6
    after = target.stat().st_size / 1e6
    print_fact("file", f"{target} ({before:.1f} MB -> {after:.1f} MB)")
