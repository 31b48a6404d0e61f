"""What the formats with a label file for each image have in common."""

import os
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from boltbox.detector.data.formats.format import Entry, Format
from boltbox.detector.data.report import Remark
from boltbox.detector.system.text_file import is_dir

_NO_LABELS = {"classes.txt"}  # labelImg writes it beside the labels


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

    def images(self) -> set[str]:
        """All images of the split."""
        images: set[str] = set()
        for source in self.split.paths:
            found = self.split.find_images(source) if is_dir(source) else self.listed_images(source)
            images |= set(map(str, found))
        return images

    def find(self) -> list[Entry]:
        return [Entry(image, str(self.label_path(image))) for image in sorted(self.images())]

    def label_folders(self, images: Iterable[str]) -> dict[Path, set[Path]]:
        of_folder = {os.path.dirname(image): image for image in images}  # one image of each folder
        folders = defaultdict(set)
        for folder, image in of_folder.items():
            folders[self.label_path(image).parent].add(Path(folder))
        return folders

    @classmethod
    def examine(
        cls, splits: Mapping[str, tuple[Format, Sequence[str], Mapping[str, list[str]]]]
    ) -> Iterator[Remark]:
        yield from super().examine(splits)
        folders: dict[Path, set[Path]] = defaultdict(set)
        lists = {path for form, _, _ in splits.values() for path in form.split.paths}
        for form, images, used in splits.values():
            for file, rivals in used.items():
                if len(rivals) > 1:
                    problem = f"is used for {len(rivals)} images: {', '.join(rivals)}"
                    yield Remark("warning", "stem_clash", file, "", problem)
            for labels, of_images in form.label_folders(images).items():
                folders[labels] |= of_images
        for labels, of_images in sorted(folders.items()):
            stems = {path.stem for folder in of_images for path in folder.iterdir()}
            files = sorted(labels.glob(f"*{cls.suffix}"))
            for path in files if labels not in of_images else ():
                if path.name not in _NO_LABELS and path not in lists and path.stem not in stems:
                    problem = f"no image of this name in {', '.join(map(str, sorted(of_images)))}"
                    yield Remark("warning", "orphan_label_file", str(path), "", problem)
