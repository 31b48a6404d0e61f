"""What an evaluation saw, kept in the run's folder: every detection and every label it was compared
with."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from boltbox.detector.data.sample import Labels
from boltbox.detector.evaluation.class_metrics import ClassMetrics, class_metrics, match
from boltbox.detector.model.boxes import clip_xyxy
from boltbox.detector.system.atomic_file import write_atomically
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.file_names import common_folder, inside

ARRAYS = (
    "sizes",
    "image",
    "box",
    "score",
    "kind",
    "label_image",
    "label_box",
    "label_kind",
    "label_area",
)


@dataclass
class PredictionRecord:
    """Detections and labels of an evaluated split.

    names: of the classes · files: of the images · image_size: longer side of the network's input ·
    split, command, epoch (-1 outside a fit) · sizes (images, 2) int64 height, width · image (n,)
    index into files, box (n, 4) xyxy pixels of the file, score (n,), kind (n,) class: the
    detections, image by image, the most confident first · label_image (m,), label_box (m, 4),
    label_kind (m,), label_area (m,) square pixels: the labels, clipped to their images, without
    crowd regions.
    """

    names: list[str]
    files: list[str]
    image_size: int
    split: str
    command: str
    epoch: int
    sizes: np.ndarray
    image: np.ndarray
    box: np.ndarray
    score: np.ndarray
    kind: np.ndarray
    label_image: np.ndarray
    label_box: np.ndarray
    label_kind: np.ndarray
    label_area: np.ndarray
    _starts: tuple[np.ndarray, np.ndarray] = field(init=False)

    def __post_init__(self) -> None:
        ends = np.arange(len(self.files) + 1)
        self._starts = np.searchsorted(self.image, ends), np.searchsorted(self.label_image, ends)

    @classmethod
    def of(
        cls,
        seen: dict[int, tuple[np.ndarray, Labels]],
        files: list[str],
        names: list[str],
        image_size: int,
        split: str,
        command: str,
        epoch: int = -1,
    ) -> PredictionRecord:
        """`seen`: by image index what `DetectionMetrics` collected; files: by image, in the same
        order."""
        found = [rows for rows, _ in seen.values()]
        truths = [truth.keep(~truth.crowd) for _, truth in seen.values()]
        rows = np.concatenate([np.zeros((0, 6), np.float32), *found])
        boxes = [clip_xyxy(truth.boxes, truth.width, truth.height) for truth in truths]
        numbers = np.arange(len(seen), dtype=np.int32)
        return cls(
            *(list(names), files, image_size, split, command, epoch),
            np.array([(truth.height, truth.width) for truth in truths], np.int64).reshape(-1, 2),
            np.repeat(numbers, [len(r) for r in found]),
            *(rows[:, :4], rows[:, 4], rows[:, 5].astype(np.int32)),
            np.repeat(numbers, [len(truth.boxes) for truth in truths]),
            np.concatenate([np.zeros((0, 4), np.float32), *boxes]),
            np.concatenate([np.zeros(0, np.int64), *(truth.classes for truth in truths)]),
            np.concatenate([np.zeros(0, np.float32), *(truth.area for truth in truths)]),
        )

    def save(self, path: Path) -> None:
        """Not compressed: that would take seconds, after every better epoch."""
        strings = {
            "names": [n.encode(errors="surrogateescape") for n in self.names],
            "files": [*map(os.fsencode, self.files)],
        }
        scalars = {
            "image_size": self.image_size,
            "epoch": self.epoch,
            "split": self.split,
            "command": self.command,
        }
        arrays: dict[str, Any] = {name: getattr(self, name) for name in ARRAYS}
        arrays |= {
            name: np.frombuffer(b"\0".join(parts), np.uint8) for name, parts in strings.items()
        }
        arrays |= {name: np.array(value) for name, value in scalars.items()}
        write_atomically(path, lambda file: np.savez(file, **arrays))

    @classmethod
    def load(cls, path: Path) -> PredictionRecord:
        """Raises InputError, in one sentence, if the file is not what `save` wrote."""
        try:
            with np.load(path, allow_pickle=False) as content:
                arrays = {name: content[name] for name in content.files}
            names, files = (
                arrays[name].tobytes().split(b"\0") if arrays[name].size else []
                for name in ("names", "files")
            )
            record = cls(
                [n.decode(errors="surrogateescape") for n in names],
                [os.fsdecode(f) for f in files],
                int(arrays["image_size"]),
                *(str(arrays["split"]), str(arrays["command"]), int(arrays["epoch"])),
                **{name: arrays[name] for name in ARRAYS},
            )
            record._check()
        except (OSError, KeyError, ValueError, TypeError, IndexError, EOFError, BadZipFile) as e:
            why = " ".join(str(e).split())
            raise InputError(
                f"{path}: not a file of detections of ours ({why}); evaluate again with validate"
            ) from None
        return record

    def _check(self) -> None:
        n, m, images, classes = (
            len(self.image),
            len(self.label_image),
            len(self.files),
            len(self.names),
        )
        shapes = {"sizes": (images, 2), "image": (n,), "box": (n, 4), "score": (n,), "kind": (n,)}
        shapes |= {"label_image": (m,), "label_box": (m, 4), "label_kind": (m,), "label_area": (m,)}
        wrong = [name for name, shape in shapes.items() if getattr(self, name).shape != shape]
        for name, end in (
            ("image", images),
            ("label_image", images),
            ("kind", classes),
            ("label_kind", classes),
        ):
            values = getattr(self, name)
            if not np.issubdtype(values.dtype, np.integer) or (
                len(values) and not 0 <= values.min() <= values.max() < end
            ):
                wrong.append(name)
        wrong += [
            name for name in ("image", "label_image") if (np.diff(getattr(self, name)) < 0).any()
        ]
        if wrong:
            raise ValueError(f"its {', '.join(dict.fromkeys(wrong))} do not fit together")

    def detections_of(self, i: int) -> slice:
        """The rows of image i's detections."""
        return slice(*self._starts[0][i : i + 2].tolist())

    def labels_of(self, i: int) -> slice:
        """The rows of image i's labels."""
        return slice(*self._starts[1][i : i + 2].tolist())

    def true_positives(self) -> np.ndarray:
        """(n, 10) bool: which detections are true positives, by IoU threshold, see
        `metrics.match`."""
        parts = [np.zeros((0, 10), bool)]
        for i in range(len(self.files)):
            d, t = self.detections_of(i), self.labels_of(i)
            parts.append(match(self.box[d], self.kind[d], self.label_box[t], self.label_kind[t]))
        return np.concatenate(parts)

    def class_metrics(self, true_positives: np.ndarray) -> ClassMetrics:
        """The metrics by class, as in metrics.json; true_positives: (n, 10) bool, as
        `true_positives()` gives them."""
        return class_metrics(true_positives, self.score, self.kind, self.label_kind)

    @cached_property
    def folder(self) -> str:
        """The folder that all images are in; empty if there is none."""
        return common_folder(self.files)

    def name_of(self, i: int) -> str:
        """Image i's file, below the common folder."""
        return inside(self.files[i], self.folder)
