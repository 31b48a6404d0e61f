"""Images with labels on disk -> Samples, whatever the label format; `read_split.py` makes them of
files."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from torch.utils.data import Dataset

from boltbox.detector.data.images import read_image
from boltbox.detector.data.label_table import LabelSource, LabelTable
from boltbox.detector.data.report import DataReport
from boltbox.detector.data.sample import Labels, LetterboxInfo, Sample
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.text_file import read_text


class DetectionDataset(Dataset):
    """Images with labels; item i is the i-th Sample at the file's own resolution, without crowd
    regions.

    Attributes:
        files: image paths · labels: their Labels · names: class names · report: what was found and
            left out · sources: where the labels are written.
    """

    def __init__(
        self,
        files: Sequence[str],
        labels: Sequence[Labels] | LabelTable,
        names: list[str],
        report: DataReport,
        sources: Sequence[LabelSource] | None = None,
    ) -> None:
        self.files = list(files)
        self.labels = labels if isinstance(labels, LabelTable) else LabelTable.of(labels)
        self.names, self.report = names, report
        self.sources = sources or [LabelSource()] * len(self.files)
        report.images, report.boxes = len(self.files), len(self.labels.boxes)
        report.background = int((np.diff(self.labels.starts) == 0).sum())

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, i: int) -> Sample:
        boxes, classes, polygons = self.labels.counted(i)
        image = self.read(i)
        frame = LetterboxInfo(*image.shape[:2])
        return Sample(image, boxes.copy(), classes.copy(), polygons, frame, i)

    def read(self, i: int, least: int = 0) -> np.ndarray:
        """(H, W, 3) uint8 RGB of image i; of a JPEG file 1/2, 1/4 or 1/8 of its size, if not 0 but
        `least` pixels on the longer side will do."""
        longer = self.labels.sizes[i].max()
        shrink = next((k for k in (8, 4, 2) if least and longer >= k * least), 1)
        return read_image(self.files[i], shrink)

    def merge_classes(self) -> None:
        """Single-class mode: every object becomes class 0, named `item` unless there is just one
        name."""
        self.names = self.names if len(self.names) == 1 else ["item"]
        self.labels = replace(self.labels, classes=np.zeros_like(self.labels.classes))

    def check_classes(self) -> None:
        """Raises InputError, naming a file, if a class number has no name."""
        nameless = np.flatnonzero(self.labels.classes >= len(self.names))
        if len(nameless):
            i = self.labels.image_of(nameless[0])
            count = len(self.names)
            raise InputError(
                f"{self.files[i]}: its labels hold class {self.labels[i].classes.max()}, but the"
                f" data set has {count} names (0 to {count - 1}); correct the labels or `names`, or"
                " use --data.single_class true"
            )

    def class_counts(self) -> np.ndarray:
        """(C,) number of boxes of each class, crowd regions left out."""
        return np.bincount(self.labels.classes[~self.labels.crowd], minlength=len(self.names))

    def object_sizes(self, image_size: int) -> np.ndarray:
        """(objects, 2) width and height in pixels of the network's input, crowd regions
        too. image_size: its longer side."""
        table = self.labels
        gain = image_size / np.repeat(table.sizes.max(1, initial=1), np.diff(table.starts))
        return (table.boxes[:, 2:] - table.boxes[:, :2]) * gain[:, None].astype(np.float32)


def read_lines(source: Path) -> list[str]:
    """The lines of a text file that are not empty; InputError if it is no text."""
    try:
        text = read_text(source)
    except InputError as e:
        raise InputError(f"{e}; a list of images has one a line") from None
    return [line.strip() for line in text.splitlines() if line.strip()]
