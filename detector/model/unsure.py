"""What nobody has decided in the images of a teacher: rows of targets that are no objects, and the
predictions that are not told that there is none."""

from collections.abc import Sequence

import torch
from torch import Tensor

from boltbox.detector.model.assigner import Assigner
from boltbox.detector.model.head import Head

UNSURE = -1  # class of a box that may be an object


def nobody_looked(c: int) -> int:
    """Class of a row by which nobody has looked for objects of class c in its image; and back."""
    return -2 - c


def undecided(
    raw: Sequence[Tensor], unsure: Tensor, head: Head, assigner: Assigner, num_classes: int
) -> list[Tensor]:
    """Per level (B, A, H, W) bool: predictions that an UNSURE box would be assigned, and those
    whose likeliest class is one that nobody has looked for.

    Args:
        raw: per level (B, A, H, W, 5 + C) logits. head: what gave them.
        unsure: (M, 6) image, class below 0, cx, cy, w, h as fractions of the input.
    """
    image, number = unsure[:, :2].long().unbind(1)  # (M,)
    boxes = unsure[number == UNSURE].clone()
    boxes[:, 1] = 0  # an assigner may look at the class
    unknown = number < UNSURE
    closed = torch.zeros(len(raw[0]), num_classes, dtype=torch.bool, device=image.device)
    closed[image[unknown], nobody_looked(number[unknown])] = True  # type: ignore[arg-type]
    levels = []
    for maps, rows in zip(raw, assigner.assign(raw, boxes, head), strict=True):
        likeliest = maps[..., 5:].argmax(-1)
        found = closed.gather(1, likeliest.flatten(1)).view_as(likeliest)
        valid = slice(None) if rows.valid is None else rows.valid
        found[rows.image[valid], rows.anchor[valid], rows.row[valid], rows.column[valid]] = True
        levels.append(found)
    return levels
