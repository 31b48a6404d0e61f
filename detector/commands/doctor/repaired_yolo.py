"""Repaired YOLO text labels."""

import shutil
from pathlib import Path

import numpy as np

from detector.commands.doctor.labels import PAST_FRAME
from detector.data.datasets import DetectionDataset
from detector.data.formats.yolo_txt import label_path, read_labels
from detector.model.boxes import clip_xyxy, cxcywhn_to_xyxy, xyxy_to_cxcywhn


def write_yolo(split: str, dataset: DetectionDataset, names: dict[str, str], folder: Path, done: list[str]) -> str:
    """Label files for the images `names` (path -> path below folder/images/split); returns the `split` of a data.yaml."""
    dropped: dict[str, dict[str, str]] = {}
    for fault in dataset.report.faults:
        dropped.setdefault(fault.file, {})[fault.where] = fault.problem
    for image, labels in zip(dataset.files, dataset.labels, strict=True):
        source = label_path(image)
        if image not in names or not source.is_file():
            continue
        target = label_path(folder / "images" / split / names[image])
        target.parent.mkdir(parents=True, exist_ok=True)
        before = read_labels(source).split("\n")
        after, repairs = _repaired(before, dropped.get(str(source), {}), labels.height, labels.width)
        done += [f"{source}, {repair}" for repair in repairs]
        if repairs:
            target.write_text("".join(f"{line}\n" for line in after), encoding="utf-8")
        else:
            shutil.copyfile(source, target)
    return f"images/{split}"


def _repaired(lines: list[str], dropped: dict[str, str], height: int, width: int) -> tuple[list[str], list[str]]:
    """The lines that stay, boxes inside the frame; "line 3: what was done" for each other."""
    after: dict[str, None] = {}
    repairs = []
    for number, line in enumerate(lines, 1):
        where = f"line {number}"
        fields = line.split()
        if where in dropped:
            repairs.append(f"{where}: dropped ({dropped[where]})")
        elif len(fields) != 5:  # empty, or a polygon, whose points cannot lie outside
            after.update({line: None} if fields else {})
        else:
            box = cxcywhn_to_xyxy(np.array(fields[1:], np.float64), width, height)
            inside = clip_xyxy(box, width, height)
            if (inside[2:] <= inside[:2]).any():
                repairs.append(f"{where}: dropped (the box lies outside the image)")
            elif np.abs(box - inside).max() <= PAST_FRAME:
                after[line] = None
            else:
                numbers = " ".join(f"{v:.9g}" for v in xyxy_to_cxcywhn(inside, width, height))
                after[f"{fields[0]} {numbers}"] = None
                repairs.append(f"{where}: box clipped to the image")
    return list(after), repairs
