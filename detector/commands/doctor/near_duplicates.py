"""Pictures that look alike though their files differ: resized, compressed again, brightened, or the
next frame of a video.

Two looks. The first compares each picture with each at 16 x 16 pixels. Receipts of one shop, or
papers on one table, are alike there whatever they say; so the second compares the pairs that are
left at 32 x 32 pixels, where an edge counts no more than a line of text.
"""

import cv2
import numpy as np

SIDE = 32  # pixels of a thumbnail's sides
# First look: correlation of the brightness steps between neighbouring pixels. Measured: copies at
# half the size, at JPEG quality 50 or 10 % brighter stay above 0.98, different photos (COCO),
# microscope pictures (BCCD) and pages of journals (PubLayNet) below 0.48, 0.40 and 0.81, but
# different receipts on one table reach 0.997. Blank paper has no steps: scans are not alike for
# being white.
ALIKE = 0.9
# Second look: the same with the steps clipped, the pictures laid over each other
# (benchmarks/doctor.md). The next frame of a video and photos of one scene stay above 0.58;
# documents, which have a bar of their own, are alike only if they are copies.
ALIKE_IN_DETAIL, ALIKE_ON_PAPER = 0.55, 0.7
# share of the pixels that have the brightness of the paper; of a photo's sky it is less
PAPER = 0.25
_CLIP = 6.0  # grey levels
_COARSE = 16
_REACH = 3  # pixels that pictures may be shifted
_MOST = 16  # pictures that one is compared with in detail: those that it is most like
_ROWS, _COLUMNS = 512, 8192  # of the table of correlations that is in memory at a time


def near_duplicates(
    thumbnails: np.ndarray, groups: np.ndarray, paper: np.ndarray
) -> list[tuple[int, int]]:
    """For each picture that looks like an earlier one: (its number, the number of the earlier one
    that it is most like).

    Args:
        thumbnails: (n, 32, 32) uint8.
        groups: (n,) split of each picture. A picture of another split is named before one of the
            same.
        paper: (n,) bool, of `is_paper`.

    It compares each with each: 100,000 pictures take a minute or two, less than decoding them.
    """
    found = []
    for i, rivals in alike(thumbnails, groups):
        for j in rivals:
            if likeness(thumbnails[i], thumbnails[j]) > (
                ALIKE_ON_PAPER if paper[i] and paper[j] else ALIKE_IN_DETAIL
            ):
                found.append((i, j))
                break
    return found


def is_paper(grey: np.ndarray) -> bool:
    """Whether much of a picture (H, W) uint8 is of one bright grey, as documents are."""
    small = (
        cv2.resize(grey, (128, 128), interpolation=cv2.INTER_AREA)
        if min(grey.shape) > 128
        else grey
    )
    levels = np.bincount(small.ravel(), minlength=256)
    # share of the pixels within 6 levels of each
    near = np.convolve(levels, np.ones(13), "same") / small.size
    return bool(near[128:].max() >= PAPER)


def alike(thumbnails: np.ndarray, groups: np.ndarray) -> list[tuple[int, list[int]]]:
    """The first look: the number of each picture that is like earlier ones, and up to 16 of these,
    the most alike first, but those of another split before all."""
    steps = _steps(thumbnails)
    found = []
    for start in range(0, len(steps), _ROWS):
        rows = np.arange(start, min(start + _ROWS, len(steps)))
        # the best so far
        values, numbers = np.zeros((len(rows), 0), np.float32), np.zeros((len(rows), 0), np.int64)
        for left in range(0, rows[-1] + 1, _COLUMNS):
            columns = np.arange(left, min(left + _COLUMNS, rows[-1] + 1))
            table = steps[rows] @ steps[columns].T
            table[columns[None] >= rows[:, None]] = 0
            if table.max() <= ALIKE:
                continue
            # above 1: of another split
            table += (table > ALIKE) & (groups[columns][None] != groups[rows][:, None])
            best = (
                np.argpartition(table, -_MOST, 1)[:, -_MOST:]
                if len(columns) > _MOST
                else columns[None] - left
            )
            # of equals the earlier comes first
            best = np.sort(np.broadcast_to(best, (len(rows), best.shape[1])), 1)
            values = np.concatenate((values, np.take_along_axis(table, best, 1)), 1)
            numbers = np.concatenate((numbers, columns[best]), 1)
            best = np.argsort(-values, 1, kind="stable")[:, :_MOST]
            values, numbers = (
                np.take_along_axis(values, best, 1),
                np.take_along_axis(numbers, best, 1),
            )
        for row, of, value in zip(rows, numbers, values, strict=True):
            if (value > ALIKE).any():
                found.append((int(row), of[value > ALIKE].tolist()))
    return found


def likeness(a: np.ndarray, b: np.ndarray) -> float:
    """The second look, at two thumbnails (32, 32) uint8: 1 for the same, about 0 for any two."""
    core = b[_REACH:-_REACH, _REACH:-_REACH]
    _, _, _, (dx, dy) = cv2.minMaxLoc(cv2.matchTemplate(a, core, cv2.TM_CCOEFF_NORMED))
    over = a[dy : dy + len(core), dx : dx + len(core)]
    x, y = (
        np.concatenate([np.diff(v.astype(np.float32), axis=k).ravel() for k in (0, 1)])
        for v in (over, core)
    )
    x, y = x.clip(-_CLIP, _CLIP), y.clip(-_CLIP, _CLIP)
    return float(x @ y / np.sqrt(max((x @ x) * (y @ y), 1e-6)))


def _steps(thumbnails: np.ndarray) -> np.ndarray:
    """(n, 32, 32) -> (n, 480) float32: at 16 x 16 pixels the differences of neighbours, right and
    down, of length 1; zero where there are none."""
    n, by = len(thumbnails), SIDE // _COARSE
    levels = thumbnails.reshape(n, _COARSE, by, _COARSE, by).mean((2, 4), dtype=np.float32).round()
    right, down = (
        np.diff(levels, axis=2).reshape(n, 16 * 15),
        np.diff(levels, axis=1).reshape(n, 15 * 16),
    )
    steps = np.concatenate((right, down), 1)
    steps /= np.sqrt(np.einsum("ij,ij->i", steps, steps)).clip(1e-6)[:, None]
    return steps
