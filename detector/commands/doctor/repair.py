"""A repaired copy of a data set, in its own format; the original is only read."""

import os
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from hashlib import sha256
from itertools import chain, combinations, count
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import yaml
from PIL import Image

from boltbox.detector.commands.doctor.finding import Diagnosis
from boltbox.detector.commands.doctor.image_file import END_OF_JPEG, LOST, SUFFIXES_OF
from boltbox.detector.commands.doctor.labels import PAST_FRAME
from boltbox.detector.data.dataset_file import DatasetFile
from boltbox.detector.data.datasets import DetectionDataset
from boltbox.detector.data.formats.format import Format, LabelObject, RepairedImage
from boltbox.detector.data.images import read_image
from boltbox.detector.data.read_split import SplitReader
from boltbox.detector.data.report import Fault
from boltbox.detector.model.boxes import clip_xyxy
from boltbox.detector.system.atomic_file import write_atomically
from boltbox.detector.system.errors import InputError

# of copies across splits, the one that is evaluated on stays
_FIRST_CHOICE = ("test", "val", "train")


def repair(
    file: DatasetFile, datasets: Mapping[str, DetectionDataset], diagnosis: Diagnosis, folder: Path
) -> list[str]:
    """Write what is sound of a data set into an empty or new folder.

    Left out are images that cannot be used, copies of others, images without any of their objects
    left, objects that training would drop, and duplicates. Boxes are clipped to the image, sizes
    and file names in annotations corrected, wrong suffixes and names that clash changed; the rest
    is copied byte for byte. What is in no split is not copied. A split that is the same as another
    on purpose (`val: images/train`) stays so. `data.yaml` is written last: a folder without it is
    not complete.

    Args:
        file: the data set. datasets: its splits, from `open_splits`. diagnosis: of these.
        folder: gets data.yaml, repairs.txt, and the layout of the format.

    Returns:
        A line for each repair, as in repairs.txt.

    Raises:
        InputError: the folder is not empty or lies within the data set.
    """
    _check_folder(file, datasets, folder)
    left_out = ("unusable_split", "orphan_label_file")
    done = [f"left out {f}" for f in diagnosis.findings if f.kind in left_out]
    same = _same_splits(file, list(datasets))
    own = {split: dataset for split, dataset in datasets.items() if split not in same}
    forms = {split: file.form(split) for split in own}
    images: dict[str, list[RepairedImage]] = {}
    for split, kept in _kept(own, diagnosis, done).items():
        images[split] = _repaired(forms[split], own[split], kept, file.keep_emptied, done)
    for place in {form.image_folder for form in forms.values()}:
        of_splits = [images[split] for split, form in forms.items() if form.image_folder == place]
        _copy_images([*chain.from_iterable(of_splits)], folder / place, diagnosis, done)
    places: dict[str, str] = {}
    for split, form in forms.items():
        if images[split]:
            places[split], repairs = form.write(folder, images[split])
            done += repairs
        else:
            done.append(f"left out the split {split}: it has no image that can be used")
    places |= {split: places[other] for split, other in same.items() if other in places}
    content: dict[str, Any] = {"path": ".", "format": file.format, **places, "names": file.names}
    content |= {key: True for key in ("keep_difficult", "keep_emptied") if getattr(file, key)}
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    done = list(dict.fromkeys(done))
    listed = "".join(f"{line}\n" for line in done).encode(errors="replace")
    write_atomically(folder / "repairs.txt", lambda out: out.write(listed))
    write_atomically(folder / "data.yaml", lambda out: out.write(text.encode()))
    return done


