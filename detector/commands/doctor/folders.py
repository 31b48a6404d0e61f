"""What is wrong in the folders of a data set: files that nothing refers to, or that several things
do; and in its data.yaml."""

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from boltbox.detector.commands.doctor.finding import Finding
from boltbox.detector.data.dataset_file import DatasetFile, format_class
from boltbox.detector.data.datasets import DetectionDataset
from boltbox.detector.data.formats.format import PerImageFormat
from boltbox.detector.data.images import SUFFIXES

_UNREAD = {".avif", ".gif", ".heic", ".heif", ".jfif", ".jp2", ".pgm", ".pnm", ".ppm"}
_NO_LABELS = {"classes.txt"}  # labelImg writes it beside the labels


def examine_folders(
    file: DatasetFile, datasets: Mapping[str, DetectionDataset]
) -> Iterator[Finding]:
    """Orphans and clashes in the folders of the splits that could be opened, and names that are
    nearly the same."""
    alike = defaultdict(list)
    for name in file.names:
        alike[" ".join(name.lower().split())].append(repr(name))
    for names in alike.values():
        if len(names) > 1:
            problem = f"the names {', '.join(names)} differ in capitals and spaces only"
            yield Finding("warning", "similar_names", problem, file.source)
    images = {image for dataset in datasets.values() for image in dataset.files}
    images |= {f.image for dataset in datasets.values() for f in dataset.faults if not f.where}
    yield from _image_files(images)
    yield from _label_files(file, datasets.values(), images)


def _image_files(images: set[str]) -> Iterator[Finding]:
    """Files of the images' folders that are no images of any split."""
    used = {Path(os.path.abspath(image)) for image in images}
    for folder in sorted({path.parent for path in used if path.parent.is_dir()}):
        files = sorted(folder.iterdir())
        for path in files:
            if path.suffix.lower() in _UNREAD:
                problem = f"images of the kind {path.suffix} are not read; convert it"
                yield Finding("warning", "unread_image", problem, str(path))
        unused = [path for path in files if path.suffix.lower() in SUFFIXES and path not in used]
        if unused:
            problem = f"{len(unused)} images here are in no split, for example {unused[0].name}"
            yield Finding("note", "unlisted_images", problem, str(folder))


def _label_files(
    file: DatasetFile, datasets: Iterable[DetectionDataset], images: set[str]
) -> Iterator[Finding]:
    """Label files of several images, and of none."""
    form = format_class(file.format)
    if not issubclass(form, PerImageFormat):
        return
    of_label = defaultdict(set)
    for dataset in datasets:
        for image, source in zip(dataset.files, dataset.sources, strict=True):
            of_label[source.file].add(image)
    for label, rivals in of_label.items():
        if label and len(rivals) > 1:
            problem = f"is used for {len(rivals)} images: {', '.join(sorted(rivals))}"
            yield Finding("warning", "stem_clash", problem, label)
    folders = defaultdict(set)
    for folder, image in {os.path.dirname(image): image for image in images}.items():
        folders[Path(form.label_path(image)).parent].add(Path(folder))
    lists = {path for paths in file.splits.values() for path in paths}
    for labels, of_images in sorted(folders.items()):
        stems = {path.stem for folder in of_images for path in folder.glob("*")}
        for path in sorted(labels.glob(f"*{form.suffix}")) if labels not in of_images else ():
            if path.name not in _NO_LABELS and path not in lists and path.stem not in stems:
                problem = f"no image of this name in {', '.join(map(str, sorted(of_images)))}"
                yield Finding("warning", "orphan_label_file", problem, str(path))
