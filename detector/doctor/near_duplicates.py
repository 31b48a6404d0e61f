"""Pictures that look alike though their files differ: resized, compressed again, brightened, or the next frame of a video."""

import numpy as np

# Correlation of the brightness steps between neighbouring pixels of two thumbnails. Measured: copies at half the size, at JPEG
# quality 50 or 10 % brighter stay above 0.91, different photos (COCO), microscope pictures (BCCD) and pages of text (PubLayNet)
# below 0.47, 0.41 and 0.82. Blank paper has no steps, so that scans are not alike for being white.
ALIKE = 0.9
_ROWS, _COLUMNS = 512, 8192  # of the table of correlations that is in memory at a time


def near_duplicates(thumbnails: np.ndarray, groups: np.ndarray) -> list[tuple[int, int]]:
    """For each picture that looks like an earlier one: (its number, the number of the earlier one that it is most like).

    Args:
        thumbnails: (n, 16, 16) uint8.
        groups: (n,) split of each picture. A picture of another split is named before one of the same.

    It compares each with each: 100,000 pictures take a minute or two, less than decoding them.
    """
    steps = _steps(thumbnails)
    found = []
    for start in range(0, len(steps), _ROWS):
        rows = np.arange(start, min(start + _ROWS, len(steps)))
        most = np.full(len(rows), ALIKE, np.float32)  # above 1: alike, and of another split
        of = np.full(len(rows), -1)
        for left in range(0, rows[-1] + 1, _COLUMNS):
            columns = np.arange(left, min(left + _COLUMNS, rows[-1] + 1))
            alike = steps[rows] @ steps[columns].T
            alike[columns[None] >= rows[:, None]] = 0
            if alike.max() <= ALIKE:
                continue
            alike += (alike > ALIKE) & (groups[columns][None] != groups[rows][:, None])
            best = alike.argmax(1)
            value = alike[np.arange(len(rows)), best]
            of = np.where(value > most, columns[best], of)
            most = np.maximum(most, value)
        found += [(int(i), int(j)) for i, j in zip(rows, of, strict=True) if j >= 0]
    return found


def _steps(thumbnails: np.ndarray) -> np.ndarray:
    """(n, 16, 16) -> (n, 480) float32: differences of neighbours, right and down, of length 1; zero where there are none."""
    levels = thumbnails.astype(np.int16)
    right, down = np.diff(levels, axis=2).reshape(len(levels), 16 * 15), np.diff(levels, axis=1).reshape(len(levels), 15 * 16)
    steps = np.concatenate((right, down), 1, dtype=np.float32)
    steps /= np.sqrt(np.einsum("ij,ij->i", steps, steps)).clip(1e-6)[:, None]
    return steps
