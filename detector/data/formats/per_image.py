"""What the formats with a label file for each image have in common."""

from abc import abstractmethod
from os.path import isdir
from pathlib import Path
from typing import ClassVar

from boltbox.detector.data.formats.format import Entry, Format


class PerImageFormat(Format):
    """A label file for each image. A split is a folder of images, or a text file with an image a
    line.

    suffix: of the label files.
    """

    suffix: ClassVar[str]

    @classmethod
    @abstractmethod
    def label_path(cls, image: str | Path) -> Path:
        """Where the label file of an image is, or would be."""

    @abstractmethod
    def listed_images(self, source: Path) -> list[Path]:
        """The images that a text file lists."""

    def find(self) -> list[Entry]:
        images: set[Path] = set()
        for source in self.split.paths:
            found = self.split.find_images(source) if isdir(source) else self.listed_images(source)
            images |= set(found)
        return [Entry(image, str(self.label_path(image))) for image in sorted(map(str, images))]
