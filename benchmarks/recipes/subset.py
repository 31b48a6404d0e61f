"""A data set with only some of its training images: what a user with few images has."""

from __future__ import annotations

import hashlib
from pathlib import Path

import yaml

from boltbox.detector.data.dataset_file import DatasetFile
from boltbox.detector.system.atomic_file import write_atomically
from boltbox.detector.system.errors import InputError


def write_subset(source: str, images: int, folder: Path) -> Path:
    """A data.yaml in `folder` with so many training images of a data set; the other splits are the
    whole set's.

    Which ones is decided by the hash of their names: always the same, and those of a smaller subset
    are in each larger one.

    Raises:
        InputError: fewer images than that, a format whose splits are no lists of images, or no val
            split of its own.
    """
    whole = DatasetFile.read(source)
    if whole.format not in ("yolo", "voc"):
        raise InputError(
            f"{source}: subsets of {whole.format} data sets are not made here; give yolo or voc"
        )
    if whole.share is not None:
        raise InputError(
            f"{source}: its val is a share of train (split); give a data set with a val of its own"
        )
    paths = [Path(path) for path in whole.open("train", strict=False).files]
    if len(paths) < images:
        raise InputError(f"{source}: it has {len(paths)} training images, fewer than {images}")
    chosen = sorted(
        sorted(paths, key=lambda path: hashlib.sha256(path.name.encode()).digest())[:images]
    )
    lines = [path.stem if whole.format == "voc" else str(path.resolve()) for path in chosen]
    splits = {
        name: [str(path.resolve()) for path in entries] for name, entries in whole.splits.items()
    }
    splits["train"] = [str((folder / "train.txt").resolve())]
    content = {
        "path": str(whole.root.resolve()),
        "format": whole.format,
        "names": whole.names,
        "keep_difficult": whole.keep_difficult,
        **splits,
    }
    write_atomically(
        folder / "train.txt", lambda file: file.write("\n".join([*lines, ""]).encode())
    )
    write_atomically(
        folder / "data.yaml", lambda file: file.write(yaml.safe_dump(content).encode())
    )
    return folder / "data.yaml"
