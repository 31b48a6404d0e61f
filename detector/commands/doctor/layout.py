"""What is wrong in the folders of a data set: files that nothing refers to, or that several things do."""

import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from detector.commands.doctor.finding import Finding
from detector.data.dataset_file import DatasetFile
from detector.data.datasets import DetectionDataset
from detector.data.formats.coco_json import read_coco
from detector.data.formats.voc_xml import annotation_path
from detector.data.formats.yolo_txt import label_path
from detector.data.images import SUFFIXES

_UNREAD = {".avif", ".gif", ".heic", ".heif", ".jfif", ".jp2", ".jpe", ".pbm", ".pgm", ".pnm", ".ppm"}  # not looked for
_LABELS = {".csv", ".json", ".text", ".txt", ".xml"}
_NO_LABELS = {"classes.txt"}  # labelImg writes it beside the labels


def examine_layout(file: DatasetFile, datasets: dict[str, DetectionDataset]) -> list[Finding]:
    """Orphans, clashes and wrong suffixes in the folders of the splits that could be opened; names that are nearly the same."""
    look = {"yolo": _yolo, "voc": _voc, "coco": _coco}[file.format]
    return [*_splits(file), *_names(file), *look(file, datasets)]


def label_folders(file: DatasetFile, split: str, dataset: DetectionDataset) -> dict[Path, Path]:
    """YOLO text: each folder of labels, and the folder of the images that they are for."""
    of_images = {os.path.dirname(image): image for image in _all_images(dataset)}  # an image of each folder
    folders = {label_path(image).parent: Path(folder) for folder, image in of_images.items()}
    for source in file.splits[split]:
        root = label_path(source / "_").parent
        if source.is_dir() and root != source:  # else labels lie beside images
            below = [p for p in root.rglob("*") if p.is_dir()]
            folders |= {folder: source / folder.relative_to(root) for folder in [root, *below]}
    return {labels: images for labels, images in folders.items() if labels.is_dir()}


def _all_images(dataset: DetectionDataset) -> list[str]:
    return [*dataset.files, *(fault.file for fault in dataset.report.lost_images)]


def _splits(file: DatasetFile) -> Iterator[Finding]:
    for split in ("train", "val"):
        if split not in file.splits:
            problem = f"the key `{split}` is missing; training needs train and val"
            yield Finding("warning", "missing_split", split, file.source, "", problem)


def _names(file: DatasetFile) -> Iterator[Finding]:
    alike = defaultdict(list)
    for name in file.names:
        alike[" ".join(name.lower().split())].append(name)
    for names in alike.values():
        if len(names) > 1:
            problem = f"the names {', '.join(map(repr, names))} differ in capitals and spaces only; are they one class?"
            yield Finding("warning", "similar_names", "", file.source, "", problem)


def _yolo(file: DatasetFile, datasets: dict[str, DetectionDataset]) -> Iterator[Finding]:
    lists = {source for sources in file.splits.values() for source in sources}
    for split, dataset in datasets.items():
        labelled = defaultdict(list)
        for image in dict.fromkeys(dataset.files):
            labelled[label_path(image)].append(image)
        for path, rivals in labelled.items():
            if len(rivals) > 1:
                problem = f"stands for {len(rivals)} images: {', '.join(rivals)}"
                yield Finding("warning", "stem_clash", split, str(path), "", problem)
        folders = label_folders(file, split, dataset)
        for labels, images in folders.items():
            stems = _stems(images)
            for path in sorted(p for p in labels.iterdir() if p.is_file()):
                if path.name in _NO_LABELS or path in lists:
                    continue
                if path.suffix == ".txt" and path.stem not in stems:
                    yield Finding("warning", "orphan_label_file", split, str(path), "", f"no image of this name in {images}")
                elif path.stem in stems and _misnamed(path, ".txt"):
                    yield _wrong_suffix(split, path, ".txt")
        for folder in sorted({Path(image).parent for image in dataset.files}):
            yield from _unread(split, folder)


