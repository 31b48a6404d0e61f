"""Folders as labelling tools export them -> the data.yaml that one would write for each.

A folder is recognised by the names of its files and folders; of the files only lists of class names
are opened.
"""

import os
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from operator import itemgetter
from os.path import isdir, isfile
from pathlib import Path
from typing import Any

from boltbox.detector.data.file_list import FileList, find_images
from boltbox.detector.data.formats.format import SPLIT_NAMES, PerImageFormat, Split
from boltbox.detector.data.formats.voc_xml import IMAGE_FOLDERS, VocXml
from boltbox.detector.data.formats.yolo_txt import DotaText, YoloText
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.rank_zero import program
from boltbox.detector.system.text_file import parse_yaml, read_text

DESCRIPTIONS = ("data.yaml", "data.yml", "dataset.yaml")  # the last one is FiftyOne's
COCO = ("_annotations.coco.json", "instances_*.json", "labels.json", "result.json")
CONVERTED = "CVAT for images (xml), labelme or VIA (json)"  # by a command
LABELS = {".txt", ".xml", ".json", ".jsonl", ".csv"}  # suffixes of label files
MOST_ASKED = 1000  # images of a folder: those without objects may have no label file
PER_IMAGE: dict[str, type[PerImageFormat]] = {"yolo": YoloText, "voc": VocXml, "dota": DotaText}
CLASS_NAMES = ("classes.txt", "obj.names", "_darknet.labels", "notes.json")
Content = dict[str, Any]


def describe(root: Path) -> Content:
    """The keys of a data.yaml for a folder without one.

    Args:
        root: the folder.

    Returns:
        Paths are relative to the folder. `names` is left out if the format finds them in the
        labels.

    Raises:
        InputError: there are no labels that boltbox reads; with the data.yaml to write.
    """
    check_no_run(root)
    for content in _descriptions(root):
        if content:
            return content
    images = find_images(root)
    if images and not any(file.suffix.lower() in LABELS for file in root.rglob("*")):
        raise InputError(
            f"data.dataset {root}: {len(images)} images without labels. Label them first, with"
            " Label Studio or CVAT (docs/data.md)"
        )
    folders = sorted({os.path.relpath(image.parent, root) for image in images})
    where = f"its images are in {', '.join(folders)}" if folders else "there is no image in it"
    raise InputError(
        f"data.dataset {root}: no supported labels (docs/data.md); write"
        f" {root / DESCRIPTIONS[0]}: {{train: FOLDER, val: FOLDER, names: [NAME, ...]}}; {where};"
        f" {conversion(root)}"
    )


def check_no_run(root: Path) -> None:
    """Raises InputError for the folder of a run, where `predict` draws boxes into the images."""
    machine = root / "machine.json"
    if isfile(machine) and '"command"' in read_text(machine, replace=True):  # no labels of labelme
        raise InputError(
            f"{root}: the folder of a run, whose images have boxes drawn into them; give the folder"
            " of the images that were predicted on (docs/classes.md, Pseudo-labels)"
        )


def split_named(path: str) -> str:
    """The split that a path names, as `annotations/instances_val2017.json` does; train, if it names
    none."""
    words = re.split(r"[^a-z]+", path.lower())
    for split, names in SPLIT_NAMES.items():
        if not set(names).isdisjoint(words):
            return split
    return "train"


def conversion(root: Path) -> str:
    """The command for a folder of labels that only another package reads."""
    return f"labels of {CONVERTED}: {program()} convert {root}"


def _descriptions(root: Path) -> Iterator[Content]:
    """A description per format, empty if the folder has no such labels."""
    files = FileList()
    folders = [root]
    for names in SPLIT_NAMES.values():
        folders += _named(root, names, files)
    yield _of_files(root, folders + [root / "annotations"], COCO, "coco")
    yield _of_files(root, folders, ["metadata.jsonl"], "metadata")
    yield _of_files(root, folders, ["_annotations.csv"], "csv")
    for format in ("voc", "yolo", "dota"):
        yield _of_image_folders(root, format, files)


