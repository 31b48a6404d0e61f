"""What is wrong in label files: what training leaves out (its own report says that), and what it takes as it stands."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import numpy as np

from detector.commands.doctor.finding import Finding
from detector.commands.doctor.written_size import other_size
from detector.data.dataset_file import DatasetFile
from detector.data.datasets import DetectionDataset
from detector.data.formats.coco_json import by_image, category_name, class_names, locate, read_coco
from detector.data.formats.voc_xml import annotation_path
from detector.data.formats.yolo_txt import label_path, read_labels
from detector.data.report import Fault
from detector.data.sample import Labels

PAST_FRAME = 0.25  # pixels; less is the rounding of the fractions in a label file
_SEVERITIES = {"duplicate_box": "warning", "orphan_annotation": "warning", "difficult_object": "note"}  # others are faults


class LabelSource(NamedTuple):
    """Where the labels of one image are written.

    path: of the label file; None if there is none · places: what each object in it is called in reports, dropped or not ·
    size: (height, width) that it gives the image, or None · filename: of the image that it says it belongs to, or "".
    """

    path: Path | None
    places: list[str]
    size: tuple[int, int] | None = None
    filename: str = ""


def left_out(split: str, dataset: DetectionDataset) -> list[Finding]:
    """What training drops, in the words of its own report."""

    def finding(fault: Fault) -> Finding:
        return Finding(_SEVERITIES.get(fault.kind, "fault"), fault.kind, split, fault.file, fault.where, fault.problem)

    return [finding(fault) for fault in dataset.report.left_out]


def examine_labels(file: DatasetFile, split: str, dataset: DetectionDataset) -> list[Finding]:
    """What training takes as it stands, but its user should know: boxes past the frame, duplicates, sizes that differ, ..."""
    dropped = defaultdict(set)
    for fault in dataset.report.faults:
        dropped[fault.file].add(fault.where)
    found: list[Finding] = []
    declared = []
    for image, labels, source in zip(dataset.files, dataset.labels, label_sources(file, split, dataset.files), strict=True):
        declared.append(source.size)
        named = image if file.format == "coco" else str(source.path)  # a json speaks of many images
        found += _empty(split, image, named, source)
        found += _header(split, image, labels, source)
        if len(labels.boxes):
            kept = [place for place in source.places if place not in dropped.get(str(source.path), ())]
            if len(kept) != len(labels.boxes):  # COCO annotations that share an id, one of them dropped: nobody knows which
                kept = [""] * len(labels.boxes)
            found += _mixture(split, named, labels)
            found += _twice(split, str(source.path), kept, labels)
            found += _past_frame(split, str(source.path), kept, labels)
    for image, times in Counter(dataset.files).items():
        if times > 1:
            found.append(Finding("warning", "listed_twice", split, image, "", f"listed {times} times, and used as often"))
    return [*other_size(file, split, dataset, declared), *found, *_whole(file, split, dataset)]


def label_sources(file: DatasetFile, split: str, images: Iterable[str]) -> Iterator[LabelSource]:
    """One for each image of the split."""
    if file.format == "yolo":
        return map(_yolo_source, images)
    if file.format == "voc":
        return map(_voc_source, images)
    of_image = _coco_sources(file, split)
    return (of_image[image] for image in images)


def _yolo_source(image: str) -> LabelSource:
    path = label_path(image)
    if not path.is_file():
        return LabelSource(None, [])
    lines = enumerate(read_labels(path).split("\n"), 1)
    return LabelSource(path, [f"line {n}" for n, line in lines if line.split()])


def _voc_source(image: str) -> LabelSource:
    path = annotation_path(image)
    if not path.is_file():
        return LabelSource(None, [])
    xml = ElementTree.parse(path).getroot()
    names = [item.findtext("name", "").strip() for item in xml.findall("object")]
    places = [f"object {k} ({name})" for k, name in enumerate(names, 1)]
    size = _size(xml.findtext("size/height"), xml.findtext("size/width"))
    return LabelSource(path, places, size, xml.findtext("filename", "").strip())


def _coco_sources(file: DatasetFile, split: str) -> dict[str, LabelSource]:
    """By image."""
    sources = {}
    for path in file.splits[split]:
        content = read_coco(path)
        names = class_names(content)
        of_image, _ = by_image(content)
        for entry in content["images"]:
            image = str(locate(entry["file_name"], file.coco_folders(split)))
            places = [f"annotation {a.get('id')} ({category_name(a, names)})" for a in of_image[entry["id"]]]
            sources[image] = LabelSource(path, places, _size(entry.get("height"), entry.get("width")))
    return sources


def _size(height: object, width: object) -> tuple[int, int] | None:
    """The size that a label file gives; None where it gives none (left out, no numbers, 0 x 0)."""
    try:
        size = int(str(height)), int(str(width))
    except ValueError:
        return None
    return size if min(size) > 0 else None


def _empty(split: str, image: str, named: str, source: LabelSource) -> Iterator[Finding]:
    if source.path is None:
        yield Finding("note", "missing_label_file", split, image, "", "no label file; it counts as background")
    elif not source.places:
        yield Finding("note", "no_objects", split, named, "", "its labels are empty; it counts as background")


def _header(split: str, image: str, labels: Labels, source: LabelSource) -> Iterator[Finding]:
    """What the label file says of the image, beside the objects."""
    real = labels.height, labels.width
    if source.size and source.size != real:
        turned = " turned as its EXIF data says" if source.size == real[::-1] else ""
        problem = f"the image{turned} has {real[1]}x{real[0]} px, {source.path} says {source.size[1]}x{source.size[0]}"
        yield Finding("fault", "wrong_size", split, image, "", f"{problem}; its boxes may not fit")
    if source.filename and Path(source.filename.replace("\\", "/")).stem != Path(image).stem:
        problem = f"says that it belongs to {source.filename}, but is used for {image}"
        yield Finding("warning", "wrong_filename", split, str(source.path), "", problem)


def _mixture(split: str, named: str, labels: Labels) -> Iterator[Finding]:
    crowd = int(labels.crowd.sum())
    if crowd:
        yield Finding("note", "crowd_region", split, named, "", f"{crowd} crowd regions; training leaves them out")
    polygons = sum(bool(parts) for parts, hidden in zip(labels.polygons, labels.crowd, strict=True) if not hidden)
    boxes = len(labels.boxes) - crowd - polygons
    if polygons and boxes:
        problem = f"{boxes} boxes and {polygons} polygons in one file; each is read as what it is"
        yield Finding("note", "boxes_and_polygons", split, named, "", problem)


def _twice(split: str, path: str, places: list[str], labels: Labels) -> Iterator[Finding]:
    """VOC and COCO objects that occur twice; in YOLO text they are left out, and reported there."""
    seen: dict[bytes, int] = {}
    for k, row in enumerate(np.column_stack((labels.boxes, labels.classes, labels.crowd))):
        first = seen.setdefault(row.tobytes(), k)
        if first != k:
            problem = f"duplicate of {places[first] or 'another object'}"
            yield Finding("warning", "duplicate_box", split, path, places[k], problem)


def _past_frame(split: str, path: str, places: list[str], labels: Labels) -> Iterator[Finding]:
    boxes, size = labels.boxes, (labels.width, labels.height)
    past = np.column_stack((-boxes[:, :2], boxes[:, 2:] - size)).max(1)
    for k in np.flatnonzero(past > PAST_FRAME):
        if (boxes[k, :2] >= size).any() or (boxes[k, 2:] <= 0).any():
            problem = f"the box lies outside the image of {size[0]}x{size[1]} px"
            yield Finding("fault", "box_outside_frame", split, path, places[k], problem)
        else:
            problem = f"the box reaches {past[k]:.3g} px past the frame of {size[0]}x{size[1]} px"
            yield Finding("warning", "box_past_frame", split, path, places[k], problem)


def _whole(file: DatasetFile, split: str, dataset: DetectionDataset) -> list[Finding]:
    """What concerns a split as a whole."""
    images, unlabelled = len(dataset), dataset.report.unlabelled
    if images and not dataset.report.boxes:
        problem = f"none of its {images} images has a usable box, which training refuses{file.unread_labels(split, dataset)}"
        return [Finding("fault", "no_boxes", split, "", "", problem)]
    if unlabelled * 2 > images:
        problem = f"{unlabelled} of {images} images have no label file; are the labels in the right folder?"
        return [Finding("warning", "mostly_unlabelled", split, "", "", problem)]
    return []
