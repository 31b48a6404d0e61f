"""Pascal VOC annotations: an xml file an image. Corners are taken as they stand, in pixels."""

import math
import os
import shutil
from collections.abc import Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from xml.etree import ElementTree

from boltbox.detector.data.datasets import read_lines
from boltbox.detector.data.formats.format import (
    Entry,
    ImageLabels,
    LabelObject,
    RepairedImage,
    whole_size,
)
from boltbox.detector.data.formats.per_image import PerImageFormat
from boltbox.detector.data.formats.yolo_txt import YoloText
from boltbox.detector.data.images import SUFFIXES, find_images
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.text_file import is_dir, is_file

DEEPEST = 30  # elements within one another
CORNERS = ("xmin", "ymin", "xmax", "ymax")
_ANNOTATIONS = ("Annotations", "annotations")
_IMAGES = {"jpegimages", "images"}
# what the parser raises; the last two for encodings
_NO_XML = (ElementTree.ParseError, ValueError, LookupError)
_SPLIT_FOLDERS = {"train": ["train"], "val": ["val", "valid", "validation"], "test": ["test"]}


class VocXml(PerImageFormat):
    """A split is a folder of images, or a text file with an image ID a line (anything after it is
    ignored): the path of an image below the folder JPEGImages (or images) of the root, without its
    suffix."""

    wants = (
        "format voc wants a folder of images, or a text file of image IDs, like"
        " ImageSets/Main/train.txt"
    )
    suffix = ".xml"

    @classmethod
    def recognises(cls, root: Path, path: Path) -> bool:
        if is_dir(path):
            return _has_xml(path)
        in_annotations = (root / "annotations").glob("*.xml")  # COCO's json files lie there too
        return path.suffix == ".txt" and (
            (root / "Annotations").is_dir() or next(in_annotations, None) is not None
        )

    @classmethod
    def find_splits(cls, root: Path) -> dict[str, list[Path]]:
        """Of the lists ImageSets/Main, of folders train and val, or all images as train."""
        lists = {s: root / "ImageSets" / "Main" / f"{s}.txt" for s in ("train", "val", "test")}
        if any((root / name).is_dir() for name in _ANNOTATIONS) and any(
            path.is_file() for path in lists.values()
        ):
            return {s: [path] for s, path in lists.items() if path.is_file()}
        images = _image_folder(root) or root
        named = {
            s: [f for n in names for f in (images / n, root / n) if _has_xml(f)]
            for s, names in _SPLIT_FOLDERS.items()
        }
        splits = {s: folders[:1] for s, folders in named.items() if folders}
        return splits or ({"train": [images]} if _has_xml(images) else {})

    @classmethod
    def find_names(cls, root: Path, splits: Mapping[str, Sequence[Path]]) -> list[str]:
        """From the root's folder of annotations, or where there is none, from the annotations of
        the images of the folders."""
        folders = [root / name for name in _ANNOTATIONS if (root / name).is_dir()]
        xmls = {xml for folder in folders for xml in folder.rglob("*.xml")}
        sources = {path for paths in splits.values() for path in paths if is_dir(path)}
        xmls = xmls or {
            cls.label_path(image) for source in sources for image in find_images(source)
        }
        found: set[str] = set()
        for xml in xmls:
            try:
                found |= {
                    item.findtext("name", "").strip() for item in _read_xml(xml).findall("object")
                }
            except (OSError, *_NO_XML):
                continue  # named when the data set is read
        return list(found - {""})

    @classmethod
    def label_path(cls, image: str | Path) -> Path:
        """The first of the places that exists, else the first of all."""
        places = _annotation_places(image)
        return next((place for place in places if is_file(place)), places[0])

    def find(self) -> list[Entry]:
        images = sorted(self.images(), key=lambda image: os.path.splitext(image)[0])
        folders = {os.path.dirname(image): image for image in images}  # one image of each
        self.split.origins.note(
            place.parent for image in folders.values() for place in _annotation_places(image)
        )
        return [Entry(image, str(self.label_path(image))) for image in images]

    def listed_images(self, source: Path) -> list[Path]:
        folder = _image_folder(self.split.root)
        if folder is None:
            raise InputError(
                f"{self.split.root}: format voc wants the folder JPEGImages (or images) here;"
                " correct the key `path`"
            )
        of_id = {
            path.relative_to(folder).with_suffix("").as_posix(): path
            for path in self.split.find_images(folder)
        }
        return [
            of_id.get(i) or folder / f"{i}.jpg"
            for i in {line.split()[0] for line in read_lines(source)}
        ]

    def read(self, entry: Entry, height: int, width: int) -> ImageLabels | None:
        if not is_file(entry.file):
            return None
        try:
            xml = _read_xml(Path(entry.file))
        except _NO_XML as e:
            raise InputError(f"{entry.file}: not valid XML ({e})") from None
        objects = []
        for k, item in enumerate(xml.findall("object"), 1):
            name = item.findtext("name", "").strip()
            difficult = (
                item.findtext("difficult", "0").strip() == "1" and not self.split.keep_difficult
            )
            problem = "marked difficult" if difficult else _ambiguity(item)
            objects.append(
                LabelObject(f"object {k} ({name})", name, _corners(item), problem, raw=item)
            )
        size = whole_size(xml.findtext("size/height"), xml.findtext("size/width"))
        return ImageLabels(objects, size, xml.findtext("filename", "").strip(), raw=xml)

    @property
    def image_folder(self) -> str:
        return "JPEGImages"

    def write(self, folder: Path, images: Sequence[RepairedImage]) -> tuple[str, list[str]]:
        done = []
        for image in images:
            if image.labels is None:
                continue
            target = folder / "Annotations" / f"{image.name.rpartition('.')[0]}.xml"
            target.parent.mkdir(parents=True, exist_ok=True)
            xml: ElementTree.Element = image.labels.raw
            repairs = _repair_header(xml, image)
            done += [f"{image.entry.file}, {repair}" for repair in repairs]
            for item, box in image.objects:
                for tag, before, after in (
                    zip(CORNERS, item.box, box, strict=True) if box is not None else ()
                ):
                    if before != after and (corner := item.raw.find(f"bndbox/{tag}")) is not None:
                        corner.text = f"{after:.9g}"
            if image.changed or repairs:
                stay = {id(item.raw) for item, _ in image.objects}
                xml[:] = [item for item in xml if item.tag != "object" or id(item) in stay]
                ElementTree.ElementTree(xml).write(target, encoding="utf-8")
            else:
                shutil.copyfile(image.entry.file, target)
        listing = folder / "ImageSets" / "Main" / f"{self.split.name}.txt"
        listing.parent.mkdir(parents=True, exist_ok=True)
        listing.write_text(
            "".join(f"{image.name.rpartition('.')[0]}\n" for image in images), encoding="utf-8"
        )
        return f"ImageSets/Main/{self.split.name}.txt", done


