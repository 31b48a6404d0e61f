"""Boxes for people who label: files that Label Studio, CVAT and tools for COCO import, filled by
templates beside this file."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple
from urllib.parse import quote

from boltbox.detector.report.html import fill
from boltbox.detector.system.atomic_file import write_atomically
from boltbox.detector.system.rank_zero import common_folder, inside, print_fact, printable

Tool = Literal["label-studio", "cvat", "coco"]


class BoxedImage(NamedTuple):
    """An image with boxes.

    Attributes:
        file: its path.
        width: in pixels.
        height: in pixels.
        rows: x1, y1, x2, y2 in pixels, confidence, class of each box.
    """

    file: str
    width: int
    height: int
    rows: list[list[float]]


def write_boxes(
    tool: Tool, images: Sequence[BoxedImage], names: Sequence[str], folder: Path
) -> None:
    """Write what a tool imports, and print where it is.

    Images are called by their paths from their common folder, in Label Studio from the folder above
    it: LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT.

    Args:
        tool: label-studio: tasks with predictions, and the labelling interface; cvat: CVAT for
            images 1.1, which has no confidences; coco: annotations with scores.
        images: with their boxes.
        names: class names.
        folder: gets the files TOOL.json and TOOL.xml.
    """
    common = os.path.abspath(common_folder([image.file for image in images]))
    for template in sorted(Path(__file__).parent.glob(f"{tool}.*.jinja")):
        text = fill(
            template,
            images=images,
            names=names,
            folder=common,
            parent=os.path.dirname(common),
            inside=inside,
            quote=quote,
            printable=printable,
        )
        write_atomically(folder / template.stem, text)
        print_fact("export", folder / template.stem)