def _check_folder(
    file: DatasetFile, datasets: Mapping[str, DetectionDataset], folder: Path
) -> None:
    """Raises InputError unless the folder is empty or new, and no part of the data set."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder}: the repaired copy needs a new or an empty folder")
    target = Path(os.path.realpath(folder))
    parts = {Path(image).parent for dataset in datasets.values() for image in dataset.files}
    for part in {file.root, *parts}:
        if target.is_relative_to(os.path.realpath(part)):
            raise InputError(
                f"{folder}: this folder lies within the data set, in {part}; give one outside, the"
                " original stays as it is"
            )


def _same_splits(file: DatasetFile, splits: Sequence[str]) -> dict[str, str]:
    """Splits that are given as the very same as an earlier one, and that one."""
    same: dict[str, str] = {}
    for earlier, later in combinations(splits, 2):
        if (file.splits[earlier], file.part(earlier)) == (file.splits[later], file.part(later)):
            same.setdefault(later, same.get(earlier, earlier))
    return same


def _kept(
    datasets: Mapping[str, DetectionDataset], diagnosis: Diagnosis, done: list[str]
) -> dict[str, set[str]]:
    """Image paths by split without those that cannot be used and without copies; what is left out,
    and why, is added to `done`."""
    lost = {f.file: f.problem for f in diagnosis.findings if f.kind in LOST}
    images: dict[str, set[str]] = {}
    taken: dict[str, str] = {}  # content -> path
    for split in sorted(datasets, key=_FIRST_CHOICE.index):
        done += [f"left out {fault}" for fault in datasets[split].report.lost_images]
        images[split], copies = set(), {}
        for path in dict.fromkeys(datasets[split].files):
            if path in lost:
                done.append(f"left out {path}: {lost[path]}")
                continue
            digest = sha256(Path(path).read_bytes()).hexdigest()
            if first := taken.get(digest):
                copies[path] = f"left out {path} of {split}: the same image as {first}, which stays"
            else:
                taken[digest] = path
                images[split].add(path)
        if copies and not images[split]:
            images[split] = set(copies)
            done.append(f"kept the images of {split}, although each is in another split too")
        else:
            done += copies.values()
    return images


def _copy_images(
    images: Sequence[RepairedImage], folder: Path, diagnosis: Diagnosis, done: list[str]
) -> None:
    """Copy images byte for byte, but for JPEGs without their end marker and kinds of files that
    training does not read. Each gets its `name`, a path below `folder`: as it is below the folder
    that all have in common, but with the suffix that its content asks for and, as labels go by the
    name without it, with a stem of its own, in UTF-8."""
    kinds = {(f.kind, f.file) for f in diagnosis.findings}
    paths = sorted({image.entry.image for image in images})
    common = Path(os.path.commonpath([Path(path).parent for path in paths])) if paths else Path()
    names: dict[str, str] = {}
    stems = set()
    for path in paths:
        data, suffix = Path(path).read_bytes(), Path(path).suffix
        if ("no_end_marker", path) in kinds:
            data += END_OF_JPEG
            done.append(f"{path}: end marker added")
        if ("wrong_suffix", path) in kinds:
            with Image.open(path) as content:
                suffix = SUFFIXES_OF.get(str(content.format), ("",))[0]
        if not suffix:
            suffix, data = ".png", cv2.imencode(".png", read_image(path)[..., ::-1])[1].tobytes()
            done.append(f"{path}: written as PNG")
        # labels are looked for beside the last folder `images`, which has to be the copy's own
        folders = [part for part in Path(path).parent.relative_to(common).parts if part != "images"]
        given = Path(*folders, Path(path).stem).as_posix()
        stem = re.sub("[\udc80-\udcff]", "_", given)  # bytes that are not UTF-8
        free = next(s for s in chain([stem], (f"{stem}_{k}" for k in count(2))) if s not in stems)
        stems.add(free)
        names[path] = free + suffix
        if names[path] != given + Path(path).suffix:
            done.append(f"{path}: named {names[path]}")
        target = folder / names[path]
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    for image in images:
        image.name = names[image.entry.image]


def _repaired(
    form: Format,
    dataset: DetectionDataset,
    kept: set[str],
    keep_emptied: bool,
    done: list[str],
) -> list[RepairedImage]:
    """The images of a split that stay, without a name, with what is sound of their labels; what is
    repaired is added to `done`.

    Args:
        form: the split's, unused so far. kept: paths of images. keep_emptied: so are those of
            which no object stays; they are no background.
    """
    reader = SplitReader(form, dataset.names, strict=False)
    sizes = dict(zip(dataset.files, map(tuple, dataset.labels.sizes.tolist()), strict=True))
    seen: dict[str, set[tuple[Any, ...]]] = defaultdict(set)  # by image, which may be listed twice
    images = []
    for entry in form.find():
        if entry.image not in kept:
            continue
        size = sizes[entry.image]
        try:
            labels, changed, objects = form.read(entry, *size), False, []
        except InputError:  # listed again, in a way that cannot be used
            continue
        for item in labels.objects if labels else ():
            why, box = _mended(item, reader.problem(entry, item), size, seen[entry.image])
            if why:
                done.append(f"{entry.file}, {item.place}: dropped ({why})")
            else:
                objects.append((item, box))
                done += [f"{entry.file}, {item.place}: box clipped to the image"] if box else []
            changed = changed or bool(why) or box is not None
        if changed and not objects and not keep_emptied:
            done.append(f"left out {entry.image}: none of its boxes lies in the image")
        else:
            images.append(RepairedImage(entry, "", size, labels, objects, changed))
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
