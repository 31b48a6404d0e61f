"""Files in the folders of a data set that are not read, for the doctor."""

from collections.abc import Collection, Iterator
from pathlib import Path

from boltbox.detector.data.images import SUFFIXES
from boltbox.detector.data.report import Remark

# not looked for
_UNREAD = {
    ".avif",
    ".gif",
    ".heic",
    ".heif",
    ".jfif",
    ".jp2",
    ".jpe",
    ".pbm",
    ".pgm",
    ".pnm",
    ".ppm",
}
_LABELS = {".csv", ".json", ".text", ".txt", ".xml"}


def files_in(folder: Path) -> list[Path]:
    """Sorted; none if there is no such folder."""
    return sorted(folder.iterdir()) if folder.is_dir() else []


def images_in(folder: Path) -> list[Path]:
    """Image files of a folder, without its subfolders, sorted."""
    return [path for path in files_in(folder) if path.suffix.lower() in SUFFIXES]


def unread_images(folder: Path) -> Iterator[Remark]:
    for path in files_in(folder):
        if path.suffix.lower() in _UNREAD:
            problem = (
                f"images of the kind {path.suffix} are not read; convert it to one of"
                f" {', '.join(sorted(SUFFIXES))}"
            )
            yield Remark("warning", "unread_image", str(path), "", problem)


def unlisted_images(folder: Path, used: Collection[Path]) -> Iterator[Remark]:
    """Images of a folder that are not among the used ones."""
    unused = [path for path in images_in(folder) if path not in used]
    if unused:
        problem = (
            f"{len(unused)} images here are in none of the splits, for example {unused[0].name}"
        )
        yield Remark("note", "unlisted_images", str(folder), "", problem)


def misnamed_labels(path: Path, suffix: str) -> Iterator[Remark]:
    """A label file of another suffix, where there is none of the wanted one."""
    if (
        path.suffix != suffix
        and path.suffix.lower() in _LABELS
        and not path.with_suffix(suffix).is_file()
    ):
        problem = f"is not read, labels are {path.stem}{suffix}"
        yield Remark("warning", "wrong_label_suffix", str(path), "", problem)
