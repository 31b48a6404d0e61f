"""Folders as labelling tools export them -> the data.yaml that one would write for each.

A folder is recognised by the names of its files and folders; of the files only lists of class names
are opened.
"""

import os
import re
from collections import Counter, defaultdict
from operator import itemgetter
from os.path import isdir, isfile
from pathlib import Path
from typing import Any

from boltbox.detector.data.formats.dota_txt import DotaText
from boltbox.detector.data.formats.format import SPLIT_GLOBS, SPLIT_NAMES, has_labels
from boltbox.detector.data.formats.voc_xml import VocXml
from boltbox.detector.data.formats.yolo_txt import YoloText
from boltbox.detector.data.images import find_images, read_lines
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.rank_zero import program
from boltbox.detector.system.text_file import parse_yaml, read_text

DESCRIPTIONS = ("data.yaml", "data.yml", "dataset.yaml")  # the last one is FiftyOne's
COCO = ("_annotations.coco.json", "instances_*.json", "labels.json", "result.json")
CONVERTED = "CVAT for images (xml), labelme, VIA (json) or OpenImages (csv)"  # by a command
METADATA = "metadata.jsonl"
ROBOFLOW_CSV = "_annotations.csv"
LABELS = {".txt", ".xml", ".json", ".jsonl", ".csv"}  # suffixes of label files
CLASS_NAMES = ("classes.txt", "obj.names", "_darknet.labels", "notes.json")
Content = dict[str, Any]


def describe(root: Path) -> Content:
    """The keys of a data.yaml for a folder without one, paths relative to it. `names` is left out
    where the format finds them in the labels.

    Raises:
        InputError: there are no labels that boltbox reads; with the data.yaml to write, its folders
            of images filled in, the largest first.
    """
    folders = [root, *(root / name for names in SPLIT_NAMES.values() for name in names)]
    coco = [f for at in (*folders, root / "annotations") for name in COCO for f in at.glob(name)]
    metadata = [file for at in folders for file in at.glob(METADATA)]
    tables = [file for at in folders for file in at.glob(ROBOFLOW_CSV)]
    found = (
        _of_files(root, sorted(coco), "coco")
        or _of_files(root, metadata, "metadata")
        or _of_files(root, tables, "csv")
        or ({"format": "voc", **voc} if (voc := VocXml.find_splits(root)) else {})
        or _text(root, "yolo", YoloText)
        or _text(root, "dota", DotaText)
    )
    if found:
        return found
    images = find_images(root)
    if images and not any(file.suffix.lower() in LABELS for file in root.rglob("*")):
        raise InputError(
            f"data.dataset {root}: {len(images)} images without labels. Label them first, with"
            " Label Studio or CVAT (docs/data.md)"
        )
    counts = Counter(os.path.relpath(image.parent, root) for image in images)
    train, val = ([name for name, _ in counts.most_common(2)] + ["FOLDER", "FOLDER"])[:2]
    where = f"its images are in {', '.join(counts)}" if counts else "there is no image in it"
    raise InputError(
        f"data.dataset {root}: there are no labels that boltbox knows (docs/data.md); write"
        f" {root / DESCRIPTIONS[0]}: {{train: {train}, val: {val}, names: [NAME, ...]}}; {where};"
        f" {conversion(root)}"
    )


def split_named(path: str) -> str:
    """The split that a path names, as `annotations/instances_val2017.json` does; train, if it names
    none."""
    words = re.split(r"[^a-z]+", path.lower())
    named = (split for split, known in SPLIT_NAMES.items() if not {*words}.isdisjoint(known))
    return next(named, "train")


def conversion(root: Path) -> str:
    """The command for a folder of labels that only another package reads."""
    return f"labels of {CONVERTED}: {program()} convert {root}"


def _of_files(root: Path, files: list[Path], format: str) -> Content:
    """Label files, each of the split that its path names."""
    splits = defaultdict(list)
    for path in (str(file.relative_to(root)) for file in files):
        splits[split_named(path)].append(path)
    return {"format": format, **splits} if files else {}


def _text(root: Path, format: str, kind: type[YoloText]) -> Content:
    """Lists of images beside obj.data, folders of splits, or all images; names in a file of its
    own."""
    splits: Content = {}
    for split, globs in SPLIT_GLOBS.items():
        lists = [f"{name}.txt" for name in SPLIT_NAMES[split] if isfile(root / "obj.data")]
        patterns = [p for name in globs for p in (f"images/{name}", f"{name}/images", name)]
        folders = [at.relative_to(root) for p in patterns for at in sorted(root.glob(p))]
        found = [path for path in lists if isfile(root / path)]
        found += [str(path) for path in folders if has_labels(root / path, kind)]
        splits |= {split: found[:1]} if found else {}
    if not splits:
        whole = [path for path in ("images", ".") if has_labels(root / path, kind)]
        splits = {"train": whole[:1]} if whole else {}
    if not splits:
        return {}
    beside = [root, *(root / path for paths in splits.values() for path in paths)]
    files = (folder / name for folder in beside if isdir(folder) for name in CLASS_NAMES)
    names_file = next(filter(isfile, files), None)
    return {"format": format, **splits} | ({"names": _names(names_file)} if names_file else {})


def _names(file: Path) -> list[str]:
    """The class names of a file: a line each, or Label Studio's json."""
    if file.suffix != ".json":
        return read_lines(file)
    try:
        categories = parse_yaml(read_text(file), file)["categories"]
        return [item["name"] for item in sorted(categories, key=itemgetter("id"))]
    except (KeyError, TypeError):
        raise InputError(f"{file}: expected `categories`, each with `id` and `name`") from None
