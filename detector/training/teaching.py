"""A teacher labels the unlabelled images of a training before it begins."""

from __future__ import annotations

import filecmp
import shutil
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from hashlib import file_digest, sha256
from os.path import getsize, isfile, relpath
from pathlib import Path

import lightning as L
import numpy as np
from lightning.pytorch.utilities.seed import isolate_rng

from boltbox.detector.data.cache.labels import digest, states
from boltbox.detector.data.datamodule import DetectionData
from boltbox.detector.data.images import find_images
from boltbox.detector.data.inputs.sources import output_names
from boltbox.detector.data.taught import Taught
from boltbox.detector.inference.teacher import Teacher
from boltbox.detector.model.boxes import xyxy_to_cxcywhn
from boltbox.detector.system.atomic_file import write_atomically
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.rank_zero import rank_zero_print


def teach(trainer: L.Trainer) -> None:
    """Of a fit with unlabelled images write teacher/ of the run's folder, see `Taught`; one process
    does, the others wait. Where it is there already, nothing is labelled again: the run goes on.

    Raises:
        InputError: no image; one that is evaluated on too; a teacher that cannot teach these
            classes; or another teacher, or other images, than the run began with.
    """
    data = getattr(trainer, "datamodule", None)
    if not isinstance(data, DetectionData) or not data.unlabelled or trainer.state.fn != "fit":
        return
    folder = Path(trainer.default_root_dir) / "teacher"
    files = [str(path) for path in find_images(data.unlabelled)]
    if not files:
        raise InputError(f"data.unlabelled {data.unlabelled}: no image file there")
    root = data.unlabelled if Path(data.unlabelled).is_dir() else "."
    sizes = [size for size, _ in states(files)]
    images = digest([[relpath(file, root) for file in files], sizes])
    if (folder / "teacher.json").is_file():
        _refuse_others(Taught.read(folder), data.teacher, images, folder)
        return
    files = _without_known(files, data)
    with isolate_rng():
        device = trainer.strategy.root_device
        teacher = Teacher(data.teacher, data.file.names, device, data.workers, data.single_class)
        val = data.file.open("val", single_class=data.single_class)
        checksums = {file: _checksum(file) for file in data.teacher}
        believed = teacher.thresholds(val)
        taught = Taught(checksums, images, data.names, teacher.unknown, *believed)
        names = dict(zip(files, output_names(files), strict=True))
        shutil.rmtree(folder, ignore_errors=True)
        for picture, size, rows in teacher.look_at(files):
            rows = rows[rows[:, 4] >= taught.unsure]
            boxes = xyxy_to_cxcywhn(rows[:, :4], size[1], size[0])
            table = np.column_stack((rows[:, 5], boxes, rows[:, 4]))
            path = folder / "labels" / f"{names[picture.path]}.txt"
            write = partial(np.savetxt, X=table, fmt="%d" + " %.6g" * 5)
            write_atomically(path, write, sync=False)
            taught.files.append(picture.path)
            taught.sizes.append(size)
            taught.labels.append(names[picture.path])
    if not taught.files:
        raise InputError(f"data.unlabelled {data.unlabelled}: none of its images can be read")
    taught.write(folder)


def _checksum(path: str) -> str:
    with open(path, "rb") as file:
        return file_digest(file, sha256).hexdigest()


def _refuse_others(before: Taught, teacher: Sequence[str], images: str, folder: Path) -> None:
    """Raises InputError if a run was taught by others, or on other images. A teacher that is gone
    is not needed any more."""
    known = before.teacher.values()
    changed = [file for file in teacher if isfile(file) and _checksum(file) not in known]
    changed += ["the images of data.unlabelled"] if before.images != images else []
    if changed:
        raise InputError(
            f"{folder} was written by another teacher, or for other images; changed:"
            f" {', '.join(changed)}. Put that back, or begin a new run"
        )


def _without_known(files: list[str], data: DetectionData) -> list[str]:
    """The images that are not among those that are trained on with labels.

    Raises:
        InputError: one is evaluated on, or there is no other.
    """
    for split in ("val", "test"):
        if split in data.file.splits:
            found = same_content(files, data.file.open(split, single_class=data.single_class).files)
            for file, other in found.items():
                raise InputError(
                    f"data.unlabelled: {file} is an image of {split} too ({other}), which must not"
                    f" be trained on ({len(found)} in all); take it out of the folder"
                )
    known = same_content(files, data.file.open("train", single_class=data.single_class).files)
    if known:
        rank_zero_print(
            f"teacher: {len(known)} of {len(files)} images have labels, which they keep"
        )
    files = [file for file in files if file not in known]
    if not files:
        raise InputError(f"data.unlabelled {data.unlabelled}: all its images have labels")
    return files


def same_content(files: Sequence[str], others: Sequence[str]) -> dict[str, str]:
    """Of each file that has the bytes of another one, the other one."""
    of_size, found = defaultdict(list), {}
    for other in others:
        of_size[getsize(other)].append(other)
    for file in files:
        for other in of_size.get(getsize(file), ()):
            if filecmp.cmp(file, other, shallow=False):
                found[file] = other
    return found
