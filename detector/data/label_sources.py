"""Where the labels of a data set are written, beside their LabelTable: arrays of the same kind, for
the same reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from boltbox.detector.data.cache.packed import Damaged
from boltbox.detector.data.label_table import FileNames

_LARGEST = 2**31 - 1


class LabelSource(NamedTuple):
    """Of one image. file: its label file, "" if there is none · places: what each of its objects is
    called in reports ("line 3", "object 2 (cat)") · size: (height, width) that the label file gives
    the image, or None."""

    file: str = ""
    places: Sequence[str] = ()
    size: tuple[int, int] | None = None


@dataclass(frozen=True, eq=False)
class LabelSources:
    """n images; item i is the LabelSource of image i.

    files: the label files, each once · file (n,) int32: that of each image, -1 for none · sizes (n,
    2) int32: height and width that it gives the image, 0, 0 for none · places: n texts, a line an
    object.
    """

    files: FileNames
    file: np.ndarray
    sizes: np.ndarray
    places: FileNames

    @classmethod
    def of(cls, sources: Sequence[LabelSource]) -> LabelSources:
        numbers = {
            name: k for k, name in enumerate(dict.fromkeys(s.file for s in sources if s.file))
        }
        return cls(
            FileNames.of(numbers),
            np.array([numbers.get(s.file, -1) for s in sources], np.int32),
            np.array([s.size or (0, 0) for s in sources], object)
            .reshape(-1, 2)
            .clip(0, _LARGEST)
            .astype(np.int32),
            FileNames.of("\n".join(map(_in_one_line, s.places)) for s in sources),
        )

    def __iter__(self) -> Iterator[LabelSource]:
        return map(self.__getitem__, range(len(self)))

    def __len__(self) -> int:
        return len(self.file)

    def __getitem__(self, i: int) -> LabelSource:
        number, places = int(self.file[i]), self.places[i]
        height, width = self.sizes[i].tolist()
        file = self.files[number] if number >= 0 else ""
        return LabelSource(
            file, places.split("\n") if places else (), (height, width) if height else None
        )

    def arrays(self) -> dict[str, np.ndarray]:
        files, places = self.files, self.places
        columns = (files.text, files.starts, self.file, self.sizes, places.text, places.starts)
        return {f"source_{k}": column for k, column in enumerate(columns)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> LabelSources:
        """What `arrays` gave; Damaged if they do not fit together."""
        text, starts, file, sizes, place_text, place_starts = (
            arrays[f"source_{k}"] for k in range(6)
        )
        sources = cls(FileNames(text, starts), file, sizes, FileNames(place_text, place_starts))
        if (
            not len(sources) == len(sources.sizes) == len(sources.places)
            or (file >= len(sources.files)).any()
        ):
            raise Damaged("its arrays do not fit together (sources)")
        return sources


def _in_one_line(place: str) -> str:
    return " ".join(place.splitlines()).encode(errors="backslashreplace").decode() or "?"
