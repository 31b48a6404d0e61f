"""What is wrong in the folders of a data set: files that nothing refers to, or that several things
do; and in its data.yaml."""

from collections import defaultdict
from collections.abc import Mapping

from boltbox.detector.commands.doctor.finding import Finding
from boltbox.detector.data.dataset_file import DatasetFile
from boltbox.detector.data.datasets import DetectionDataset
from boltbox.detector.data.formats import format_class


def examine_folders(file: DatasetFile, datasets: Mapping[str, DetectionDataset]) -> list[Finding]:
    """Orphans, clashes and wrong suffixes in the folders of the splits that could be opened; names
    that are nearly the same; splits that training needs."""
    found = []
    for split in ("train", "val"):
        if split not in file.splits:
            problem = f"the key `{split}` is missing; training needs train and val"
            found.append(Finding("warning", "missing_split", split, file.source, "", problem))
    alike = defaultdict(list)
    for name in file.names:
        alike[" ".join(name.lower().split())].append(repr(name))
    for names in alike.values():
        if len(names) > 1:
            problem = f"the names {', '.join(names)} differ in capitals and spaces only"
            found.append(Finding("warning", "similar_names", "", file.source, "", problem))
    splits = {}
    for split, dataset in datasets.items():
        images: dict[str, dict[str, None]] = defaultdict(dict)  # by label file, each once
        for image, source in zip(dataset.files, dataset.sources, strict=True):
            if source.file:
                images[source.file][image] = None
        of_labels = {label: list(of) for label, of in images.items()}
        splits[split] = (file.form(split), all_images(dataset), of_labels)
    for r in format_class(file.format).examine(splits):
        found.append(Finding(r.severity, r.kind, "", r.file, r.where, r.problem))
    return found


def all_images(dataset: DetectionDataset) -> list[str]:
    """The image files of a split, those too that training leaves out."""
    return [*dataset.files, *(fault.image for fault in dataset.report.lost_images)]
