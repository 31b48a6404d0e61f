"""Folders as labelling tools export them -> the data.yaml that one would write for each.

A folder is recognised by the names of its files and folders; of the files only lists of class names
are opened.
"""

import re
from collections import defaultdict
from itertools import islice
from os.path import isdir, isfile
from pathlib import Path
from typing import Any

from boltbox.detector.data.formats.voc_xml import VocXml
from boltbox.detector.data.formats.yolo_txt import YoloText
from boltbox.detector.data.images import walk_images
from boltbox.detector.system.text_file import read_lines

SPLITS = {
    "train": ("train", "train2017"),
    "val": ("val", "valid", "validation", "val2017"),
    "test": ("test", "test2017"),
}
COCO = ("_annotations.coco.json", "instances_*.json", "labels.json", "result.json")
METADATA = "metadata.jsonl"
CLASS_NAMES = ("classes.txt", "obj.names", "_darknet.labels")
Content = dict[str, Any]


def find_yaml(root: Path) -> Path | None:
    """The file that describes the data set in a folder: data.yaml, or FiftyOne's dataset.yaml."""
    names = ("data.yaml", "data.yml", "dataset.yaml")
    return next((root / name for name in names if isfile(root / name)), None)


def describe(root: Path) -> Content:
    """The keys of a data.yaml for a folder without one, paths relative to it; empty if the labels
    are none that boltbox reads. `names` is left out where the format finds them in the labels."""
    for recognise in (_coco, _metadata, _voc, _yolo):
        if content := recognise(root):
            return content
    return {}


def _coco(root: Path) -> Content:
    folders = [root, root / "annotations", *(root / word for words in SPLITS.values() for word in words)]
    files = [file for folder in folders for name in COCO for file in sorted(folder.glob(name))]
    return _of_files(root, files, "coco")


def _metadata(root: Path) -> Content:
    """An imagefolder of Hugging Face."""
    return _of_files(root, [*root.glob(METADATA), *root.glob(f"*/{METADATA}")], "metadata")


def _of_files(root: Path, files: list[Path], format: str) -> Content:
    """Label files, each of the split that its path names; train, if it names none."""
    splits = defaultdict(list)
    for path in (str(file.relative_to(root)) for file in files):
        words = {*re.split(r"[^a-z]+", path.lower())}
        named = (split for split, known in SPLITS.items() if words.intersection(known))
        splits[next(named, "train")].append(path)
    return {"format": format, **splits} if files else {}


def _voc(root: Path) -> Content:
    splits = VocXml.find_splits(root)
    return {"format": "voc", **splits} if splits else {}


def _yolo(root: Path) -> Content:
    splits = {}
    if isfile(root / "obj.data"):  # lists of paths
        splits = {s: [f"{word}.txt"] for s, words in SPLITS.items() for word in words if isfile(root / f"{word}.txt")}
    for split, words in () if splits else SPLITS.items():
        places = (p for word in words for p in (f"images/{word}", f"{word}/images", word))
        if found := next((place for place in places if _has_text(root / place)), None):
            splits[split] = [found]
    if not splits:
        whole = next((place for place in ("images", ".") if _has_text(root / place)), None)
        splits = {"train": [whole]} if whole else {}
    if not splits:
        return {}
    beside = [root, *(root / path for paths in splits.values() for path in paths)]
    files = (folder / name for folder in beside for name in CLASS_NAMES)
    content: Content = {"format": "yolo", **splits}
    if file := next(filter(isfile, files), None):
        content["names"] = read_lines(file)
    return content


def _has_text(folder: Path, most: int = 100) -> bool:
    """Whether images of a folder and its subfolders have YOLO text, as far as the first ones
    show."""
    images = islice(walk_images(folder), most) if isdir(folder) else ()
    return any(isfile(YoloText.label_path(image)) for image in images)
