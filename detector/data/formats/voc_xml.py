"""Pascal VOC annotations: an xml file an image. Corners are taken as they stand, in pixels."""

import os
import re
from collections.abc import Mapping, Sequence
from os.path import isdir, isfile
from pathlib import Path
from xml.etree import ElementTree

from boltbox.detector.data.formats.format import (
    DIFFICULT,
    SPLIT_GLOBS,
    Entry,
    ImageLabels,
    LabelObject,
    PerImageFormat,
    has_labels,
    number,
    whole_size,
)
from boltbox.detector.data.formats.yolo_txt import YoloText
from boltbox.detector.data.images import find_images, read_lines
from boltbox.detector.system.errors import InputError

_ANNOTATIONS = ("Annotations", "annotations")


class VocXml(PerImageFormat):
    """A split is a folder of images, or a text file with an image ID a line (anything after it is
    ignored): the path of an image below the folder JPEGImages (or images) of the root, without its
    suffix."""

    suffix = ".xml"

    @classmethod
    def find_splits(cls, root: Path) -> dict[str, list[Path]]:
        """Of the lists ImageSets/Main, of folders train and val, or all images as train; none if
        the folder is not of this format."""
        images, main = _image_folder(root), root / "ImageSets" / "Main"
        lists, folders = dict[str, list[Path]](), dict[str, list[Path]]()
        for split, globs in SPLIT_GLOBS.items():
            names = [*globs, "trainval"] if split == "train" else globs
            files = [file for name in names for file in sorted(main.glob(f"{name}.txt"))]
            within = [at for n in globs for top in (images, root) for at in sorted(top.glob(n))]
            if files:
                lists[split] = files[:1]
            if found := next(filter(has_xml, within), None):
                folders[split] = [found]
        if lists and any(isdir(root / name) for name in _ANNOTATIONS):
            return lists
        return folders or ({"train": [images]} if has_xml(images) else {})

    @classmethod
    def find_names(cls, root: Path, splits: Mapping[str, Sequence[Path]]) -> list[str]:
        """Those in the annotations of all splits, in alphabetical order."""
        found = set()
        for file in cls.label_files(root, splits):
            try:
                objects = _read_xml(file).findall("object")
            except InputError:
                continue  # named when the data set is read
            found |= {item.findtext("name", "").strip() for item in objects}
        return sorted(found - {""})

    @classmethod
    def label_path(cls, image: str) -> str:
        """The first of these that exists, else the first of all: for `.../JPEGImages/a/b.jpg` (or
        images, in any case) `.../Annotations/a/b.xml`, `.../Annotations/b.xml`, or annotations for
        Annotations; beside the image; in a folder Annotations or annotations beside the image."""
        xml = os.path.splitext(image)[0] + ".xml"
        places = []
        for name in _ANNOTATIONS:
            for below in ("", "(.*/)?"):
                folder = f"(?is)^(.*/|)(jpegimages|images)/{below}"
                places.append(re.sub(folder, rf"\1{name}/", xml))
        at, file = os.path.split(xml)
        places += [xml, *(os.path.join(at, name, file) for name in _ANNOTATIONS)]
        return next(filter(isfile, places), places[0])

    def listed_images(self, source: Path) -> list[Path]:
        folder = _image_folder(self.split.root)
        images = find_images(folder)
        of_id = {path.relative_to(folder).with_suffix("").as_posix(): path for path in images}
        ids = [line if line in of_id else line.split()[0] for line in read_lines(source)]
        return [of_id.get(i) or folder / f"{i}.jpg" for i in ids]

    def read(self, entry: Entry, height: int, width: int) -> ImageLabels | None:
        if not isfile(entry.file):
            return None
        xml = _read_xml(entry.file)
        objects = []
        for k, item in enumerate(xml.findall("object"), 1):
            name = item.findtext("name", "").strip()
            difficult = item.findtext("difficult", "").strip() == "1"
            problem = DIFFICULT if difficult and not self.split.keep_difficult else ""
            corners = ("xmin", "ymin", "xmax", "ymax")
            box = [number(item.findtext(f"bndbox/{corner}")) for corner in corners]
            objects.append(LabelObject(f"object {k} ({name})", name, box, problem))
        size = whole_size(xml.findtext("size/height"), xml.findtext("size/width"))
        return ImageLabels(objects, size)


def _image_folder(root: Path) -> Path:
    """The folder of a root that holds its images: the root itself, if there is no other."""
    return next(filter(isdir, (root / n for n in ("JPEGImages", "images", "Images"))), root)


def has_xml(folder: Path) -> bool:
    """Whether images of a folder have VOC annotations and no text labels."""
    return not has_labels(folder, YoloText) and has_labels(folder, VocXml)


def _read_xml(file: str) -> ElementTree.Element:
    """The root of an annotation file.

    Raises:
        InputError: "FILE: why": it is none.
    """
    try:
        root = ElementTree.parse(file).getroot()
    except (ElementTree.ParseError, ValueError, LookupError) as e:  # the last two: encodings
        raise InputError(f"{file}: not valid XML ({e})") from None
    if root.tag != "annotation":
        raise InputError(f"{file}: not valid XML (it is about <{root.tag}>, not <annotation>)")
    return root