def _of_files(root: Path, folders: list[Path], names: Sequence[str], format: str) -> Content:
    """Label files of many images, each of the split that its path names."""
    content: Content = {}
    files: list[Path] = []
    for folder in folders:
        for name in names:
            files += folder.glob(name)
    for file in sorted(files):
        path = str(file.relative_to(root))
        content.setdefault(split_named(path), []).append(path)
    return {"format": format} | content if content else {}


def labels_beside(source: Path, root: Path, files: FileList) -> str:
    """The format of the label files of a folder's or a list's images, the first one of PER_IMAGE of
    which MOST_ASKED of them have a file; "" if they have none.

    Args:
        source: the folder or the list.
        root: of the dataset.
        files: knows which files there are.
    """
    for format, kind in PER_IMAGE.items():
        reader = kind(Split("", (), root))
        reader.files = files
        images = islice(reader.images(source), MOST_ASKED)
        if any(map(files.is_file, map(reader.label_path, images))):
            return format
    return ""


def _of_image_folders(root: Path, format: str, files: FileList) -> Content:
    """Lists of images, folders of splits, or all images; class names in a file of its own."""

    def is_labelled(folder: Path) -> bool:
        return isdir(folder) and labels_beside(folder, root, files) == format

    lists = root
    has_lists = isfile(root / "obj.data")
    if format == "voc":
        lists = root / "ImageSets/Main"
        has_lists = any(root.glob("[Aa]nnotations"))
    content: Content = {}
    for split, names in SPLIT_NAMES.items():
        paths: list[Path] = []
        if has_lists:
            paths += filter(isfile, _named(lists, names, files, r"\.txt"))
        for parent in (*IMAGE_FOLDERS, "."):
            for folder in _named(root / parent, names, files):
                paths += filter(is_labelled, (folder / "images", folder))
        if paths:
            content[split] = [str(paths[0].relative_to(root))]
    for path in (*IMAGE_FOLDERS, "."):
        if not content and is_labelled(root / path):
            content["train"] = [path]
    if not content:
        return {}
    folders = [root, root / "labels"]
    for (path,) in content.values():
        folders.append(root / path)
    content["format"] = format
    for folder in folders:
        for name in CLASS_NAMES:
            # those of VOC are in its labels
            if format != "voc" and isfile(folder / name):
                content["names"] = _read_names(folder / name)
                return content
    if content.get("train") == ["."]:
        for name in DESCRIPTIONS:
            for file in root.glob(f"*/{name}"):
                raise InputError(f"data.dataset {root}: the dataset is in {file.parent}; give that")
    return content


def _named(folder: Path, names: Sequence[str], files: FileList, suffix: str = "") -> list[Path]:
    """The files and folders in a folder that have one of these names, in any case, also with a
    year, and a suffix (a pattern); in alphabetical order: train, train2017, trainval."""
    pattern = re.compile(rf"({'|'.join(names)})([12]\d{{3}})?{suffix}", re.IGNORECASE)
    found = sorted(filter(pattern.fullmatch, files.folder(folder) or ()))
    return [folder / name for name in sorted(found, key=str.lower)]


def _read_names(file: Path) -> list[str]:
    """The class names of a file: one per line, or Label Studio's json."""
    if file.suffix != ".json":
        names = list(map(str.strip, read_text(file).rstrip().splitlines()))
        if "" in names:
            raise InputError(
                f"{file}, line {names.index('') + 1}: no class name; each line is a class"
            )
        return names
    try:
        categories = parse_yaml(read_text(file), file)["categories"]
        return [item["name"] for item in sorted(categories, key=itemgetter("id"))]
    except (KeyError, TypeError):
        raise InputError(f"{file}: expected `categories`, each with `id` and `name`") from None
