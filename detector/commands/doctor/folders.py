"""What is wrong in the folders of a dataset and in its class names."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from boltbox.detector.commands.doctor.finding import Finding
from boltbox.detector.data.dataset_file import DatasetFile, format_class
from boltbox.detector.data.datasets import DetectionDataset
from boltbox.detector.data.formats.format import PerImageFormat

_UNREAD = {".avif", ".gif", ".heic", ".heif", ".jfif", ".jp2", ".pgm", ".pnm", ".ppm"}
_NO_LABELS = {"classes.txt"}  # labelImg writes it beside the labels


def examine_folders(
    file: DatasetFile, datasets: Mapping[str, DetectionDataset]
) -> Iterator[Finding]:
    """Report similar class names, images that are not read, and labels without an image.

    Args:
        file: the dataset.
        datasets: its splits that could be opened.

    Yields:
        The findings.
    """
    alike = defaultdict(list)
    for name in file.names:
        alike[" ".join(name.lower().split())].append(repr(name))
    for names in alike.values():
        if len(names) > 1:
            problem = f"the names {', '.join(names)} differ in capitals and spaces only"
            yield Finding("warning", "similar_names", problem, file.source)
    images: set[str] = set()
    for dataset in datasets.values():
        images.update(dataset.files)
        images.update(fault.image for fault in dataset.faults if not fault.where)
    yield from _unread_images(images)
    format_of_labels = format_class(file.format)
    if issubclass(format_of_labels, PerImageFormat):
        yield from _orphans(file, format_of_labels, images)


def _unread_images(images: set[str]) -> Iterator[Finding]:
    """Files beside the images that boltbox does not read."""
    for folder in sorted({Path(image).absolute().parent for image in images}):
        if not folder.is_dir():
            continue
        for path in sorted(folder.iterdir()):
            if path.suffix.lower() in _UNREAD:
                problem = f"images of the kind {path.suffix} are not read; convert it"
                yield Finding("warning", "unread_image", problem, str(path))


def _orphans(
    file: DatasetFile, format_of_labels: type[PerImageFormat], images: set[str]
) -> Iterator[Finding]:
    """Label files without an image."""
    image_folders = defaultdict(set)
    for image in images:
        labels = Path(format_of_labels.label_path(image)).parent
        image_folders[labels].add(Path(image).parent)
    lists = set()
    for paths in file.splits.values():
        lists.update(paths)
    for labels, folders in sorted(image_folders.items()):
        if labels in folders:
            continue
        stems: set[str] = set()
        for folder in folders:
            stems.update(path.stem for path in folder.glob("*"))
        for path in sorted(labels.glob(f"*{format_of_labels.suffix}")):
            if path.stem not in stems and path not in lists and path.name not in _NO_LABELS:
                problem = f"no image of this name in {', '.join(map(str, sorted(folders)))}"
                yield Finding("warning", "orphan_label_file", problem, str(path))
