"""What was found in a data set, and what of it was left out and why."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

_KINDS = {  # how a reason begins -> its slug
    "wrong column count": "wrong_column_count",
    "not a number": "not_a_number",
    "non-finite": "non_finite",
    "missing or non-finite": "non_finite",
    "negative value": "negative_value",
    "coordinate above 1": "coordinate_above_1",
    "coordinate beyond": "far_coordinate",
    "ambiguous": "ambiguous_object",
    "zero": "zero_size_box",
    "duplicate": "duplicate_box",
    "unknown class": "unknown_class",
    "class": "class_not_an_integer",
    "marked difficult": "difficult_object",
    "its image": "orphan_annotation",
    "no such image file": "missing_image",
    "no regular file": "missing_image",
    "not a readable image": "unreadable_image",
    "image too small": "too_small_image",
    "not valid XML": "unreadable_labels",
    "none of its": "no_usable_object",
}


@dataclass(frozen=True)
class Fault:
    """One thing that was left out.

    file: image or label file · where: the place in it ("line 3", "object 2"), "" for the whole ·
    problem: the reason · image: the image file that it is about, "" if there is none · box: of a
    dropped object, xyxy in pixels of the image, as far as it could be read.
    """

    file: str
    where: str
    problem: str
    image: str = field(default="", compare=False)
    box: Sequence[float] | None = field(default=None, compare=False)

    @property
    def kind(self) -> str:
        """A slug that scripts can filter by, for example zero_size_box."""
        return next(
            (kind for start, kind in _KINDS.items() if self.problem.startswith(start)), "unusable"
        )

    def __str__(self) -> str:
        return ", ".join(filter(None, (self.file, self.where))) + f": {self.problem}"


@dataclass
class DataReport:
    """Counts of one split. `faults` names every box that was dropped, `lost_images` every
    image."""

    images: int = 0
    boxes: int = 0
    background: int = 0  # images without any object
    unlabelled: int = 0  # of these, images without a label file
    faults: list[Fault] = field(default_factory=list)
    lost_images: list[Fault] = field(default_factory=list)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Of what dataclasses.asdict gave, after a way through JSON."""
        faults = {
            name: [Fault(**row) for row in values[name]] for name in ("faults", "lost_images")
        }
        return cls(**values | faults)

    @property
    def left_out(self) -> list[Fault]:
        return self.lost_images + self.faults

    def lines(self, split: str, most: int = 10) -> list[str]:
        """A summary line, then the first few names of what was left out; the run's dropped.txt has
        them all."""
        words = [f"{self.images} images", f"{self.boxes} boxes"]
        if self.background:
            words.append(
                f"{self.background} images without objects ({self.unlabelled} without a label file)"
            )
        if self.faults:
            words.append(f"{len(self.faults)} boxes dropped")
        if self.lost_images:
            words.append(f"{len(self.lost_images)} images dropped")
        left_out = [f"  left out: {fault}" for fault in self.left_out]
        if len(left_out) > most:
            left_out[most:] = [f"  ... and {len(left_out) - most} more, all in dropped.txt"]
        return [f"{split}: " + ", ".join(words), *left_out]
