"""A repaired copy of a data set, in its own format; the original is only read."""

import os
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from detector.commands.doctor.examine import open_splits
from detector.commands.doctor.finding import Diagnosis
from detector.commands.doctor.repaired_coco import CocoCopy
from detector.commands.doctor.repaired_images import copy_images, kept_images, new_names
from detector.commands.doctor.repaired_voc import write_voc
from detector.commands.doctor.repaired_yolo import write_yolo
from detector.data.dataset_file import DatasetFile
from detector.data.datasets import DetectionDataset
from detector.system.atomic_file import write_atomically
from detector.system.errors import InputError


def repair(file: DatasetFile, diagnosis: Diagnosis, folder: Path) -> list[str]:
    """Write what is sound of a data set into an empty or new folder.

    Images that cannot be used, copies of others and images that are left without any of their objects are left out, suffixes
    that lie and stems that clash get other names, the rest is copied byte for byte; objects that training would drop are
    dropped, duplicates too, boxes are clipped to the image, sizes and file names in annotations are corrected. What is in no
    split is not copied. A split that is the same as another on purpose (`val: images/train`) stays so. `data.yaml` is written
    last: a folder without it is not finished.

    Args:
        file: the data set. diagnosis: of its images, by `examine`. folder: gets data.yaml, repairs.txt, and the layout of the
            format: images/SPLIT with labels/SPLIT; JPEGImages, Annotations and ImageSets/Main; images/SPLIT with
            annotations/SPLIT.json.

    Returns:
        A line for each thing that was done, as in repairs.txt.

    Raises:
        InputError: the folder is not empty or lies within the data set.
    """
    datasets, unusable = open_splits(file)
    _check_folder(file, datasets, folder)
    done = [f"left out the split {finding.split}: {finding.problem}" for finding in unusable]
    done += [f"left out {f.file}: {f.problem}" for f in diagnosis.findings if f.kind == "orphan_label_file"]
    same = _same_splits(file, list(datasets))
    own = {split: dataset for split, dataset in datasets.items() if split not in same}
    images = kept_images(own, diagnosis, done)
    names: dict[str, dict[str, str]] = {}
    if file.format == "voc":  # all splits in one folder
        together = new_names(list(dict.fromkeys(chain(*images.values()))), diagnosis, done)
        names = {split: {path: together[path] for path in paths} for split, paths in images.items()}
    else:
        names = {split: new_names(paths, diagnosis, done) for split, paths in images.items()}
    places: dict[str, str] = {}
    for split, dataset in own.items():
        if not names[split]:
            done.append(f"left out the split {split}: it has no image that can be used")
            continue
        image_folder = folder / "JPEGImages" if file.format == "voc" else folder / "images" / split
        copy_images(names[split], image_folder, diagnosis, done)
        if file.format == "yolo":
            places[split] = write_yolo(split, dataset, names[split], folder, done)
        elif file.format == "voc":
            places[split] = write_voc(split, dataset, names[split], folder, done)
        else:
            places[split] = CocoCopy(file, split, dataset, names[split], done).write(folder, split)
    places |= {split: places[other] for split, other in same.items() if other in places}
    done = list(dict.fromkeys(done))
    write_atomically(
        folder / "repairs.txt", lambda out: out.write("".join(f"{line}\n" for line in done).encode(errors="replace"))
    )
    content: dict[str, Any] = {"path": ".", "format": file.format, **places, "names": file.names}
    content |= {key: True for key in ("keep_difficult", "keep_emptied") if getattr(file, key)}
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    write_atomically(folder / "data.yaml", lambda out: out.write(text.encode()))
    return done


def _check_folder(file: DatasetFile, datasets: dict[str, DetectionDataset], folder: Path) -> None:
    """Raises InputError unless the folder is empty or new, and no part of the data set."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder}: the repaired copy needs a new or an empty folder, and this is neither; give another")
    wanted = Path(os.path.realpath(folder))
    parts = {Path(image).parent for dataset in datasets.values() for image in dataset.files}
    parts |= {file.root, *file.images, *(path for paths in file.splits.values() for path in paths)}
    for part in parts:
        if wanted.is_relative_to(os.path.realpath(part)):
            raise InputError(
                f"{folder}: this folder lies within the data set, in {part}; give one outside, the original stays as it is"
            )


def _same_splits(file: DatasetFile, splits: list[str]) -> dict[str, str]:
    """Splits that are given as the very same as an earlier one, and that one."""
    same: dict[str, str] = {}
    images = {split: (file.splits[split], file.part(split)) for split in splits}
    for k, split in enumerate(splits):
        earlier = [other for other in splits[:k] if images[other] == images[split]]
        same |= {split: earlier[0]} if earlier else {}
    return same
