"""Pascal VOC annotations: one xml file per image. Corners are taken as they stand, in pixels."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

from boltbox.detector.data.formats.format import (
    CORNERS,
    DIFFICULT,
    Entry,
    ImageLabels,
    LabelObject,
    PerImageFormat,
    image_size_of,
    number,
)
from boltbox.detector.data.images import read_lines
from boltbox.detector.system.addresses import read_bytes
from boltbox.detector.system.errors import InputError

ANNOTATIONS = ("Annotations", "annotations")
IMAGE_FOLDERS = ("JPEGImages", "images", "Images")


class VocXml(PerImageFormat):
    """A split is a folder of images, or a text file with one image ID per line (anything after it
    is ignored): the path of an image below the folder JPEGImages (or images) of the root, without
    its suffix."""

    suffix = ".xml"

    def label_path(self, image: str) -> str:
        """The first of these that exists, else the first of all: for `.../JPEGImages/a/b.jpg` (or
        images, in any case) `.../Annotations/a/b.xml`, `.../Annotations/b.xml`, or annotations for
        Annotations; beside the image; in a folder Annotations or annotations beside the image."""
        xml = os.path.splitext(image)[0] + ".xml"
        places = []
        for name in ANNOTATIONS:
            for below in ("", "(.*/)?"):
                folder = f"(?is)^(.*/|)(jpegimages|images)/{below}"
                places.append(re.sub(folder, rf"\1{name}/", xml))
        places.append(xml)
        parent, file = os.path.split(xml)
        for name in ANNOTATIONS:
            places.append(os.path.join(parent, name, file))
        return next(filter(self.files.is_file, places), places[0])

    def listed_images(self, source: Path) -> Iterator[str | Path]:
        folders = [self.split.root / name for name in IMAGE_FOLDERS]
        folder = next(filter(self.files.is_folder, folders), self.split.root)
        image_of = {}
        for image in sorted(self.files.images(folder)):
            image_of[os.path.splitext(os.path.relpath(image, folder))[0]] = image
        for line in read_lines(source):
            name = line if line in image_of else line.split()[0]
            yield image_of.get(name, folder / f"{name}.jpg")

    def read(self, entry: Entry, height: int, width: int) -> ImageLabels | None:
        if not self.files.is_file(entry.file):
            return None
        xml = _read_xml(entry.file)
        objects = []
        for k, item in enumerate(xml.findall("object"), 1):
            name = item.findtext("name", "").strip()
            problem = DIFFICULT if item.findtext("difficult", "").strip() == "1" else ""
            box = [number(item.findtext(f"bndbox/{corner}")) for corner in CORNERS]
            objects.append(LabelObject(f"object {k} ({name})", name, box, problem))
        size = image_size_of(xml.findtext("size/height"), xml.findtext("size/width"))
        return ImageLabels(objects, size)


def _read_xml(file: str) -> ElementTree.Element:
    """The root of an annotation file.

    Raises:
        InputError: "FILE: why": it is none.
    """
    try:
        root = ElementTree.fromstring(read_bytes(file))
    except (ElementTree.ParseError, ValueError, LookupError) as e:  # the last two: encodings
        raise InputError(f"{file}: not valid XML ({e})") from None
    if root.tag != "annotation":
        raise InputError(f"{file}: not valid XML (it is about <{root.tag}>, not <annotation>)")
    return root
