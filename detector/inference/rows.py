"""From what a network predicts of a batch to rows in the pixels of the image files."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from boltbox.detector.data.device import to_floats
from boltbox.detector.data.inputs.tiles import merge
from boltbox.detector.data.sample import Batch, LetterboxInfo
from boltbox.detector.model.network import Network
from boltbox.detector.model.postprocess import nms
from boltbox.detector.system.errors import InputError, nearest

# images (B, 3, H, W) in 0..1 -> (B, R, 5 + C), as `Head.decode` gives it
Rows = Callable[[Tensor], Tensor]
DecodedRows = Tensor | Sequence[Tensor]  # (B, R, 5 + C), or per image (n, 5 + C)


class Thresholds(NamedTuple):
    """Which detections count; see `boltbox.detector.model.postprocess.nms`. classes: only these
    numbers."""

    conf: float
    iou: float
    max_det: int
    agnostic: bool = False
    classes: Sequence[int] | None = None
    multi_label: bool = False
    rounded: bool = False


def to_rows(
    decoded: DecodedRows, letterboxes: Sequence[LetterboxInfo | None], thresholds: Thresholds
) -> list[np.ndarray]:
    """Per image (n, 6) float32: x1, y1, x2, y2 in pixels of the image file, score, class; best
    first."""
    results = []
    found = nms(decoded, **thresholds._asdict())
    for detections, letterbox in zip(found, letterboxes, strict=True):
        assert letterbox is not None
        boxes = letterbox.to_file(detections.boxes.float().cpu().numpy())
        results.append(
            np.column_stack(
                (boxes, detections.scores.float().cpu().numpy(), detections.classes.cpu().numpy())
            )
        )
    return [r.astype(np.float32) for r in results]


def rows_of_tiles(
    predictor: Callable[[Tensor], DecodedRows], batch: Batch, thresholds: Thresholds, at_once: int
) -> np.ndarray:
    """The (n, 6) rows of the one image whose windows make up a batch, as `to_rows` gives them.

    Args:
        predictor: see Rows; it may also give each image's rows.
        batch: images (B, 3, H, W) uint8: a large image's tiles would not all find room as floats.
        at_once: most windows that go through the network together.
    """
    letterbox, windows = batch.letterboxes[0], batch.windows
    assert letterbox is not None
    assert windows is not None
    if len(windows) == 1:
        return to_rows(predictor(to_floats(batch.images)), batch.letterboxes, thresholds)[0]
    rows, sources = [], []
    for start in range(0, len(batch.images), at_once):
        decoded = predictor(to_floats(batch.images[start : start + at_once]))
        for i, found in enumerate(
            to_rows(decoded, batch.letterboxes[start : start + at_once], thresholds), start
        ):
            # A box reaches beyond its window only where the padding is.
            found[:, :4] = found[:, :4].clip(np.tile(windows[i, :2], 2), np.tile(windows[i, 2:], 2))
            rows.append(found)
            sources.append(np.tile(windows[i], (len(found), 1)))
    size = letterbox.height, letterbox.width
    return merge(
        np.concatenate(rows),
        np.concatenate(sources),
        size,
        thresholds.iou,
        thresholds.max_det,
        thresholds.agnostic,
    )


def class_numbers(wanted: Sequence[int | str] | None, names: Sequence[str]) -> list[int] | None:
    """Numbers of the classes that are given by number or by name.

    >>> class_numbers([0, "dog"], ["cat", "dog"])
    [0, 1]

    Raises:
        InputError: there is no such class.
    """
    if wanted is None:
        return None
    numbers = []
    for word in wanted:
        if isinstance(word, str) and word in names:
            numbers.append(list(names).index(word))
        elif isinstance(word, int) and 0 <= word < len(names):
            numbers.append(word)
        else:
            hint = (
                nearest(word, names)
                if isinstance(word, str)
                else f"the numbers are 0 to {len(names) - 1}"
            )
            raise InputError(f"classes: there is no class {word!r}; {hint}")
    return numbers


def dtype_of(module: torch.nn.Module) -> torch.dtype:
    """That of a network's weights."""
    return next(module.parameters()).dtype


def forward_function(network: Network) -> Rows:
    """A network and its decoding in one, in float32 outside, whatever the network's precision."""

    def forward(images: Tensor) -> Tensor:
        return network.decode(network(images.to(dtype_of(network))))

    return forward
