"""What a review finds: labels that may be wrong, as review.json and review.csv hold them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from boltbox.detector.data.sample import Labels
from boltbox.detector.report.labelling_tools import BoxedImage
from boltbox.detector.system.atomic_file import write_atomically
from boltbox.detector.system.csv_table import write_table
from boltbox.detector.system.rank_zero import printable

VERSION = 1
Box = list[float]  # x1, y1, x2, y2 in pixels of the image file
KINDS = {  # in the order in which they are shown
    "missing": "object without a label",
    "wrong_class": "label of another class",
    "badly_placed": "box that does not fit",
    "no_object": "label without an object",
    "duplicate": "second label of one object",
}


@dataclass(frozen=True)
class Suggestion:
    """What a label should be.

    Attributes:
        box: x1, y1, x2, y2 in pixels of the image file.
        class_index: number of the class.
    """

    box: Box
    class_index: int


class ReviewedImage(NamedTuple):
    """An image of the dataset.

    Attributes:
        file: absolute path.
        split: train, val or test.
        labels: as training reads them.
        places: of the labels: file, and line or object in it.
        ignored: (k, 4) boxes of objects that training leaves out, like difficult ones.
    """

    file: str
    split: str
    labels: Labels
    places: Sequence[str]
    ignored: np.ndarray

    def content(self) -> dict[str, Any]:
        """What review.json holds."""
        labels = self.labels
        rows = []
        for k, place in enumerate(self.places):
            box = labels.boxes[k].tolist()
            index = int(labels.classes[k])
            rows.append(
                {"box": box, "class": index, "crowd": bool(labels.crowd[k]), "place": place}
            )
        return {
            "file": self.file,
            "split": self.split,
            "width": labels.width,
            "height": labels.height,
            "digest": labels.digest(),
            "labels": rows,
        }


@dataclass(frozen=True)
class Suspect:
    """A label that may be wrong or missing.

    Attributes:
        id: its number.
        image: number of the image in Review.images.
        kind: one of KINDS.
        probability: that the label is wrong, or that one is missing.
        label: number of the label in the image; None: it is missing.
        box: of the label, or of the detection without one; xyxy in pixels of the image file.
        class_index: of the label or the detection.
        suggestion: what the label should be; None: there should be none.
        reason: one line.
    """

    id: int
    image: int
    kind: str
    probability: float
    label: int | None
    box: Box
    class_index: int
    suggestion: Suggestion | None
    reason: str


@dataclass(frozen=True)
class Source:
    """The dataset, as DatasetFile reads it.

    Attributes:
        dataset: absolute path of the data.yaml or the folder.
        format: of its labels, if it was given.
        split: share of val, if it was given.
        single_class: all objects are of one class.
    """

    dataset: str
    format: str | None = None
    split: float | None = None
    single_class: bool = False


@dataclass(frozen=True)
class Review:
    """The suspects of a dataset.

    Attributes:
        dataset: where it is.
        names: class names.
        images: those with suspects.
        suspects: most probable first.
    """

    dataset: Source
    names: list[str]
    images: Sequence[ReviewedImage]
    suspects: list[Suspect]

    @cached_property
    def content(self) -> dict[str, Any]:
        """What review.json holds."""
        rest = {
            "dataset": asdict(self.dataset),
            "names": self.names,
            "images": [image.content() for image in self.images],
            "suspects": [asdict(suspect, dict_factory=_to_json) for suspect in self.suspects],
        }
        digest = sha256(json.dumps(rest).encode()).hexdigest()
        return {"version": VERSION, "id": digest} | rest

    def write(self, folder: Path) -> None:
        """Write review.csv and review.json.

        Args:
            folder: of the run.
        """
        write_table(folder / "review.csv", [self._row(suspect) for suspect in self.suspects])
        write_atomically(folder / "review.json", json.dumps(self.content))

    def summary(self) -> list[str]:
        """A line per kind."""
        lines = []
        for kind, text in KINDS.items():
            found = [suspect.probability for suspect in self.suspects if suspect.kind == kind]
            if found:
                wrong = round(sum(found))
                lines.append(f"{kind}: {len(found)} suspects, about {wrong} of them wrong ({text})")
        return lines

    def boxed(self) -> list[BoxedImage]:
        """The images with their labels, and with the missing ones that are probable. The confidence
        of each is the probability that it is right."""
        boxed = []
        for image in self.images:
            labels = image.labels
            sure = np.ones(len(labels.boxes))
            rows = np.column_stack((labels.boxes, sure, labels.classes)).tolist()
            boxed.append(BoxedImage(image.file, labels.width, labels.height, rows))
        for suspect in self.suspects:
            rows = boxed[suspect.image].rows
            if suspect.label is not None:
                rows[suspect.label][4] = 1 - suspect.probability
            elif suspect.probability > 0.5:
                rows.append([*suspect.box, suspect.probability, suspect.class_index])
        return boxed

    def _row(self, suspect: Suspect) -> dict[str, Any]:
        """Of review.csv."""
        image = self.images[suspect.image]
        row: dict[str, Any] = {"id": suspect.id, "probability": round(suspect.probability, 4)}
        row |= {"kind": suspect.kind, "file": image.file, "split": image.split, "place": ""}
        if suspect.label is not None:
            row["place"] = image.places[suspect.label]
        for prefix, item in {"": suspect, "suggested_": suspect.suggestion}.items():
            if item:
                row[f"{prefix}class"] = self.names[item.class_index]
                row[f"{prefix}box"] = " ".join(f"{value:.2f}" for value in item.box)
        row["reason"] = suspect.reason
        return {name: printable(str(value)) for name, value in row.items()}


def _to_json(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The fields of a dataclass as an object of a json file, in which `class_index` is `class`."""
    return {name.removesuffix("_index"): value for name, value in pairs}
