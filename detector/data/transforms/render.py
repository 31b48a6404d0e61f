"""The pixels of a lazy image, from its patches: each file's pixels are resampled once, straight
into their place."""

import math

import cv2
import numpy as np

from boltbox.detector.data.sample import Patch, Sample
from boltbox.detector.data.transforms.letterbox import GREY

SLACK = 4  # pixels of the source in which to look for a point that lands on a whole pixel


def render_patches(size: tuple[int, int], patches: list[Patch]) -> np.ndarray:
    """(H, W, 3) uint8 RGB, grey where there is no patch. Patches that nothing is seen of are not
    read.

    The geometry is that of the patches to about a tenth of a pixel; their edges fall on whole
    pixels.
    """
    image = np.full((*size, 3), GREY, np.uint8)
    for patch in patches:
        left, top, right, bottom = (
            round(patch.x1),
            round(patch.y1),
            round(patch.x2),
            round(patch.y2),
        )
        if left < right and top < bottom:
            pixels = patch.read()
            sx1, sx2, x1, x2 = _span(left, right, patch.gain_x, patch.x0, pixels.shape[1])
            sy1, sy2, y1, y2 = _span(top, bottom, patch.gain_y, patch.y0, pixels.shape[0])
            part = pixels[sy1:sy2, sx1:sx2]
            if part.shape[:2] != (y2 - y1, x2 - x1):
                part = cv2.resize(part, (x2 - x1, y2 - y1), interpolation=cv2.INTER_LINEAR)
            image[top:bottom, left:right] = part[top - y1 : bottom - y1, left - x1 : right - x1]
    return image


def _span(low: int, high: int, gain: float, shift: float, n: int) -> tuple[int, int, int, int]:
    """Source pixels s1..s2 of n and output pixels d1..d2 that belong together under d = s * gain +
    shift as exactly as whole numbers can, where d1..d2 holds low..high."""

    s1 = min(max(math.floor((low - shift) / gain), 0), n - 1)
    s2 = max(min(math.ceil((high - shift) / gain), n), s1 + 1)
    s1, d1 = (
        _roundest(range(s1, max(s1 - SLACK, 0) - 1, -1), gain, shift) if s1 else (0, round(shift))
    )
    s2, d2 = (
        _roundest(range(s2, min(s2 + SLACK, n) + 1), gain, shift)
        if s2 < n
        else (n, round(n * gain + shift))
    )
    return s1, s2, min(d1, low), max(d2, high)


def _roundest(candidates: range, gain: float, shift: float) -> tuple[int, int]:
    """The first s for which d = s * gain + shift is closest to a whole number, and that number."""
    least, best = 2.0, (0, 0)
    for s in candidates:
        d = s * gain + shift
        whole = round(d)
        off = d - whole if d > whole else whole - d
        if off < least:
            least, best = off, (s, whole)
            if not off:
                break
    return best


class Render:
    """The pixels of a lazy image; any other sample stays as it is."""

    def __call__(self, sample: Sample, rng: object = None, partner: object = None) -> Sample:
        return (
            sample.rendered(render_patches(sample.size, sample.patches))
            if sample.patches
            else sample
        )
