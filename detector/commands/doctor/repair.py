"""A repaired copy of a data set, in its own format; the original is only read."""

import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from boltbox.detector.commands.doctor.examine import open_splits
from boltbox.detector.commands.doctor.finding import Diagnosis
from boltbox.detector.commands.doctor.labels import PAST_FRAME
from boltbox.detector.commands.doctor.repaired_images import copy_images, kept_images, new_names
from boltbox.detector.data.dataset_file import DatasetFile
from boltbox.detector.data.datasets import DetectionDataset
from boltbox.detector.data.formats.format import Format, LabelObject, RepairedImage
from boltbox.detector.data.read_split import SplitReader
from boltbox.detector.data.report import Fault
from boltbox.detector.model.boxes import clip_xyxy
from boltbox.detector.system.atomic_file import write_atomically
from boltbox.detector.system.errors import InputError


def repair(file: DatasetFile, diagnosis: Diagnosis, folder: Path) -> list[str]:
    """Write what is sound of a data set into an empty or new folder.

    Images that cannot be used, copies of others and images that are left without any of their
    objects are left out, suffixes that lie and stems that clash get other names, the rest is copied
    byte for byte; objects that training would drop are dropped, duplicates too, boxes are clipped
    to the image, sizes and file names in annotations are corrected. What is in no split is not
    copied. A split that is the same as another on purpose (`val: images/train`) stays so.
    `data.yaml` is written last: a folder without it is not finished.

    Args:
        file: the data set. diagnosis: of its images, by `examine`. folder: gets data.yaml,
            repairs.txt, and the layout of the format: images/SPLIT with labels/SPLIT; JPEGImages,
            Annotations and ImageSets/Main; images/SPLIT with annotations/SPLIT.json.

    Returns:
        A line for each thing that was done, as in repairs.txt.

    Raises:
        InputError: the folder is not empty or lies within the data set.
    """
    datasets, unusable = open_splits(file)
    _check_folder(file, datasets, folder)
    done = [f"left out the split {finding.split}: {finding.problem}" for finding in unusable]
    done += [
        f"left out {f.file}: {f.problem}"
        for f in diagnosis.findings
        if f.kind == "orphan_label_file"
    ]
    same = _same_splits(file, list(datasets))
    own = {split: dataset for split, dataset in datasets.items() if split not in same}
    images = kept_images(own, diagnosis, done)
    forms = {split: file.form(split) for split in own}
    # images by their folder in the copy, which splits may share
    together: dict[str, dict[str, None]] = defaultdict(dict)
    for split, form in forms.items():
        together[form.image_folder] |= dict.fromkeys(images[split])
    names = {place: new_names(list(paths), diagnosis, done) for place, paths in together.items()}
    places: dict[str, str] = {}
    for split, form in forms.items():
        if not images[split]:
            done.append(f"left out the split {split}: it has no image that can be used")
            continue
        of_split = {path: names[form.image_folder][path] for path in images[split]}
        copy_images(of_split, folder / form.image_folder, diagnosis, done)
        repaired = _repaired(form, own[split], of_split, done)
        places[split], repairs = form.write(folder, repaired)
        done += repairs
    places |= {split: places[other] for split, other in same.items() if other in places}
    done = list(dict.fromkeys(done))
    write_atomically(
        folder / "repairs.txt",
        lambda out: out.write("".join(f"{line}\n" for line in done).encode(errors="replace")),
    )
    content: dict[str, Any] = {"path": ".", "format": file.format, **places, "names": file.names}
    content |= {key: True for key in ("keep_difficult", "keep_emptied") if getattr(file, key)}
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    write_atomically(folder / "data.yaml", lambda out: out.write(text.encode()))
    return done


def _repaired(
    form: Format, dataset: DetectionDataset, names: dict[str, str], done: list[str]
) -> list[RepairedImage]:
    """The images of a split that stay, with what is sound of their labels; what is done is added to
    `done`.

    Args:
        form: the split's, unused so far. names: of the images that stay (path -> name in the copy).
    """
    reader = SplitReader(form, dataset.names, strict=False)
    sizes = dict(zip(dataset.files, map(tuple, dataset.labels.sizes.tolist()), strict=True))
    seen: dict[str, set[tuple[Any, ...]]] = defaultdict(set)  # by image, which may be listed twice
    images = []
    for entry in form.find():
        if entry.image not in names:
            continue
        size = sizes[entry.image]
        labels, changed, objects = form.read(entry, *size), False, []
        for item in labels.objects if labels else ():
            why, box = _mended(item, reader.problem(entry, item), size, seen[entry.image])
            if why:
                done.append(f"{entry.file}, {item.place}: dropped ({why})")
            else:
                objects.append((item, box))
                done += [f"{entry.file}, {item.place}: box clipped to the image"] if box else []
            changed = changed or bool(why) or box is not None
        images.append(RepairedImage(entry, names[entry.image], size, labels, objects, changed))
    done += [f"{fault.file}, {fault.where}: dropped ({fault.problem})" for fault in form.faults]
    return images


def _mended(
    item: LabelObject, problem: str, size: tuple[int, int], seen: set[tuple[Any, ...]]
) -> tuple[str, Sequence[float] | None]:
    """Why an object is dropped, or an empty string; the box that it gets, None: as it is. seen:
    those of the image so far."""
    if problem:
        # it stays, marked as it is
        is_difficult = Fault("", "", problem).kind == "difficult_object"
        return "" if is_difficult else problem, None
    box = np.array(item.box, np.float64)
    inside = clip_xyxy(box, size[1], size[0])
    if (inside[2:] <= inside[:2]).any():
        return "the box lies outside the image", None
    clipped = tuple(map(float, inside)) if np.abs(box - inside).max() > PAST_FRAME else None
    key = (item.name, item.crowd, *(clipped or item.box))
    if key in seen:
        return "duplicate of an earlier object", None
    seen.add(key)
    return "", clipped


def _check_folder(file: DatasetFile, datasets: dict[str, DetectionDataset], folder: Path) -> None:
    """Raises InputError unless the folder is empty or new, and no part of the data set."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(
            f"{folder}: the repaired copy needs a new or an empty folder, and this is neither; give"
            " another"
        )
    wanted = Path(os.path.realpath(folder))
    parts = {Path(image).parent for dataset in datasets.values() for image in dataset.files}
    parts |= {file.root, *file.images, *(path for paths in file.splits.values() for path in paths)}
    for part in parts:
        if wanted.is_relative_to(os.path.realpath(part)):
            raise InputError(
                f"{folder}: this folder lies within the data set, in {part}; give one outside, the"
                " original stays as it is"
            )


def _same_splits(file: DatasetFile, splits: list[str]) -> dict[str, str]:
    """Splits that are given as the very same as an earlier one, and that one."""
    same: dict[str, str] = {}
    images = {split: (file.splits[split], file.part(split)) for split in splits}
    for k, split in enumerate(splits):
        earlier = [other for other in splits[:k] if images[other] == images[split]]
        same |= {split: earlier[0]} if earlier else {}
    return same
