"""The images of a repaired copy: which ones stay, under which names."""

import os
import re
import shutil
from collections import Counter
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

import cv2
from PIL import Image

from boltbox.detector.commands.doctor.finding import Diagnosis
from boltbox.detector.commands.doctor.picture import END_OF_JPEG, LOST, SUFFIXES_OF
from boltbox.detector.data.datasets import DetectionDataset
from boltbox.detector.data.images import read_image
from boltbox.detector.model.boxes import clip_xyxy

# of copies across splits, the one that figures are measured on stays
_FIRST_CHOICE = ("test", "val", "train")


def kept_images(
    datasets: dict[str, DetectionDataset], diagnosis: Diagnosis, done: list[str]
) -> dict[str, list[str]]:
    """Image paths by split without those that cannot be used and without copies; what goes, and
    why, is added to `done`."""
    lost = {f.file: f.problem for f in diagnosis.findings if f.kind in LOST}
    images = {}
    for split, dataset in datasets.items():
        done += [f"left out {fault}" for fault in dataset.report.lost_images]
        unique = list(dict.fromkeys(dataset.files))
        done += [f"left out {path}: {lost[path]}" for path in unique if path in lost]
        outside = _outside(dataset)
        done += [
            f"left out {path}: its boxes all lie outside the image"
            for path in unique
            if path in outside - set(lost)
        ]
        images[split] = [path for path in unique if path not in lost and path not in outside]
    digests = _digests([path for paths in images.values() for path in paths])
    taken: dict[str, str] = {}  # content -> path, of the splits that come first
    for split in sorted(images, key=_FIRST_CHOICE.index):
        firsts: dict[str, str] = {}
        for path in images[split]:
            firsts.setdefault(digests[path], path)
        kept = [path for digest, path in firsts.items() if digest not in taken]
        if firsts and not kept:
            done.append(
                f"kept the images of {split}, although each is in another split too: nothing would"
                " be left"
            )
            kept = list(firsts.values())
        for path in sorted(set(images[split]) - set(kept)):
            other = taken.get(digests[path], firsts[digests[path]])
            done.append(f"left out {path} of {split}: the same image as {other}, which stays")
        images[split] = [path for path in images[split] if path in set(kept)]
        taken = {**firsts, **taken}
    return images


def _outside(dataset: DetectionDataset) -> set[str]:
    """Images with boxes of which none lies in the image: they would be left without any, and are no
    background."""
    found = set()
    for path, labels in zip(dataset.files, dataset.labels, strict=True):
        inside = clip_xyxy(labels.boxes, labels.width, labels.height)
        if len(inside) and (inside[:, 2:] <= inside[:, :2]).any(1).all():
            found.add(path)
    return found


def _digests(paths: Sequence[str]) -> dict[str, str]:
    """SHA-256 by path, of files that have their size in common with another; the others stand for
    themselves."""
    sizes = {path: os.path.getsize(path) for path in paths}
    times = Counter(sizes.values())
    return {
        path: sha256(Path(path).read_bytes()).hexdigest() if times[size] > 1 else path
        for path, size in sizes.items()
    }


def new_names(paths: Sequence[str], diagnosis: Diagnosis, done: list[str]) -> dict[str, str]:
    """For each image its path in the copy: as it is below the folder that they have in common, but
    with the suffix that its content asks for and, as labels go by the name without it, with a stem
    of its own, in UTF-8."""
    wrong = {f.file for f in diagnosis.findings if f.kind == "wrong_suffix"}
    common = Path(os.path.commonpath([Path(path).parent for path in paths])) if paths else Path()
    names: dict[str, str] = {}
    stems = set()
    for path in paths:
        # labels are looked for beside the last folder `images`, which has to be the copy's own
        folders = [part for part in Path(path).parent.relative_to(common).parts if part != "images"]
        suffix = _suffix(path) if path in wrong else Path(path).suffix
        given = Path(*folders, Path(path).stem).as_posix()
        stem = free = re.sub("[\udc80-\udcff]", "_", given)  # bytes that are not UTF-8
        number = 1
        while free in stems:
            number += 1
            free = f"{stem}_{number}"
        stems.add(free)
        names[path] = free + suffix
        if stem != given:
            done.append(f"{path}: named {names[path]}, as its name is not UTF-8")
        elif free != stem:
            done.append(
                f"{path}: named {names[path]}, as another image has its name but for the suffix"
            )
        elif suffix != Path(path).suffix:
            done.append(f"{path}: named {names[path]}, as its content is")
    return names


def _suffix(path: str) -> str:
    """As the content asks for; what has no suffix that training reads becomes a PNG."""
    with Image.open(path) as file:
        return SUFFIXES_OF.get(str(file.format), (".png",))[0]


def copy_images(names: dict[str, str], folder: Path, diagnosis: Diagnosis, done: list[str]) -> None:
    """Byte for byte, but for JPEGs without their end marker and for kinds of files that training
    does not read."""
    endless = {f.file for f in diagnosis.findings if f.kind == "no_end_marker"}
    wrong = {f.file for f in diagnosis.findings if f.kind == "wrong_suffix"}
    for path, name in names.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if path in endless:
            target.write_bytes(Path(path).read_bytes() + END_OF_JPEG)
            done.append(f"{path}: end marker added")
        elif path in wrong and _is_foreign(path):
            target.write_bytes(cv2.imencode(".png", read_image(path)[..., ::-1])[1].tobytes())
            done.append(f"{path}: written as PNG")
        else:
            shutil.copyfile(path, target)


def _is_foreign(path: str) -> bool:
    with Image.open(path) as file:
        return file.format not in SUFFIXES_OF