def _voc(file: DatasetFile, datasets: dict[str, DetectionDataset]) -> Iterator[Finding]:
    every = [image for dataset in datasets.values() for image in _all_images(dataset) if Path(image).suffix.lower() in SUFFIXES]
    of_stem: dict[Path, dict[str, list[Path]]] = {}  # by folder of images: the files of each stem
    for images in sorted({Path(image).parent for image in every}):
        of_stem[images] = defaultdict(list)
        for path in sorted(images.iterdir()) if images.is_dir() else []:
            if path.suffix.lower() in SUFFIXES:
                of_stem[images][path.stem].append(path)
        for paths in of_stem[images].values():
            if len(paths) > 1:
                problem = f"several images share this name, and only one is used: {', '.join(p.name for p in paths)}"
                yield Finding("warning", "stem_clash", "", str(paths[0]), "", problem)
        yield from _unread("", images)
    of_annotations = defaultdict(set)  # the folders of images whose annotations are in a folder
    for image in every:
        of_annotations[annotation_path(image).parent].add(Path(image).parent)
    for annotations, folders in sorted(of_annotations.items()):
        stems = {stem for images in folders for stem in of_stem[images]}
        for path in sorted(annotations.iterdir()) if annotations.is_dir() else []:
            if path.suffix == ".xml" and path.stem not in stems:
                where = ", ".join(map(str, sorted(folders)))
                yield Finding("warning", "orphan_label_file", "", str(path), "", f"no image of this name in {where}")
            elif path.stem in stems and _misnamed(path, ".xml"):
                yield _wrong_suffix("", path, ".xml")
    listed = {Path(image).with_suffix("") for image in every}
    for images, stems_here in of_stem.items():
        yield from _unlisted(images, sorted(p for stem, ps in stems_here.items() if images / stem not in listed for p in ps))


def _coco(file: DatasetFile, datasets: dict[str, DetectionDataset]) -> Iterator[Finding]:
    for split in datasets:
        for path in file.splits[split]:
            content = read_coco(path)
            for key in ("images", "annotations", "categories"):
                seen = set()
                for entry in content.get(key, []):
                    number = entry.get("id") if isinstance(entry, dict) else None
                    if not isinstance(number, int | str):
                        continue
                    if number in seen:
                        problem = f"the id {number} occurs twice among the {key}"
                        severity = "note" if key == "annotations" else "fault"  # nothing looks an annotation up by its id
                        yield Finding(severity, "duplicate_id", split, str(path), f"{key} id {number}", problem)
                    seen.add(number)
    listed = {Path(os.path.abspath(image)) for dataset in datasets.values() for image in _all_images(dataset)}
    for folder in sorted({path.parent for path in listed}):
        yield from _unread("", folder)
        if folder.is_dir():
            here = {p for p in folder.iterdir() if p.suffix.lower() in SUFFIXES}
            yield from _unlisted(folder, sorted(here - listed))


def _stems(folder: Path) -> set[str]:
    return {p.stem for p in folder.iterdir() if p.suffix.lower() in SUFFIXES} if folder.is_dir() else set()


def _misnamed(path: Path, wanted: str) -> bool:
    """Labels of another kind, where there are none of the wanted kind."""
    return path.suffix != wanted and path.suffix.lower() in _LABELS and not path.with_suffix(wanted).is_file()


def _wrong_suffix(split: str, path: Path, wanted: str) -> Finding:
    problem = f"is not read, labels are {path.stem}{wanted}"
    return Finding("warning", "wrong_label_suffix", split, str(path), "", problem)


def _unread(split: str, folder: Path) -> Iterator[Finding]:
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if path.suffix.lower() in _UNREAD:
            problem = f"images of the kind {path.suffix} are not read; convert it to one of {', '.join(sorted(SUFFIXES))}"
            yield Finding("warning", "unread_image", split, str(path), "", problem)


def _unlisted(folder: Path, paths: list[Path]) -> Iterator[Finding]:
    if paths:
        problem = f"{len(paths)} images here are in none of the splits, for example {paths[0].name}"
        yield Finding("note", "unlisted_images", "", str(folder), "", problem)
