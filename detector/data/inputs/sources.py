"""What `source` means: image files, video files, a stream, a camera."""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from boltbox.detector.data.datasets import read_lines
from boltbox.detector.data.images import SUFFIXES, find_images
from boltbox.detector.data.inputs.video import without_password
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.file_names import MOST_BYTES, short_name
from boltbox.detector.system.text_file import exists, is_file

VIDEOS = {
    ".asf",
    ".avi",
    ".gif",
    ".m4v",
    ".mkv",
    ".mov",
    ".mp4",
    ".mpeg",
    ".mpg",
    ".ts",
    ".webm",
    ".wmv",
}
_STREAM = re.compile(r"(rtsps?|rtmps?|https?|udp|tcp|srt)://", re.IGNORECASE)


@dataclass
class Sources:
    """images, videos: files, in order · stream: an address, or the number of a camera · said: what
    the user gave."""

    said: str
    images: list[str] = field(default_factory=list)
    videos: list[str] = field(default_factory=list)
    stream: str | None = None

    @classmethod
    def find(cls, source: str) -> "Sources":
        """
        Args:
            source: an image or a video, a folder (with its subfolders), a glob pattern, a list file
                (.txt, a path a line, from here or from the list's folder), an address (rtsp, http,
                ...), the number of a camera, or `-`: paths from the standard input, one a line.

        Raises:
            InputError: nothing is there.
        """
        if _STREAM.match(source) or source.isdecimal():
            return cls(source, stream=source)
        if source == "-":
            found, what = (
                cls._listed(
                    [line.strip() for line in sys.stdin if line.strip()],
                    Path(),
                    "the standard input",
                ),
                "path",
            )
        elif Path(source).suffix.lower() == ".txt" and exists(source):
            found, what = cls._listed(read_lines(Path(source)), Path(source).parent, source), "path"
        else:
            found, what = find_images(source, SUFFIXES | VIDEOS), "image or video file"
            if not found and not exists(source) and not set(source) & set("*?["):
                raise InputError(f"source {source}: no such file or folder")
        if not found:
            raise InputError(f"source {source}: no {what} there")
        videos = [str(p) for p in found if p.suffix.lower() in VIDEOS]
        return cls(source, [str(p) for p in found if p.suffix.lower() not in VIDEOS], videos)

    @staticmethod
    def _listed(lines: Sequence[str], beside: Path, where: str) -> list[Path]:
        """Files that a list names; what is not found from here is looked for from the list's
        folder."""
        found = []
        for number, line in enumerate(lines, 1):
            path = next((p for p in (Path(line), beside / line) if is_file(p)), None)
            if path is None:
                raise InputError(f"source: {where}, line {number}: no such file: {line}")
            found.append(path)
        return found

    def moving(self) -> list[str]:
        """Videos, or the stream."""
        return self.videos if self.stream is None else [self.stream]

    def names(self) -> tuple[list[str], list[str]]:
        """For each image and for each video what its output is called: its path below the common
        folder of all, without suffix; those that differ in their suffix alone keep it, as
        `name_png`. Files of one name in a list get numbers, very long names are cut
        (`short_name`)."""
        if self.stream is not None:
            address = without_password(self.stream).partition("://")[2] or f"camera{self.stream}"
            return [], [re.sub(r"\W+", "_", address).strip("_") or "stream"]
        names = output_names([*self.images, *self.videos])
        return names[: len(self.images)], names[len(self.images) :]


def output_names(files: Sequence[str]) -> list[str]:
    """See `Sources.names`.

    >>> output_names(["a/x.jpg", "a/b/x.jpg", "a/x.png", "a/x.jpg"])
    ['x_jpg', 'b/x', 'x_png', 'x_jpg_2']
    """
    resolved = [Path(f).absolute() for f in files]
    folder = resolved[0].parent
    while not all(f.is_relative_to(folder) for f in resolved):
        folder = folder.parent
    names = [f.relative_to(folder) for f in resolved]
    files_of: dict[str, set[str]] = {}
    for name in names:
        files_of.setdefault(str(name.with_suffix("")), set()).add(name.suffix)
    outputs, uses = [], dict[str, int]()
    for name in names:
        stem = str(name.with_suffix(""))
        output = stem if len(files_of[stem]) == 1 else f"{stem}_{name.suffix[1:]}"
        output = (
            str(Path(output).with_name(short_name(Path(output).name)))
            if len(output) > MOST_BYTES // 4
            else output
        )
        uses[output] = uses.get(output, 0) + 1
        outputs.append(output if uses[output] == 1 else f"{output}_{uses[output]}")
    return outputs