def _annotation_places(image: str | Path) -> list[Path]:
    """Where the annotation of an image is looked for, in order: for `.../JPEGImages/a/b.jpg` (or
    images, in any case) `.../Annotations/a/b.xml` or `.../Annotations/b.xml`, or annotations for
    Annotations; beside the image; in a folder Annotations or annotations beside the image."""
    xml = Path(image).with_suffix(".xml")
    places = []
    for i in range(len(xml.parts) - 2, -1, -1):
        if xml.parts[i].lower() in _IMAGES:
            folders = [Path(*xml.parts[:i], name) for name in _ANNOTATIONS]
            places = [folder.joinpath(*xml.parts[i + 1 :]) for folder in folders] + [
                folder / xml.name for folder in folders
            ]
            break
    return list(
        dict.fromkeys([*places, xml, *(xml.parent / name / xml.name for name in _ANNOTATIONS)])
    )


def _image_folder(root: Path) -> Path | None:
    """The folder of a root that holds its images."""
    return next(
        (root / name for name in ("JPEGImages", "images", "Images") if (root / name).is_dir()), None
    )


def _has_xml(folder: Path, most: int = 100) -> bool:
    """Whether images of a folder and its subfolders have VOC annotations and no text labels, as far
    as the first ones tell."""
    found = False
    images = (Path(at, name) for at, _, names in os.walk(folder) for name in sorted(names))
    for image in islice((path for path in images if path.suffix.lower() in SUFFIXES), most):
        if is_file(YoloText.label_path(image)):
            return False
        found = found or is_file(VocXml.label_path(image))
    return found


def _read_xml(xml: Path) -> ElementTree.Element:
    """The root of an annotation file; one of _NO_XML if it is none."""
    root = ElementTree.parse(xml).getroot()
    level = [root]
    for _ in range(DEEPEST):
        level = list(chain.from_iterable(level))
    if level:
        raise ValueError(f"it is nested more than {DEEPEST} deep")
    if root.tag != "annotation":
        raise ValueError(f"it is about <{root.tag}>, not <annotation>")
    return root


def _ambiguity(item: ElementTree.Element) -> str:
    """Why nobody can tell what an object's name and corners are, or an empty string."""
    for tag in ("name", "bndbox", *(f"bndbox/{corner}" for corner in CORNERS)):
        found = item.findall(tag)
        if len(found) > 1:
            return f"ambiguous: {len(found)} times <{tag}>"
        if found and tag != "bndbox" and len(found[0]):
            return f"ambiguous: <{tag}> holds more than text"
    return ""


def _corners(item: ElementTree.Element) -> list[float]:
    """xmin, ymin, xmax, ymax of a VOC object; NaN where missing or not a number."""

    def number(tag: str) -> float:
        try:
            text = item.findtext(f"bndbox/{tag}", "nan")
            # Python reads 1_0 as 10
            return float(text) if text.isascii() and "_" not in text else math.nan
        except ValueError:
            return math.nan

    return [number(tag) for tag in CORNERS]


def _repair_header(annotation: ElementTree.Element, image: RepairedImage) -> list[str]:
    """Correct the size and the file name that an annotation gives its image."""
    repairs = []
    for tag, pixels in zip(("height", "width"), image.size, strict=True):
        element = annotation.find(f"size/{tag}")
        if element is not None and (element.text or "").strip() != str(pixels):
            repairs.append(f"{tag}: {element.text} corrected to {pixels}")
            element.text = str(pixels)
    element, name = annotation.find("filename"), Path(image.name).name
    if (
        element is not None
        and (element.text or "").strip()
        and Path((element.text or "").strip()).stem != Path(name).stem
    ):
        repairs.append(f"filename: {element.text} corrected to {name}")
        element.text = name
    return repairs
