"""Repaired Pascal VOC annotations."""

import shutil
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

from detector.commands.doctor.labels import PAST_FRAME
from detector.data.datasets import DetectionDataset
from detector.data.formats.voc_xml import CORNERS, annotation_path
from detector.model.boxes import clip_xyxy


def write_voc(split: str, dataset: DetectionDataset, names: dict[str, str], folder: Path, done: list[str]) -> str:
    """Annotations and the list for the images `names` (path -> path below folder/JPEGImages); returns the `split` of a
    data.yaml."""
    dropped: dict[str, dict[str, str]] = {}
    for fault in dataset.report.faults:
        if fault.kind != "difficult_object":  # it stays, marked as it is
            dropped.setdefault(fault.file, {})[fault.where] = fault.problem
    for image, labels in zip(dataset.files, dataset.labels, strict=True):
        source = annotation_path(image)
        if image not in names or not source.is_file():
            continue
        target = folder / "Annotations" / f"{names[image].rpartition('.')[0]}.xml"
        target.parent.mkdir(parents=True, exist_ok=True)
        tree = ElementTree.parse(source)
        repairs = _repair_objects(tree.getroot(), dropped.get(str(source), {}), labels.height, labels.width)
        repairs += _repair_header(tree.getroot(), Path(names[image]).name, labels.height, labels.width)
        done += [f"{source}, {repair}" for repair in repairs]
        if repairs:
            tree.write(target, encoding="utf-8")
        else:
            shutil.copyfile(source, target)
    listing = folder / "ImageSets" / "Main" / f"{split}.txt"
    listing.parent.mkdir(parents=True, exist_ok=True)
    listing.write_text("".join(f"{name.rpartition('.')[0]}\n" for name in names.values()), encoding="utf-8")
    return f"ImageSets/Main/{split}.txt"


def _repair_objects(annotation: ElementTree.Element, dropped: dict[str, str], height: int, width: int) -> list[str]:
    """Remove and clip in place; "object 2 (cat): what was done"."""
    repairs, seen, gone = [], set(), set()
    for number, item in enumerate(annotation.findall("object"), 1):
        name = item.findtext("name", "").strip()
        where = f"object {number} ({name})"
        why = dropped.get(where, "")
        if not why and item.findtext("difficult", "0").strip() != "1":
            corners = [item.find(f"bndbox/{tag}") for tag in CORNERS]
            box = np.array([corner.text for corner in corners if corner is not None], np.float64)
            inside = clip_xyxy(box, width, height)
            if (inside[2:] <= inside[:2]).any():
                why = "the box lies outside the image"
            elif np.abs(box - inside).max() > PAST_FRAME:
                for corner, value in zip(corners, inside, strict=True):
                    if corner is not None:
                        corner.text = f"{value:.9g}"
                repairs.append(f"{where}: box clipped to the image")
                box = inside
            if not why and (name, *box) in seen:
                why = "duplicate of an earlier object"
            seen.add((name, *box))
        if why:
            gone.add(item)
            repairs.append(f"{where}: dropped ({why})")
    annotation[:] = [item for item in annotation if item not in gone]
    return repairs


def _repair_header(annotation: ElementTree.Element, name: str, height: int, width: int) -> list[str]:
    """The size and the file name that an annotation gives its image."""
    repairs = []
    for tag, pixels in (("width", width), ("height", height)):
        element = annotation.find(f"size/{tag}")
        if element is not None and (element.text or "").strip() != str(pixels):
            repairs.append(f"{tag}: {element.text} corrected to {pixels}")
            element.text = str(pixels)
    element = annotation.find("filename")
    if element is not None and (element.text or "").strip() and Path((element.text or "").strip()).stem != Path(name).stem:
        repairs.append(f"filename: {element.text} corrected to {name}")
        element.text = name
    return repairs
